from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from execd.api.probes.probes import public_variables
from execd.engine.executions import command, default_shell
from tests.api.conftest import JSON, request_bytes, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.api.conftest import Wire


async def test_draining_daemon_is_alive_and_not_ready(own_wire: Wire) -> None:
    await own_wire.engine.drain()
    answers = {
        path: await own_wire.request("GET", path)
        for path in ("/", "/healthz", "/readyz", "/v1/health")
    }
    assert {path: answer.http_status for path, answer in answers.items()} == {
        "/": 200,
        "/healthz": 200,
        "/readyz": 503,
        "/v1/health": 503,
    }
    assert answers["/readyz"].json() == {"status": "unavailable", "cause": "draining"}
    assert answers["/v1/health"].json() == {
        "code": "UNAVAILABLE",
        "message": "draining; use another sandbox",
    }


@pytest.mark.parametrize("flaw", ["missing", "not executable", "of another machine"])
async def test_daemon_whose_shell_cannot_run_is_not_ready_until_the_repair(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    shell = tmp_path / "sh"
    for module in command, default_shell:
        monkeypatch.setattr(module, "SHELL", (str(shell), "-c"))
    if flaw != "missing":
        shell.write_bytes(b"\x7fELF of nothing")
        shell.chmod(0o755 if flaw == "of another machine" else 0o644)
    assert (await wire.execute("echo $((1))")).json()["exit_reason"] == "spawn_failed"
    ready = await wire.request("GET", "/readyz")
    assert (ready.http_status, ready.json()) == (503, {"status": "unavailable", "cause": "shell"})
    health = await wire.request("GET", "/v1/health")
    assert health.http_status == 503
    assert health.json()["message"].startswith("commands have no shell: ")
    assert (await wire.request("GET", "/")).http_status == 200
    shell.unlink(missing_ok=True)
    shell.symlink_to("/bin/sh")
    assert (await wire.request("GET", "/readyz")).json() == {"status": "ok"}
    assert (await wire.execute("echo $((1))")).json()["stdout"] == "1\n"


async def test_capabilities_tell_a_name_that_is_not_utf_8(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire.engine._parts.environment, "passed", ("A", "B\udcff"))
    answer = await wire.request("GET", "/v1/capabilities")
    assert answer.http_status == 200
    assert answer.json()["environment"]["passed"] == ["A", "B\ufffd"]


async def test_stats_are_the_engines(wire: Wire) -> None:
    body = (await wire.request("GET", "/v1/stats")).json()
    found = msgspec.to_builtins(wire.engine.stats())
    assert body.keys() == found.keys()
    for name in ("executions", "sessions", "warden"):
        assert body[name] == found[name]


async def test_traffic_is_counted_in_both_directions(own_wire: Wire) -> None:
    counters = own_wire.engine.counters
    assert (counters.received_bytes, counters.sent_bytes) == (0, 0)
    request = request_bytes("GET", "/healthz")
    connection = await own_wire.connect()
    await connection.send(request)
    answer = await connection.receive()
    await wait_until(lambda: counters.sent_bytes, "the reply is over")
    assert counters.received_bytes == len(request)
    head = sum(len(f"{name}: {value}\r\n") for name, value in answer.headers.items())
    assert counters.sent_bytes == len("HTTP/1.1 200 OK\r\n") + head + 2 + len(answer.body)


async def test_error_replies_are_counted_by_code(own_wire: Wire) -> None:
    await own_wire.request("GET", "/v1/executions/nothing")
    await own_wire.request("POST", "/v1/executions", b"{}", JSON)
    for path in ("/no/such/route", "/v1/no/such/route"):
        await own_wire.request("GET", path)
    for path in ("/execute", "/v1/fs/mkdir"):
        await own_wire.request("DELETE", path)
    counts = own_wire.engine.counters.error_replies
    assert {code: n for code, n in counts.items() if n} == {
        "NOT_FOUND": 3,
        "INVALID_ARGUMENT": 1,
        "METHOD_NOT_ALLOWED": 2,
    }


async def test_capabilities_are_the_engines(wire: Wire) -> None:
    assert (await wire.request("GET", "/v1/capabilities")).json() == wire.engine.capabilities()


async def test_metadata_shows_the_sandboxs_variables(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_NAME", "box-1")
    monkeypatch.setenv("SANDBOX_API_TOKEN", "hidden")
    environment = (await wire.request("GET", "/v1/metadata")).json()["env"]
    assert environment["SANDBOX_NAME"] == "box-1"
    assert "SANDBOX_API_TOKEN" not in environment


def test_variables_that_may_be_secret_are_left_out() -> None:
    secret = [
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "CREDENTIAL",
        "KEY",
        "AUTH",
        "BEARER",
        "PRIVATE",
        "CERT",
        "my_key",
    ]
    environment = {f"SANDBOX_{word}": "x" for word in secret} | {
        "HOME": "/",
        "SANDBOX_ID": "\udcff",
    }
    assert public_variables(environment) == {"SANDBOX_ID": "\ufffd"}
