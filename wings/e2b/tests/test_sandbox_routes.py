"""``/health``, ``/metrics``, ``/envs``, ``/init``."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient

from execd_e2b.settings import Settings
from execd_e2b.table import make_service
from tests.api.conftest import JSON, LIMITS, ExecdServer
from wings.e2b.tests.conftest import E2B, Box, output_of, shell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Answer, Wire

TOKEN = "secret"
TOKEN_SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
WITH_TOKEN = {"X-Access-Token": TOKEN}


async def init(box: Box, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    body = json.dumps(fields).encode()
    return await box.wire.request("POST", "/init", body, JSON | (headers or {}))


async def test_health_is_envd_s_and_on_the_header_the_code_interpreter_s(box: Box) -> None:
    assert (await box.get("/health")).http_status == 204
    answer = await box.get("/health", {"E2b-Sandbox-Port": "49999"})
    assert (answer.http_status, answer.body) == (200, b"OK")


async def test_health_on_the_port_of_the_code_interpreter_is_the_code_interpreter_s(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    envd = await serve(dialect=E2B)
    assert (await Box(envd).get("/health")).http_status == 204
    code = make_service(Settings(), is_code_port=True)
    server = ExecdServer(envd.engine, LIMITS, is_narrow=False, dialect=code)
    async with TestClient(server) as client, client.get("/health") as answer:
        assert (answer.status, await answer.read()) == (200, b"OK")


async def test_metrics_have_envd_s_figures(box: Box) -> None:
    for _ in range(2):
        found = (await box.get("/metrics")).json()
        assert set(found) == {
            *("ts", "cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib"),
            *("mem_total", "mem_used", "mem_cache", "disk_used", "disk_total"),
        }
        assert 0 <= found["cpu_used_pct"] <= 100
        assert 0 < found["mem_used"] <= found["mem_total"]
        assert 0 < found["disk_used"] <= found["disk_total"]
        assert found["mem_total_mib"] == found["mem_total"] >> 20


async def test_init_sets_variables_of_commands_and_replaces_them(box: Box) -> None:
    assert (await init(box, envVars={"A": "1", "B": "2"})).http_status == 204
    assert (await box.get("/envs")).json() == {"A": "1", "B": "2", "E2B_SANDBOX": "true"}
    await init(box, envVars={"A": "3"})
    assert output_of(await box.start(shell("echo $A-$B-$E2B_SANDBOX"))) == "3--true\n"
    own = shell("echo $A")
    own["process"]["envs"] = {"A": "own"}
    assert output_of(await box.start(own)) == "own\n"


@pytest.mark.parametrize("comes", ["before user code", "with a token", "after user code"])
async def test_reset_keeps_the_first_init_of_the_platform_and_forgets_later_ones(
    serve: Callable[..., Awaitable[Wire]], monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    token = {"token_sha256": TOKEN_SHA256} if comes == "with a token" else {}
    box = Box(await serve(dialect=E2B, **token))
    engine = box.wire.engine
    # The engine is shared, and other tests ran commands.
    monkeypatch.setattr(engine._parts, "may_have_run", comes != "before user code")
    platform = {"envVars": {"A": "1"}, "defaultWorkdir": "/tmp"}
    assert (await init(box, WITH_TOKEN, **platform)).http_status == 204
    engine._parts.may_have_run = True
    await init(box, WITH_TOKEN, envVars={"LD_PRELOAD": "x"}, defaultWorkdir="/")
    await engine.resets.steps.hooks[-1]()  # as each reset does
    kept = {} if comes == "after user code" else {"A": "1"}
    expected = {**kept, "E2B_SANDBOX": "true"}
    assert (await box.get("/envs", WITH_TOKEN)).json() == expected
    started = await box.start(shell("pwd"), **WITH_TOKEN)
    assert (output_of(started) == "/tmp\n") == bool(kept)


async def test_init_sets_the_working_directory_of_commands_only(box: Box) -> None:
    await init(box, defaultWorkdir="/")
    assert output_of(await box.start(shell("pwd"))) == "/\n"
    (box.wire.base_dir / "file").touch()
    http_status, _ = await box.filesystem("Stat", {"path": "file"})
    assert http_status == 200, "a relative path begins at the home"


async def test_older_init_is_ignored(box: Box) -> None:
    for year, expected in ((2026, "2026"), (2025, "2026"), (2027, "2027")):
        timestamp = f"{year}-01-01T00:00:00.123456789Z"
        answer = await init(box, envVars={"YEAR": str(year)}, timestamp=timestamp)
        assert answer.http_status == 204
        assert (await box.get("/envs")).json()["YEAR"] == expected


async def test_init_without_a_body_changes_nothing(box: Box) -> None:
    await init(box, envVars={"A": "1"})
    assert (await box.wire.request("POST", "/init", b"", JSON)).http_status == 204
    assert (await box.get("/envs")).json()["A"] == "1"


@pytest.mark.parametrize(
    ("fields", "http_status"),
    [
        ({"envVars": {"A=B": "1"}}, 400),
        ({"timestamp": "yesterday"}, 400),
        ({"defaultWorkdir": "relative"}, 400),
        ({"defaultWorkdir": "/missing"}, 400),
        ({"defaultWorkdir": "/etc/passwd"}, 400),
        ({"defaultUser": "no-such-user"}, 401),
        ({"accessToken": "new"}, 400),
        ({"caBundle": "-----BEGIN"}, 501),
        ({"volumeMounts": [{}]}, 501),
    ],
)
async def test_init_that_execd_cannot_do_is_refused_whole(
    box: Box, fields: dict[str, Any], http_status: int
) -> None:
    answer = await init(box, **{"envVars": {"A": "1"}, **fields})
    assert (answer.http_status, answer.json()["code"]) == (http_status, http_status)
    assert (await box.get("/envs")).json() == {"E2B_SANDBOX": "true"}


async def test_init_needs_the_token_and_never_changes_it(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    box = Box(await serve(dialect=E2B, token_sha256=TOKEN_SHA256))
    assert (await init(box)).http_status == 401
    for access_token in (None, "", TOKEN):
        answer = await init(box, WITH_TOKEN, accessToken=access_token)
        assert answer.http_status == 204
        assert (await box.get("/envs")).http_status == 401
        assert (await box.get("/envs", WITH_TOKEN)).http_status == 200
    assert (await init(box, WITH_TOKEN, accessToken="new")).http_status == 400
    assert (await box.get("/envs", WITH_TOKEN)).http_status == 200
