from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from execd.api.v1 import execution_request
from execd.api.wire.fields import MAX_STRINGS, parse_json, parse_query
from execd.errors import InvalidArgument


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(gt=0)] = 1


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: Literal["a", "b"] = "a"
    words: tuple[str, ...] = ()
    env: dict[str, str] = {}
    inner: Inner = Inner()
    described: Annotated[Literal["c", "d"] | None, msgspec.Meta(description="Words.")] = None
    described_inner: Annotated[Inner | None, msgspec.Meta(description="More.")] = None


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5
    eof: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


THING = msgspec.json.Decoder(Thing)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"{}", "name", "name: required"),
        (
            b'{"name":"x","nope":1}',
            "nope",
            "nope: unknown field; known are: described, described_inner, env, inner, kind, name, "
            "words",
        ),
        (b'{"name":1}', "name", "name: expected `str`, got `int`"),
        (b'{"name":"x","kind":"c"}', "kind", "kind: invalid enum value 'c', not one of 'a', 'b'"),
        (b'{"name":"x","words":["a",2]}', "words[1]", "words[1]: expected `str`, got `int`"),
        (b'{"name":"x","env":{"a":1}}', "env.a", "env.a: expected `str`, got `int`"),
        (b'{"name":"x","inner":{"count":0}}', "inner.count", "inner.count: expected `int` >= 1"),
        (
            b'{"name":"x","inner":{"size":0}}',
            "inner.size",
            "inner.size: unknown field; known are: count",
        ),
        (
            b'{"name":"x","described":"a"}',
            "described",
            "described: invalid enum value 'a', not one of 'c', 'd'",
        ),
        (
            b'{"name":"x","described_inner":{"size":0}}',
            "described_inner.size",
            "described_inner.size: unknown field; known are: count",
        ),
        (
            b'{"name":"x","kind":" - at `$.name"}',
            "kind",
            "kind: invalid enum value ' - at `$.name', not one of 'a', 'b'",
        ),
        (b"[]", "body", "body: expected `object`, got `array`"),
    ],
)
def test_refusal_names_the_field_and_the_rule(body: bytes, field: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_json(body, THING)
    assert (caught.value.message, caught.value.details) == (message, {"field": field})


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (b'{"A": "", "B": 1}', "B"),
        (b'{"A": ["x"], "A": "x"}', "…"),
        (b'{"' + b"n" * 50 + b'": null}', "n" * 32),
        (b'{"A": {}}, nothing', "[...]"),
    ],
)
def test_value_of_another_kind_is_refused_with_the_name_of_the_variable(
    env: bytes, name: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_json(b'{"env": ' + env + b"}", execution_request.DECODER)
    place = "env" + name if name == "[...]" else f"env.{name}"
    assert caught.value.message.startswith(f"{place}: expected `str`, got `")


def test_text_that_is_no_body_is_refused_by_its_own_name() -> None:
    for text in b"", b"{", b"[]":
        with pytest.raises(InvalidArgument, match=r"^message: ") as caught:
            parse_json(text, THING, "message")
        assert caught.value.details == {"field": "message"}


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"name":"\xff"}', b'{"name":"\\ud800"}', b'{"name":NaN}', b'{"name":"x"}{}'],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^body: not JSON: "):
        parse_json(body, THING)


@pytest.mark.parametrize("body", [b"", b" \r\n"])
def test_empty_body_is_refused_with_the_fields_that_are_missing(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^body: empty.*env, inner, kind, name, words$"):
        parse_json(body, THING)


@pytest.mark.parametrize(
    "text", [rb"\ud800", rb"\udc00", rb"a\ud800\u0041", rb"\udfff\ud800", rb"\ud800\n"]
)
def test_lone_surrogate_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        parse_json(b'{"name":"' + text + b'"}', THING)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        *(
            ("cmd", "command"),
            ("commnd", "command"),
            ("args", "argv"),
            ("timeout", "timeout_seconds"),
        ),
        *(("environment", "env"), ("zzz", None), ("c" * 1000, None), ("", None), ("x", None)),
    ],
)
def test_unknown_field_names_the_nearest_field_if_any(name: str, nearest: str | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_json(msgspec.json.encode({name: 1}), execution_request.DECODER)
    assert "known are: argv, clear_env, command, cwd, " in caught.value.message
    assert f"did you mean {nearest}?" in caught.value.message or nearest is None
    assert ("did you mean" in caught.value.message) == (nearest is not None)


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(body: bytes) -> None:
    try:
        parse_json(body, THING)
    except InvalidArgument:
        return  # the only allowed error


def test_body_of_over_700000_strings_is_400() -> None:
    words = b",".join([b'"\\"\\\\"'] * (MAX_STRINGS - 3))  # a quote and a backslash in each
    body = b'{"name":"x","words":[' + words + b"%b]}"
    assert MAX_STRINGS == 700_000
    assert len(parse_json(body % b"", THING).words) == MAX_STRINGS - 3
    escapes = THING.decode(b'{"name":"' + b'\\"' * 2 * MAX_STRINGS + b'"}')
    assert len(escapes.name) == 2 * MAX_STRINGS
    with pytest.raises(InvalidArgument, match="over 700000 strings"):
        parse_json(b'{"name":"x","words":[' + b",".join([b'""'] * MAX_STRINGS) + b"]}", THING)


@pytest.mark.parametrize("depth", [10, 100_000])
def test_nesting_of_any_depth_is_refused_in_words(depth: int) -> None:
    with pytest.raises(InvalidArgument):
        parse_json(b'{"name":' + b"[" * depth + b"]" * depth + b"}", THING)
    with pytest.raises(InvalidArgument):
        parse_json(b'{"nope":' + b"[" * depth + b"]" * depth + b"}", THING)


def test_query_is_read_as_numbers_and_booleans() -> None:
    assert parse_query(MultiDict({"limit": "7", "eof": "true", "seconds": "1.5"}), Query) == Query(
        7, True, 1.5
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ([("limit", "x")], "limit: expected `int`, got `str`"),
        ([("limit", "11")], "limit: expected `int` <= 10"),
        ([("eof", "perhaps")], "eof: expected `bool`, got `str`"),
        (
            [("limt", "1")],
            "limt: unknown field, did you mean limit? known are: eof, limit, seconds",
        ),
        ([("limit", "1"), ("limit", "2")], "limit: given more than once; send it once"),
        ([("seconds", "nan")], "seconds: expected `float` >= 0.0"),
        # As the wire's %ff.
        ([("\udcff", "1")], "query: a name, or a value that is no text, is not UTF-8"),
        ([("limit", "\udcff")], "query: a name, or a value that is no text, is not UTF-8"),
    ],
)
def test_query_that_breaks_a_rule_is_refused(query: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_query(MultiDict(query), Query)
    assert caught.value.message == message
