"""``execctl mcp`` as a process, called with the SDK's own client over both transports."""

from __future__ import annotations

import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.client.cli.conftest import EXECCTL
from tests.conformance.target import wait_until
from tests.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from mcp.types import CallToolResult

    from tests.conformance.target import Target

    Connect = Callable[[], AbstractAsyncContextManager[Client]]

CALL_SECONDS = 120.0
START_SECONDS = 120.0
"""The SDK's imports alone take seconds of CPU time, and 30 s on a busy machine."""
TOKEN = "token-of-the-tools"


def variables(target: Target) -> dict[str, str]:
    return {**os.environ, "EXECD_URL": target.url}


def stdio(target: Target, *options: str) -> Client:
    """A client that starts ``execctl mcp``."""
    command = StdioServerParameters(
        command=str(EXECCTL), args=["mcp", *options], env=variables(target)
    )
    return Client(command, read_timeout_seconds=CALL_SECONDS)


@pytest.fixture(scope="module")
def http_server(
    target: Target, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """The URL and the log of ``execctl mcp --transport streamable-http``."""
    port = free_port()
    log = tmp_path_factory.mktemp("mcp") / "log"
    arguments = ["mcp", "--transport=streamable-http", f"--port={port}"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [EXECCTL, *arguments],
            stderr=stderr,
            env={**variables(target), "EXECCTL_MCP_TOKEN": TOKEN},
        )
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        wait_until(lambda: answers(url), START_SECONDS, f"the server answers: {log.read_text()}")
        yield url, log
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 401
    except httpx2.TransportError:
        return False


@asynccontextmanager
async def http(url: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=CALL_SECONDS) as carrier,
        Client(
            streamable_http_client(url, http_client=carrier), read_timeout_seconds=CALL_SECONDS
        ) as client,
    ):
        yield client


@pytest.fixture(params=["stdio", "streamable-http"])
def connect(request: pytest.FixtureRequest, target: Target) -> Connect:
    """Opens a client, over each transport."""
    if request.param == "stdio":
        return lambda: stdio(target)
    url, _ = request.getfixturevalue("http_server")
    return lambda: http(url)


@pytest.fixture
def tools(http_server: tuple[str, Path]) -> Connect:
    """Opens a client over HTTP: for tests in which the transport plays no part. Over stdio each
    client starts a server, which imports the SDK."""
    url, _ = http_server
    return lambda: http(url)


@pytest.fixture
def own_server(target: Target) -> Connect:
    """Opens a client over stdio, whose server ends with the client."""
    return lambda: stdio(target)


async def call(client: Client, tool: str, /, **arguments: Any) -> str:
    """The text of an answer, which is no error."""
    found = await client.call_tool(tool, arguments)
    assert not found.is_error, text(found)
    return text(found)


async def refused(client: Client, tool: str, /, **arguments: Any) -> str:
    """The text of an error."""
    found = await client.call_tool(tool, arguments)
    assert found.is_error
    return text(found)


def text(found: CallToolResult) -> str:
    return "\n".join(part.text for part in found.content if part.type == "text")


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, check=False, **options
    )
