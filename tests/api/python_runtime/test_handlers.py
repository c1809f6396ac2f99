from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from execd.api.python_runtime.handlers import request_key, sandbox_timeout
from execd.engine.executions import command as commands
from tests.api.conftest import JSON, Wire, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]

SLEEP = "exec sleep 1000"


def execute_bytes(command: str, **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request_bytes(
        "POST", "/execute", json.dumps({"command": command}).encode(), JSON | named
    )


async def ran(wire: Wire, command: str, **fields: Any) -> dict[str, Any]:
    answer = await wire.execute(command, **fields)
    assert answer.http_status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


# --- replies


async def test_output_is_what_the_program_wrote(wire: Wire) -> None:
    body = await ran(wire, r"printf 'a\r\nb\rc\000d'; printf '\377x' >&2")
    assert (body["stdout"], body["stderr"]) == ("a\r\nb\rc\0d", "\ufffdx")


async def test_command_that_cannot_be_started_is_a_reply(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SHELL", ("/no/such/shell", "-c"))
    body = await ran(wire, "echo a")
    assert (body["stdout"], body["exit_code"], body["exit_reason"]) == ("", 1, "spawn_failed")
    assert body["stderr"].startswith("Failed to execute command: ")


async def test_command_with_a_nul_fails_and_runs_nothing(wire: Wire) -> None:
    for command in ("touch ran; echo a\0b", "touch ran; echo a\0b #" + "x" * 200_000):
        body = await ran(wire, command)
        assert (body["exit_code"], body["exit_reason"]) == (1, "spawn_failed")
        assert body["stderr"].startswith("Failed to execute command: ")
    assert not (wire.base_dir / "ran").exists()


# --- headers


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1.5", 1.5),
        (" 30 ", 30.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("0", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_sandbox_timeout_counts_if_it_is_a_positive_number(
    header: str | None, seconds: float | None
) -> None:
    assert sandbox_timeout(header) == seconds


async def test_sandbox_timeout_limits_the_run(wire: Wire) -> None:
    body = (await wire.execute(SLEEP, {"X-Sandbox-Timeout": "0.25"}, timeout_seconds=60)).json()
    assert (body["exit_code"], body["stderr"]) == (124, "Command timed out after 0.25 seconds")


async def test_sandbox_timeout_limits_the_wait_in_the_queue(serve: Serve) -> None:
    wire = await serve(max_running=1)
    busy = await wire.connect()
    await busy.send(execute_bytes(SLEEP))
    await wait_until(wire.live, "the first command runs")
    answer = await wire.execute("echo hi", {"X-Sandbox-Timeout": "0.25"})
    assert (answer.http_status, answer.headers["Retry-After"]) == (429, "1")
    assert list(answer.json()) == ["message"]


async def test_draining_daemon_takes_no_command(own_wire: Wire) -> None:
    await own_wire.engine.drain()
    answer = await own_wire.execute("echo hi")
    assert answer.http_status == 503
    assert list(answer.json()) == ["message"]


def test_request_key_tells_id_and_body_apart() -> None:
    keys = {
        request_key("1", b"2:x"),
        request_key("12", b":x"),
        request_key("1", b"x"),
        request_key("\udcff", b"x"),
    }
    assert len(keys) == 4
    assert None not in keys
    assert request_key("1", b"x") == request_key("1", b"x")
    assert request_key(None, b"x") is None


# --- lost readers


async def test_client_that_hangs_up_leaves_its_command_to_the_other_reader(wire: Wire) -> None:
    os.mkfifo(wire.base_dir / "gate")
    first, second = await wire.connect(), await wire.connect()
    await first.send(execute_bytes("cat gate", X_Request_ID="feedface"))
    await second.send(execute_bytes("cat gate", X_Request_ID="feedface"))
    await wait_until(lambda: [e.readers.count for e in wire.live()] == [2], "both read")
    await first.close()
    await wait_until(lambda: [e.readers.count for e in wire.live()] == [1], "one has left")
    (wire.base_dir / "gate").write_text("through")
    assert (await second.receive()).json()["stdout"] == "through"


async def test_client_that_hangs_up_in_the_queue_gives_up_its_place(serve: Serve) -> None:
    wire = await serve(max_running=1)
    busy, waiting = await wire.connect(), await wire.connect()
    await busy.send(execute_bytes(SLEEP))
    await wait_until(lambda: len(wire.live()) == 1, "one runs")
    await waiting.send(execute_bytes("touch never"))
    await wait_until(lambda: len(wire.live()) == 2, "one waits")
    await waiting.close()
    await wait_until(lambda: len(wire.live()) == 1, "nobody waits")
    await busy.close()
    await wait_until(lambda: not wire.live(), "nobody runs")
    assert not (wire.base_dir / "never").exists()


# --- heartbeat


async def test_heartbeat_sends_headers_early_and_spaces_before_the_reply(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.05)
    os.mkfifo(wire.base_dir / "gate")
    connection = await wire.connect()
    await connection.send(execute_bytes("cat gate"))
    async with asyncio.timeout(10):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert await connection.reader.readuntil(b" \r\n") == b"1\r\n \r\n"
        assert await connection.reader.readuntil(b" \r\n") == b"1\r\n \r\n"
        (wire.base_dir / "gate").write_text("through")
        rest = await connection.reader.readuntil(b"0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Transfer-Encoding: chunked" in head
    assert b'"stdout":"through"' in rest
    await connection.send(request_bytes("GET", "/"))
    assert (await connection.receive()).http_status == 200


async def test_quick_command_is_answered_without_a_heartbeat(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=30.0)
    answer = await wire.execute("echo hi")
    assert int(answer.headers["Content-Length"]) == len(answer.body)


async def test_heartbeat_spares_clients_that_know_no_chunks(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.01)
    connection = await wire.connect()
    await connection.send(execute_bytes("sleep 0.1; echo hi").replace(b"HTTP/1.1", b"HTTP/1.0"))
    answer = await connection.receive()
    assert "Transfer-Encoding" not in answer.headers
    assert answer.body.startswith(b'{"stdout":"hi\\n"')


async def test_client_that_hangs_up_between_heartbeats_ends_its_command(serve: Serve) -> None:
    wire = await serve(execute_heartbeat_seconds=0.05)
    connection = await wire.connect()
    await connection.send(execute_bytes(SLEEP))
    async with asyncio.timeout(10):
        await connection.reader.readuntil(b" \r\n")
        (execution,) = wire.live()
        await connection.close()
        assert (await execution.wait()).exit_reason == "client_disconnected"
