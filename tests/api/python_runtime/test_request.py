"""The expected replies are recorded from FastAPI 0.165 with pydantic 2.14. A comment marks each
difference."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.python_runtime.request import LARGE_BYTES, ExecuteRequest, Refused, parse
from tests.profiles import examples

JSON = "application/json"
NOT_AN_OBJECT = "Input should be a valid dictionary or object to extract fields from"
GREATER_THAN = {"type": "greater_than", "msg": "Input should be greater than 0", "ctx": {"gt": 0.0}}


def refusal(body: bytes, content_type: str | None = JSON) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(body, content_type)
    msgspec.json.encode(caught.value.detail)
    return caught.value


def only_fault(body: bytes, content_type: str | None = JSON) -> dict[str, Any]:
    refused = refusal(body, content_type)
    assert refused.http_status == 422
    (fault,) = refused.detail
    return fault


@pytest.mark.parametrize(
    ("body", "timeout_seconds"),
    [
        (b'{"command":"x"}', None),
        (b'{"command":"x","timeout_seconds":null}', None),
        (b'{"command":"x","timeout_seconds":5}', 5.0),
        (b'{"command":"x","timeout_seconds":0.25}', 0.25),
        (b'{"command":"x","timeout_seconds":" 5 "}', 5.0),
        (b'{"command":"x","timeout_seconds":"1e3"}', 1000.0),
        (b'{"command":"x","timeout_seconds":true}', 1.0),
        (b'{"command":"x","env":{"A":1},"cwd":3}', None),
        (b'\xef\xbb\xbf{"command":"x"}', None),
        ('{"command":"x"}'.encode("utf-16"), None),
        (b'{"command":4,"command":"x"}', None),
        (b'{"command":"x","other":NaN}', None),
    ],
)
def test_body_is_accepted(body: bytes, timeout_seconds: float | None) -> None:
    assert parse(body, JSON) == ExecuteRequest(command="x", timeout_seconds=timeout_seconds)


@pytest.mark.parametrize(
    "content_type", [JSON, "Application/JSON; charset=utf-8", "application/vnd.x+json", None]
)
def test_json_content_types_are_accepted(content_type: str | None) -> None:
    # A recent FastAPI refuses a missing content type. The third generation's FastAPI did not
    # refuse.
    assert parse(b'{"command":"x"}', content_type).command == "x"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""]
)
def test_other_content_types_are_no_object(content_type: str) -> None:
    assert only_fault(b'{"command":"x"}', content_type) == {
        "type": "model_attributes_type",
        "loc": ["body"],
        "msg": NOT_AN_OBJECT,
        "input": '{"command":"x"}',
    }


def test_empty_body_is_a_missing_body() -> None:
    assert only_fault(b"") == {
        "type": "missing",
        "loc": ["body"],
        "msg": "Field required",
        "input": None,
    }


@pytest.mark.parametrize("value", [None, [1], "x", 3, True])
def test_body_that_is_no_object_is_shown(value: Any) -> None:
    fault = only_fault(json.dumps(value).encode())
    assert fault == {
        "type": "model_attributes_type",
        "loc": ["body"],
        "msg": NOT_AN_OBJECT,
        "input": value,
    }


@pytest.mark.parametrize(
    ("body", "position", "error"),
    [
        (b"{", 1, "Expecting property name enclosed in double quotes"),
        (b"{'a':1}", 1, "Expecting property name enclosed in double quotes"),
        (b'{"command":', 11, "Expecting value"),
        (b'{"command":"x"} junk', 16, "Extra data"),
        (b"  ", 2, "Expecting value"),
    ],
)
def test_bad_json_is_refused_with_its_position(body: bytes, position: int, error: str) -> None:
    assert only_fault(body) == {
        "type": "json_invalid",
        "loc": ["body", position],
        "msg": "JSON decode error",
        "input": {},
        "ctx": {"error": error},
    }


@pytest.mark.parametrize(
    "body", [b'{"command":"\xff"}', b"[" * 100_000, b'{"timeout_seconds":' + b"9" * 5000 + b"}"]
)
def test_json_that_cannot_be_read_at_all_is_400(body: bytes) -> None:
    refused = refusal(body)
    assert (refused.http_status, refused.detail) == (400, "There was an error parsing the body")


def test_missing_command_shows_the_body() -> None:
    fault = only_fault(b'{"cmd":"x"}')
    assert fault == {
        "type": "missing",
        "loc": ["body", "command"],
        "msg": "Field required",
        "input": {"cmd": "x"},
    }


@pytest.mark.parametrize("value", [3, None, ["ls"], {}, False])
def test_command_that_is_no_string_is_refused(value: Any) -> None:
    assert only_fault(json.dumps({"command": value}).encode()) == {
        "type": "string_type",
        "loc": ["body", "command"],
        "msg": "Input should be a valid string",
        "input": value,
    }


@pytest.mark.parametrize("value", [0, -1, False, "0", -0.5])
def test_timeout_that_is_not_positive_is_refused(value: Any) -> None:
    fault = only_fault(json.dumps({"command": "x", "timeout_seconds": value}).encode())
    assert fault == GREATER_THAN | {"loc": ["body", "timeout_seconds"], "input": value}


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (
            b'"soon"',
            "float_parsing",
            "Input should be a valid number, unable to parse string as a number",
        ),
        (
            b'""',
            "float_parsing",
            "Input should be a valid number, unable to parse string as a number",
        ),
        (b"[1]", "float_type", "Input should be a valid number"),
        (b"{}", "float_type", "Input should be a valid number"),
        (b"9" * 400, "float_type", "Input should be a valid number"),
        (b'"nan"', "finite_number", "Input should be a finite number"),
        (b'"-inf"', "finite_number", "Input should be a finite number"),
        # FastAPI finds the same error, and then fails to write the number into the reply: 500.
        (b"NaN", "finite_number", "Input should be a finite number"),
        (b"Infinity", "finite_number", "Input should be a finite number"),
        (b"1e999", "finite_number", "Input should be a finite number"),
    ],
)
def test_timeout_that_is_no_finite_number_is_refused(value: bytes, kind: str, message: str) -> None:
    fault = only_fault(b'{"command":"x","timeout_seconds":' + value + b"}")
    assert (fault["type"], fault["loc"], fault["msg"]) == (
        kind,
        ["body", "timeout_seconds"],
        message,
    )


def test_all_faults_are_named_at_once() -> None:
    kinds = [fault["type"] for fault in refusal(b'{"command":3,"timeout_seconds":0}').detail]
    assert kinds == ["string_type", "greater_than"]


def test_lone_surrogate_in_a_command_is_refused() -> None:
    assert only_fault(b'{"command":"a\\ud800"}')["type"] == "string_unicode"


@given(st.binary(max_size=80), st.sampled_from([JSON, None, "text/plain"]))
def test_any_body_is_parsed_or_refused(body: bytes, content_type: str | None) -> None:
    for candidate in (body, b'{"command":"x","timeout_seconds":' + body + b"}"):
        try:
            parse(candidate, content_type)
        except Refused as refused:
            msgspec.json.encode(refused.detail)


@examples(0.5)
@given(
    st.recursive(
        st.none() | st.floats() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_value_in_any_field_is_parsed_or_refused(value: Any) -> None:
    for fields in ({"command": value}, {"command": "x", "timeout_seconds": value}):
        try:
            parsed = parse(json.dumps(fields).encode(), JSON)
        except Refused as refused:
            msgspec.json.encode(refused.detail)
        else:
            assert parsed.timeout_seconds is None or parsed.timeout_seconds > 0


LARGE = b'"' + b"x" * LARGE_BYTES + b'"'


@pytest.mark.parametrize("timeout", [b"3", b'"3"'])
def test_of_a_large_body_the_two_fields_are_taken(timeout: bytes) -> None:
    body = b'{"a":[[],{}],"command":' + LARGE + b',"timeout_seconds":' + timeout + b"}"
    assert parse(body, JSON) == ExecuteRequest(command="x" * LARGE_BYTES, timeout_seconds=3.0)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a":' + LARGE + b"}", "missing"),
        (b'{"command":[' + LARGE + b"]}", "string_type"),
        (b'{"command":null,"a":' + LARGE + b"}", "string_type"),
        (b'{"command":"echo","timeout_seconds":' + LARGE + b"}", "float_type"),
        (b'{"command":' + LARGE + b',"timeout_seconds":[]}', "float_type"),
        (b'{"command":' + LARGE + b',"timeout_seconds":"soon"}', "float_parsing"),
    ],
)
def test_a_large_body_that_is_refused_is_not_shown(body: bytes, kind: str) -> None:
    fault = only_fault(body)
    assert fault["type"] == kind
    assert len(repr(fault)) < 1000


@pytest.mark.parametrize(
    "body", [b"[" + LARGE + b"]", b'{"command":' + LARGE, LARGE[:-1] + b'\xff"']
)
def test_a_large_body_that_is_no_object_in_utf8_is_a_parse_error(body: bytes) -> None:
    assert refusal(body).http_status == 400


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_body_of_over_1_mib_that_is_not_utf_8_is_400(encoding: str) -> None:
    assert LARGE_BYTES == 1 << 20
    short = json.dumps({"command": "x"}).encode(encoding)
    assert parse(short, JSON).command == "x"
    large = json.dumps({"command": "x" * LARGE_BYTES}).encode(encoding)
    assert refusal(large).http_status == 400
