"""Commands: events, exit codes, timeouts, background, logs, interrupts."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from execd.model import ExitReason, State
from execd_opensandbox.event_frames import PING_SECONDS
from execd_opensandbox.settings import Settings
from tests.api.conftest import JSON, request_bytes, wait_until
from tests.api.v1.test_executions import open_gate

if TYPE_CHECKING:
    from pathlib import Path

    from wings.opensandbox.tests.conftest import OpenSandbox, Serve


async def test_line_ends_are_stripped_for_clients_of_1_0(serve_opensandbox: Serve) -> None:
    opensandbox = await serve_opensandbox(wing_settings=Settings(line_ends="strip"))
    ran = await opensandbox.run(r"printf 'a\n\nb'")
    assert ran.texts("stdout") == ["a", "\n", "b"]


async def test_bash_runs_the_command(opensandbox: OpenSandbox) -> None:
    assert (await opensandbox.run("[[ a == a* ]] && echo ${BASH_VERSION:+bash}")).stdout == "bash\n"


async def test_commands_are_told_the_port_and_the_file_of_variables(
    opensandbox: OpenSandbox, tmp_path: str
) -> None:
    ran = await opensandbox.run("echo $JUPYTER_PORT $EXECD_ENVS")
    assert ran.stdout == f"{opensandbox.port} /tmp/.opensandbox.env\n"


async def test_variables_of_the_file_reach_the_next_command(
    serve_opensandbox: Serve, tmp_path: object
) -> None:
    opensandbox = await serve_opensandbox(wing_settings=Settings(env_file=f"{tmp_path}/env"))
    written = await opensandbox.run("""printf '%s\\n' "K='a b'" 'L="x\\ny"' >> "$EXECD_ENVS" """)
    assert written.exit_code == 0
    assert (await opensandbox.run('echo "$K|$L"')).stdout == "a b|x\ny\n"
    assert (await opensandbox.run('echo "$K"', envs={"K": "mine"})).stdout == "mine\n"


async def test_search_path_of_the_file_holds_for_programs_and_not_for_the_shell(
    serve_opensandbox: Serve, tmp_path: Path
) -> None:
    env_file = tmp_path / "env"
    env_file.write_text("PATH='/nowhere:$PATH'\n")
    opensandbox = await serve_opensandbox(wing_settings=Settings(env_file=str(env_file)))
    for background in (False, True):
        assert (await opensandbox.run("echo $PATH", background=background)).exit_code == 0
    ran = await opensandbox.run("echo $PATH; echo $0; env")
    assert (ran.stdout, ran.exit_code) == ("/nowhere:$PATH\nbash\n", 127)
    session = (await opensandbox.post("/session", {}))["session_id"]
    ran = await opensandbox.stream(f"/session/{session}/run", {"command": "echo $PATH $0; env"})
    assert (ran.texts("stdout")[0], ran.exit_code) == ("/nowhere:$PATH bash\n", 127)


async def test_silent_stream_gets_pings(opensandbox: OpenSandbox) -> None:
    os.mkfifo(opensandbox.base_dir / "gate")
    body, begun = json.dumps({"command": "cat gate"}), time.monotonic()
    came_after_seconds = []
    async with (
        asyncio.timeout(20),
        opensandbox.client.post("/command", data=body, headers=JSON) as response,
    ):
        async for line in response.content:
            if b'"type":"ping"' in line:
                came_after_seconds.append(time.monotonic() - begun)
                if len(came_after_seconds) == 2:
                    await open_gate(opensandbox)
    assert len(came_after_seconds) >= 2, "one at the beginning"
    assert came_after_seconds[1] > 0.9 * PING_SECONDS


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({}, "exactly one of command and argv"),
        ({"command": "a", "argv": ["b"]}, "exactly one of command and argv"),
        ({"command": " "}, "command: empty"),
        ({"argv": []}, "argv: the program's name is missing"),
        ({"command": "a", "timeout": -1}, "timeout"),
        ({"command": "a", "gid": 1}, "gid: needs uid"),
        ({"command": "a", "envs": {"": "x"}}, "env"),
        ({"command": 1}, "command: expected `str | null`"),
    ],
)
async def test_malformed_body_is_400_with_the_rule(
    opensandbox: OpenSandbox, body: object, rule: str
) -> None:
    http_status, code, message = await opensandbox.refused("POST", "/command", body)
    assert (http_status, code) == (400, "INVALID_REQUEST_BODY")
    assert rule in message


async def test_unknown_fields_are_ignored_as_opensandbox_ignores_them(
    opensandbox: OpenSandbox,
) -> None:
    assert (await opensandbox.run("true", of_a_later_version=1)).exit_code == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="about a root daemon, and this user is not")
async def test_other_uid_of_a_root_daemon(opensandbox: OpenSandbox) -> None:
    ran = await opensandbox.run("id -u; id -g", cwd="/", uid=1234, gid=5678)
    assert ran.stdout == "1234\n5678\n"


async def test_background_argv_has_both_streams_in_its_log(opensandbox: OpenSandbox) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2"]
    started = await opensandbox.stream("/command", {"argv": argv, "background": True})
    await opensandbox.engine.get(started.id).wait()
    answer = await opensandbox.request("GET", f"/command/{started.id}/logs")
    assert answer.body == b"out\nerr\n"


@pytest.mark.parametrize(
    ("command", "log"),
    [
        ("if then", "bash: -c: line 1: syntax error"),
        ("echo $LINENO $0\nmissing-program", "1 bash\nbash: line 2: missing-program"),
    ],
)
async def test_background_command_has_the_messages_of_its_shell_in_its_log(
    opensandbox: OpenSandbox, command: str, log: str
) -> None:
    started = await opensandbox.run(command, background=True)
    await opensandbox.engine.get(started.id).wait()
    answer = await opensandbox.request("GET", f"/command/{started.id}/logs")
    assert answer.body.decode().startswith(log)
    state = await opensandbox.get(f"/command/status/{started.id}")
    assert state["content"] == command


async def test_log_of_a_command_grows_after_its_end_and_cuts_no_character(
    opensandbox: OpenSandbox,
) -> None:
    # <>: a writer that has not closed the first gate yet would be the end of file at the second.
    child = r"{ read line <> gate; printf '\303'; read line <> gate; printf '\251\303'; }"
    started = await opensandbox.run(f"mkfifo gate; {child} & echo up", background=True)
    execution = opensandbox.engine.get(started.id)
    await execution.wait()
    cursor, log = 0, b""
    for size_bytes in (3, 4, 6):
        if size_bytes > 3:
            await open_gate(opensandbox, "\n")
        await wait_until(
            lambda size=size_bytes: (
                execution.view.total_bytes("stdout") == size
                and execution.output.streams["stdout"].is_held == (size < 6)
            ),
            "the output has come",
        )
        answer = await opensandbox.request("GET", f"/command/{started.id}/logs?cursor={cursor}")
        log += answer.body
        cursor = int(answer.headers["EXECD-COMMANDS-TAIL-CURSOR"])
        assert cursor == len(log) == (3 if size_bytes < 6 else 6)
    assert log == "up\né".encode() + b"\xc3"


async def test_log_has_a_line_for_the_bytes_that_were_not_kept(serve_opensandbox: Serve) -> None:
    opensandbox = await serve_opensandbox(stream_memory_bytes=4096, log_bytes=0)
    started = await opensandbox.run("seq 10000", background=True)
    execution = opensandbox.engine.get(started.id)
    await execution.wait()
    whole = "".join(f"{number}\n" for number in range(1, 10_001)).encode()
    hole = execution.output.hole("stdout")
    assert hole is not None
    first, last = hole
    path = f"/command/{started.id}/logs"
    answer = await opensandbox.request("GET", path)
    assert answer.body == whole[:first]
    assert answer.headers["EXECD-COMMANDS-TAIL-CURSOR"] == str(first)
    for cursor in (first, last - 1):
        answer = await opensandbox.request("GET", f"{path}?cursor={cursor}")
        marker = f"[execd: {last - cursor} bytes were not kept]\n".encode()
        assert answer.body == marker + whole[last:]
        assert answer.headers["EXECD-COMMANDS-TAIL-CURSOR"] == str(len(whole))


async def test_long_background_command_runs(opensandbox: OpenSandbox) -> None:
    started = await opensandbox.run(f"A={'x' * 200_000}; echo ${{#A}}", background=True)
    await opensandbox.engine.get(started.id).wait()
    answer = await opensandbox.request("GET", f"/command/{started.id}/logs")
    assert answer.body == b"200000\n"


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "9" * 30])
async def test_cursor_that_is_no_offset_is_refused(opensandbox: OpenSandbox, cursor: str) -> None:
    started = await opensandbox.run("true", background=True)
    path = f"/command/{started.id}/logs?cursor={cursor}"
    assert (await opensandbox.refused("GET", path))[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/command/status/no"), ("GET", "/command/no/logs"), ("DELETE", "/command?id=no")],
)
async def test_unknown_id_is_404(opensandbox: OpenSandbox, method: str, path: str) -> None:
    assert (await opensandbox.refused(method, path))[:2] == (404, "CONTEXT_NOT_FOUND")


async def test_interrupt_without_an_id_names_the_parameter(opensandbox: OpenSandbox) -> None:
    refusal = await opensandbox.refused("DELETE", "/command")
    assert refusal == (400, "MISSING_QUERY", "missing query parameter 'id'")


async def _leave(opensandbox: OpenSandbox) -> str:
    """Start a command, hang up after the first line, and return the id."""
    connection = await opensandbox.connect()
    body = json.dumps({"command": "echo here; sleep 1000"}).encode()
    await connection.send(request_bytes("POST", "/command", body, JSON))
    async with asyncio.timeout(10):
        await connection.reader.readuntil(b'"here')
    [execution] = opensandbox.live()
    await connection.reset()
    return execution.id


async def test_leaving_ends_the_command(opensandbox: OpenSandbox) -> None:
    execution = opensandbox.engine.get(await _leave(opensandbox))
    result = await execution.wait()
    assert result.exit_reason is ExitReason.CLIENT_DISCONNECTED


async def test_leaving_ends_nothing_where_the_setting_says_so(serve_opensandbox: Serve) -> None:
    opensandbox = await serve_opensandbox(on_disconnect="detach")
    execution = opensandbox.engine.get(await _leave(opensandbox))
    await wait_until(lambda: not execution.is_read, "the server has noticed")
    assert execution.state is State.RUNNING


async def test_command_is_listed_as_one_of_this_dialect(opensandbox: OpenSandbox) -> None:
    ran = await opensandbox.run("true")
    [execution] = opensandbox.engine.list()[0]
    assert execution.id == ran.id
    assert execution.command.origin.dialect == "opensandbox"
