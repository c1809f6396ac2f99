"""Error bodies by path, and the token of each route."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from execd_e2b.settings import Settings
from execd_e2b.table import is_context, make_service
from tests.api.conftest import JSON
from tests.api.route_access import assert_the_init_is_awaited, assert_the_token_is_needed
from wings.e2b.tests.conftest import E2B, STREAM, Box, packed, shell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire
    from tests.api.shared_engine import SharedEngine

TOKEN = "secret"
WITH_TOKEN = {"X-Access-Token": TOKEN}


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(serve: Callable[..., Awaitable[Wire]]) -> Box:
    token_sha256 = hashlib.sha256(TOKEN.encode()).hexdigest()
    return Box(await serve(dialect=E2B, token_sha256=token_sha256))


async def test_refusal_has_the_shape_of_the_api(guarded: Box) -> None:
    for name, body, headers in (
        ("/process.Process/List", b"{}", JSON),
        ("/process.Process/Start", packed(shell("true")), STREAM),
        ("/filesystem.Filesystem/Stat", b"{}", JSON),
    ):
        answer = await guarded.wire.request("POST", name, body, headers)
        assert answer.http_status == 401
        assert answer.json() == {
            "code": "unauthenticated",
            "message": "an access token is required",
        }
    for target in ("/envs", "/metrics", "/files?path=x"):
        answer = await guarded.get(target)
        assert (answer.http_status, answer.json()["code"]) == (401, 401)
    answer = await guarded.wire.request("POST", "/execute", b'{"code":"1"}', JSON)
    assert (answer.http_status, answer.body) == (401, b"an access token is required")


async def test_signed_url_is_refused_with_the_reason(guarded: Box) -> None:
    answer = await guarded.get("/files?path=x&signature=v1_abc&signature_expiration=1")
    assert answer.http_status == 401
    assert "signed URL" in answer.json()["message"]
    assert "hash" in answer.json()["message"]


async def test_token_opens_signed_urls_and_all_else(guarded: Box) -> None:
    (guarded.wire.base_dir / "x").write_text("content")
    answer = await guarded.get("/files?path=x&signature=v1_abc", WITH_TOKEN)
    assert answer.body == b"content"
    http_status, _ = await guarded.call("process.Process/List", {}, WITH_TOKEN)
    assert http_status == 200


async def test_contexts_without_a_token_are_refused_with_the_setting(guarded: Box) -> None:
    for method, path in (("GET", "/contexts"), ("POST", "/contexts"), ("DELETE", "/contexts/x")):
        answer = await guarded.wire.request(method, path)
        assert answer.http_status == 401
        assert b"EXECD_E2B_OPEN_CONTEXTS" in answer.body


async def test_open_contexts_open_the_contexts_only(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    token_sha256 = hashlib.sha256(TOKEN.encode()).hexdigest()
    dialect = make_service(Settings(open_contexts="on"), is_code_port=False)
    box = Box(await serve(dialect=dialect, token_sha256=token_sha256, sessions="lazy"))
    assert (await box.get("/contexts")).http_status == 200
    answer = await box.wire.request("DELETE", "/contexts/nothing")
    assert answer.http_status == 404
    answer = await box.get("/contexts", {"Sec-Fetch-Site": "cross-site"})
    assert answer.http_status == 403, "no open path for other sites"
    for target in ("/envs", "/files?path=/contexts", "/contexts/../envs", "/metrics"):
        assert (await box.get(target)).http_status in (401, 404)
    answer = await box.wire.request("POST", "/execute", b'{"code":"1"}', JSON)
    assert answer.http_status == 401


@pytest.mark.parametrize(
    ("path", "is_open"),
    [
        ("/contexts", True),
        ("/contexts/abc", True),
        ("/contexts/abc/restart", True),
        ("/contexts/", False),
        ("/contexts/..", False),
        ("/contexts/../envs", False),
        ("/contexts/a/b/restart", False),
        ("/contextsx", False),
        ("/execute", False),
    ],
)
def test_setting_opens_exactly_the_contexts(path: str, *, is_open: bool) -> None:
    assert is_context(path) is is_open
    assert not E2B.opens(path)


async def test_error_of_a_stream_is_in_its_last_frame(box: Box) -> None:
    answer = await box.wire.request(
        "POST", "/process.Process/Connect", packed({"process": {"pid": 4_000_000}}), STREAM
    )
    assert answer.http_status == 200
    assert answer.headers["Content-Type"] == "application/connect+json"
    flags, size = struct.unpack_from(">BI", answer.body)
    assert (flags, size) == (2, len(answer.body) - 5)


@pytest.mark.parametrize(
    ("method", "path", "http_status"), [("GET", "/nothing", 404), ("PUT", "/files", 405)]
)
async def test_unknown_route_has_envd_s_shape(
    box: Box, method: str, path: str, http_status: int
) -> None:
    answer = await box.wire.request(method, path)
    assert (answer.http_status, answer.json()["code"]) == (http_status, http_status)


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_each_route_needs_the_token_as_the_table_says(
    token: str | None, shared_engine: SharedEngine
) -> None:
    await assert_the_token_is_needed(E2B, shared_engine, token)


async def test_before_an_awaited_init_only_probes_and_the_init_are_served(
    shared_engine: SharedEngine,
) -> None:
    await assert_the_init_is_awaited(E2B, shared_engine)
