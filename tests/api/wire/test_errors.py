from __future__ import annotations

import json

import pytest

import execd.errors
from execd.api.wire import errors
from execd.errors import (
    ExecdError,
    Internal,
    RangeNotSatisfiable,
    ResourceExhausted,
    Unauthenticated,
)

TABLES = {"v1": errors.V1_HTTP_STATUS, "python_runtime": errors.PYTHON_RUNTIME_HTTP_STATUS}
RENDERERS = {"v1": errors.render_v1, "python_runtime": errors.render_python_runtime}


def all_errors() -> list[type[ExecdError]]:
    found = [
        cls
        for cls in vars(execd.errors).values()
        if isinstance(cls, type) and issubclass(cls, ExecdError)
    ]
    return [cls for cls in found if cls is not ExecdError]


@pytest.mark.parametrize("dialect", list(TABLES))
def test_table_is_total_and_has_no_strangers(dialect: str) -> None:
    assert set(TABLES[dialect]) == {cls.code for cls in all_errors()}


@pytest.mark.parametrize("dialect", list(TABLES))
@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_status_puts_the_blame_where_the_error_does(dialect: str, cls: type[ExecdError]) -> None:
    http_status = RENDERERS[dialect](cls("message")).status
    match cls.blame:
        case execd.errors.Blame.CALLER:
            assert 400 <= http_status < 500
        case execd.errors.Blame.CAPACITY:
            assert http_status in (429, 503)
        case execd.errors.Blame.SANDBOX:
            assert http_status in (403, 500, 501, 507)


@pytest.mark.parametrize("dialect", list(TABLES))
def test_message_that_is_not_utf_8_can_be_shown(dialect: str) -> None:
    body = RENDERERS[dialect](execd.errors.NotFound("no \udcff here")).body
    assert isinstance(body, bytes)
    assert json.loads(body)["message"] == "no \ufffd here"


def test_v1_error_has_its_code_and_details() -> None:
    body = errors.render_v1(execd.errors.Gone("trimmed", first=7)).body
    assert isinstance(body, bytes)
    assert json.loads(body) == {"code": "GONE", "message": "trimmed", "details": {"first": 7}}


def test_error_carries_the_headers_that_http_asks_for() -> None:
    assert errors.render_v1(Unauthenticated("x")).headers["WWW-Authenticate"].startswith("Bearer")
    assert errors.render_v1(ResourceExhausted("x")).headers["Retry-After"] == "1"
    assert (
        errors.render_v1(ResourceExhausted("x", retry_after_seconds=2.1)).headers["Retry-After"]
        == "3"
    )
    assert (
        errors.render_v1(RangeNotSatisfiable("x", size_bytes=5)).headers["Content-Range"]
        == "bytes */5"
    )
    assert "Retry-After" not in errors.render_v1(Internal("x")).headers


def test_http_errors_have_the_shape_of_their_dialect() -> None:
    for render, expected in (
        (
            errors.render_http_v1,
            {"code": "NOT_FOUND", "message": "path: no route of this daemon has this path"},
        ),
        (errors.render_http_python_runtime, {"detail": "Not Found"}),
    ):
        body = render(404, {}).body
        assert isinstance(body, bytes)
        assert json.loads(body) == expected
    response = errors.render_http_v1(405, {"Allow": "GET"})
    assert (response.status, response.headers["Allow"]) == (405, "GET")
