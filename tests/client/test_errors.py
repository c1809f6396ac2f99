"""Every code of execd has a class of its own."""

from __future__ import annotations

from typing import Any

import pytest

import execd_client
from execd.api.routes import routes
from execd_client.errors import BY_CODE, ApiError, error_of
from tools.openapi.document import document


def test_each_code_of_the_document_has_a_class_that_users_can_import() -> None:
    schema: dict[str, Any] = document(routes())["components"]["schemas"]["ErrorReply"]
    codes = set(schema["properties"]["code"]["enum"])
    assert set(BY_CODE) == codes
    for found in BY_CODE.values():
        assert getattr(execd_client, found.__name__) is found


def test_an_error_has_what_the_reply_says() -> None:
    body = b'{"code":"GONE","message":"trimmed","details":{"oldest":3}}'
    error = error_of(410, {"x-request-id": "abc", "retry-after": "1.5"}, body)
    assert isinstance(error, execd_client.Gone)
    assert (str(error), error.details, error.request_id) == ("trimmed", {"oldest": 3}, "abc")
    assert error.retry_after_seconds == 1.5


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[1]", b'"x"', b"{}", b"\xff"])
def test_a_page_of_a_router_is_an_error_too(body: bytes) -> None:
    error = error_of(418, {}, body)
    assert type(error) is ApiError
    assert "418" in str(error)


def test_an_answer_to_head_is_known_by_its_status() -> None:
    assert isinstance(error_of(404, {}, b""), execd_client.NotFound)
    assert type(error_of(404, {}, b"<html>")) is ApiError


def test_a_code_of_a_later_execd_is_no_failure_of_the_client() -> None:
    assert type(error_of(409, {}, b'{"code":"NEWER","message":"x"}')) is ApiError
