"""``execctl mcp`` as a program: the extra, the addresses, the end."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest
from mcp import MCPError

from tests.client.cli.conftest import EXECCTL
from tests.client.mcp_server.conftest import START_SECONDS, call, refused, run, stdio, variables
from tests.conformance.target import wait_until
from tests.free_port import free_port
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    from execd_client import Execd
    from tests.client.mcp_server.conftest import Connect
    from tests.conformance.target import Target

WITHOUT_THE_SDK = (
    "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp']\n"
    "from execd_client.cli import main; main()"
)
LOADED = (
    "import sys; from execd_client.cli import program\n"
    "print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'pydantic')])"
)


def test_without_the_extra_execctl_says_how_to_install_it() -> None:
    done = run([sys.executable, "-c", WITHOUT_THE_SDK], stdin=subprocess.DEVNULL)
    assert done.returncode == 69
    assert "pip install 'execd-client[mcp]'" in done.stderr


def test_other_commands_do_not_load_the_sdk() -> None:
    assert run([sys.executable, "-c", LOADED]).stdout == "[]\n"


def test_callers_over_http_need_the_token(http_server: tuple[str, Path]) -> None:
    url, _ = http_server
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refusal = httpx2.post(url, json={}, headers=headers)
        assert refusal.status_code == 401
        assert refusal.headers["www-authenticate"] == "Bearer"


def test_an_address_for_others_needs_a_token() -> None:
    done = run([str(EXECCTL), "mcp", "--transport=streamable-http", "--host=0.0.0.0"])
    assert done.returncode == 2
    assert "--bearer-token" in done.stderr


def test_pages_of_other_sites_cannot_use_the_server(target: Target, tmp_path: Path) -> None:
    port = free_port()
    command = [EXECCTL, "mcp", "--transport=streamable-http", f"--port={port}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=variables(target))
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        wait_until(
            lambda: _posted(url, "127.0.0.1") not in (None, 421),
            START_SECONDS,
            "the server answers",
        )
        assert _posted(url, "evil.example") == 421
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    said = (tmp_path / "log").read_text()
    assert f"execctl: MCP at {url}" in said
    assert "Traceback" not in said


def test_the_server_tells_its_address_only_once_the_address_is_bound(target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        command = [str(EXECCTL), "mcp", "--transport=streamable-http", f"--port={port}"]
        done = run(command, env=variables(target))
    assert done.returncode != 0
    assert "MCP at" not in done.stderr
    assert "address already in use" in done.stderr


def _posted(url: str, host: str) -> int | None:
    headers = {"Host": f"{host}:{httpx2.URL(url).port}"}
    try:
        return httpx2.post(url, json={}, headers=headers, timeout=5).status_code
    except httpx2.TransportError:
        return None


async def test_the_session_of_python_outlives_the_client(target: Target, sandbox: Execd) -> None:
    async with stdio(target, "--session=shared") as client:
        await call(client, "run_python", code="x = 41")
    async with stdio(target, "--session=shared") as client:
        assert "value:\n42" in await call(client, "run_python", code="x + 1")
    assert sandbox.sessions.get("shared").run("x").text == "41"


async def test_a_sandbox_that_does_not_answer_is_an_error_with_a_next_step(
    target: Target,
) -> None:
    nowhere = f"--url=http://127.0.0.1:{free_port()}"
    async with stdio(target, nowhere, "--retry-seconds=0.2") as client:
        assert "Next: execd does not answer" in await refused(client, "run_command", command="ls")


async def test_a_program_that_runs_when_the_client_leaves_is_ended(
    own_server: Connect, sandbox: Execd
) -> None:
    async with own_server() as client:
        arguments = {"command": "touch left; exec sleep 1002", "wait_seconds": 600}
        waiting = asyncio.ensure_future(client.call_tool("run_command", arguments))
        await wait_until_async(lambda: sandbox.files.exists("left"), START_SECONDS)
    with pytest.raises(MCPError):
        await waiting
    (job,) = [job for job in sandbox.list() if "sleep 1002" in (job.command or "")]
    assert sandbox.handle(job.id).wait(60).exit_reason == "canceled"
