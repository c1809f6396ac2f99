"""``mcp``: the tools of the sandbox for programs that speak the Model Context Protocol."""

from __future__ import annotations

import ipaddress
import os
import signal
from typing import TYPE_CHECKING

import click

from execd_client.cli.connection import Settings, with_options

if TYPE_CHECKING:
    from typing import Any

NOT_INSTALLED = os.EX_UNAVAILABLE
"""The exit code without the extra ``mcp``: 69, as in sysexits.h for a missing program."""
PORT = 8765


@click.command()
@click.option(
    "--transport",
    type=click.Choice(["stdio", "streamable-http"]),
    default="stdio",
    show_default=True,
    help="stdio: for the program that starts execctl.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="For streamable-http.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option(
    "--bearer-token",
    envvar="EXECCTL_MCP_TOKEN",
    metavar="TOKEN",
    help="Callers over HTTP must send this token (EXECCTL_MCP_TOKEN).",
)
@click.option(
    "--session",
    default="mcp",
    show_default=True,
    metavar="ID",
    help="The Python session of run_python.",
)
@with_options
@click.pass_context
def mcp(
    context: click.Context,
    /,
    transport: str,
    host: str,
    port: int,
    bearer_token: str | None,
    session: str,
    **options: Any,
) -> None:
    """Offer the sandbox as tools to a model (Model Context Protocol).

    The exit code is 69 without the extra `mcp` of the package."""
    sandbox = Settings(**options).over(context.obj or Settings()).connect_async()
    if transport != "stdio" and bearer_token is None and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host}: others could use the sandbox; set --bearer-token, or use 127.0.0.1"
        )
    try:
        from execd_client.mcp_server import serving
    except ModuleNotFoundError as missing:
        click.echo(
            f"execctl: the package {missing.name} is missing. Install the tools with\n"
            "    pip install 'execd-client[mcp]'",
            err=True,
        )
        context.exit(NOT_INSTALLED)
    try:
        if transport == "stdio":
            serving.serve_stdio(sandbox, session)
        else:
            serving.serve_http(sandbox, session, host, port, bearer_token)
    except KeyboardInterrupt:
        context.exit(128 + signal.SIGINT)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


COMMANDS = [mcp]
