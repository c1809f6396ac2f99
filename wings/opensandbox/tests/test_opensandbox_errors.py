from __future__ import annotations

import json
from typing import get_args

import pytest

from execd import errors
from execd.api.wire.errors import render_v1
from execd.errors import (
    ErrorCode,
    ExecdError,
    NotFound,
    RangeNotSatisfiable,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from execd_opensandbox.opensandbox_errors import (
    OPENSANDBOX_CODES,
    render_error,
    render_http_error,
)


def test_each_error_has_a_code_of_opensandbox() -> None:
    assert set(OPENSANDBOX_CODES) == set(get_args(ErrorCode))


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_each_error_has_both_fields_that_the_sdk_requires(code: str) -> None:
    [kind] = [one for one in vars(errors).values() if getattr(one, "code", None) == code]
    body = json.loads(render_error(kind("why \udcff"), of_files=False).body)
    assert body["code"]
    assert body["message"] == "why \ufffd"


def test_missing_file_has_a_code_of_its_own() -> None:
    assert b"FILE_NOT_FOUND" in render_error(NotFound("x"), of_files=True).body
    assert b"CONTEXT_NOT_FOUND" in render_error(NotFound("x"), of_files=False).body


def test_refusal_for_want_of_a_token_has_opensandbox_s_own_field() -> None:
    response = render_error(Unauthenticated("an access token is required"), of_files=False)
    assert response.status == 401
    assert json.loads(response.body) == {
        "error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN",
        "code": "UNAUTHENTICATED",
        "message": "an access token is required",
    }


def test_headers_say_when_to_come_back_and_how_long_the_file_is() -> None:
    later = render_error(Unavailable("x", retry_after_seconds=2.5), of_files=False)
    assert later.headers["Retry-After"] == "3"
    ranged = render_error(RangeNotSatisfiable("x", size_bytes=7), of_files=True)
    assert ranged.headers["Content-Range"] == "bytes */7"


@pytest.mark.parametrize("seconds", [None, 0.1, 2.5, 60])
@pytest.mark.parametrize("kind", [Unavailable, ResourceExhausted])
def test_a_refusal_says_the_same_wait_in_each_dialect(
    kind: type[ExecdError], seconds: float | None
) -> None:
    error = kind("x") if seconds is None else kind("x", retry_after_seconds=seconds)
    wait = render_error(error, of_files=False).headers["Retry-After"]
    assert wait == render_v1(error).headers["Retry-After"]


def test_unknown_route_and_method_are_json_too() -> None:
    assert json.loads(render_http_error(404, {}).body)["code"] == "NOT_FOUND"
    refused = render_http_error(405, {"Allow": "GET,HEAD"})
    assert json.loads(refused.body)["message"] == "method: this path allows GET,HEAD"
