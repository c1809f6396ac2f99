"""The server, and its two transports."""

import hmac
import sys
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer

from execd_client import AsyncExecd
from execd_client.mcp_server.checkpoint_tools import CheckpointTools
from execd_client.mcp_server.file_tools import FileTools
from execd_client.mcp_server.tools import Tools
from execd_client.version import __version__

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp, Receive, Scope, Send

INSTRUCTIONS = """\
A Linux sandbox. run_command runs shell commands, run_python runs Python whose variables stay,
start_job runs programs in the background; the tools for files read and write the same files.
Relative paths begin at the base directory, where commands start. Answers are bounded: where
something is left out, the answer says so and how to get the rest."""
PATH = "/mcp"


def server(sandbox: AsyncExecd, session_id: str) -> MCPServer[None]:
    """A server with the tools of the sandbox. The sandbox is closed at the server's end.

    Example:
        server(AsyncExecd("http://127.0.0.1:8888"), "mcp").run()
    """
    made: MCPServer[None] = MCPServer(
        "execd",
        title="Sandbox",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
    )
    for tools in (Tools(sandbox, session_id), FileTools(sandbox), CheckpointTools(sandbox)):
        for tool in tools.registered():
            made.add_tool(tool, structured_output=False)
    return made


def serve_stdio(sandbox: AsyncExecd, session_id: str) -> None:
    """Serve the program at the other end of stdin and stdout, until stdin ends."""
    anyio.run(_serve_stdio, sandbox, session_id)


async def _serve_stdio(sandbox: AsyncExecd, session_id: str) -> None:
    async with sandbox:
        await server(sandbox, session_id).run_stdio_async()


def serve_http(
    sandbox: AsyncExecd, session_id: str, host: str, port: int, bearer_token: str | None
) -> None:
    """Serve streamable HTTP until SIGINT or SIGTERM."""
    anyio.run(_serve_http, sandbox, session_id, host, port, bearer_token)


async def _serve_http(
    sandbox: AsyncExecd, session_id: str, host: str, port: int, bearer_token: str | None
) -> None:
    async with sandbox:
        app: Any = server(sandbox, session_id).streamable_http_app(
            streamable_http_path=PATH, host=host
        )
        if bearer_token is not None:
            app = Guarded(app, bearer_token)
        config = uvicorn.Config(app, host=host, port=port, log_level="warning")
        await Server(config).serve()


class Server(uvicorn.Server):
    """Says where the server is, once the address is bound."""

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        await super().startup(sockets)
        if self.started:
            url = f"http://{self.config.host}:{self.config.port}{PATH}"
            print(f"execctl: MCP at {url}", file=sys.stderr, flush=True)


class Guarded:
    """An application that only callers with the bearer token reach (RFC 6750, 2.1)."""

    def __init__(self, app: "ASGIApp", bearer_token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + bearer_token.encode()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                challenge = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 401, "headers": challenge})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)
