"""What all commands share: where execd is, how errors are told, how replies are printed."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

import execd_client
from execd_client import AsyncExecd, Execd
from execd_client.cli import REFUSED
from execd_client.cli.output import failed, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
Client = TypeVar("Client", Execd, AsyncExecd)
DEFAULT_URL = "http://127.0.0.1:8888"
RETRY_SECONDS = 10.0


@dataclass(frozen=True)
class Settings:
    url: str | None = None
    token: str | None = None
    headers: tuple[str, ...] = ()
    json: bool = False
    retry_seconds: float | None = None

    def over(self, other: Settings) -> Settings:
        """These settings, and the other ones where these say nothing."""
        return replace(
            self,
            url=self.url or other.url,
            token=self.token or other.token,
            headers=other.headers + self.headers,
            json=self.json or other.json,
            retry_seconds=other.retry_seconds if self.retry_seconds is None else self.retry_seconds,
        )

    def connect(self) -> Execd:
        return self._connected(Execd)

    def connect_async(self) -> AsyncExecd:
        return self._connected(AsyncExecd)

    def _connected(self, kind: type[Client]) -> Client:
        headers = {}
        for header in self.headers:
            name, colon, value = (part.strip() for part in header.partition(":"))
            if not colon or " " in name or not name.isascii():
                raise click.UsageError(f"--header: {header!r} is not NAME:VALUE")
            headers[name] = value
        seconds = RETRY_SECONDS if self.retry_seconds is None else self.retry_seconds
        try:
            return kind(self.url or DEFAULT_URL, self.token, headers, retry_seconds=seconds)
        except ValueError as error:
            raise click.UsageError(str(error)) from None


OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--url", metavar="URL", help=f"Address of execd (EXECD_URL; {DEFAULT_URL})."),
    click.option("--token", metavar="TOKEN", help="Access token (EXECD_TOKEN)."),
    click.option(
        "--header", "headers", metavar="NAME:VALUE", multiple=True, help="Send a header as well."
    ),
    click.option("--json", is_flag=True, help="Print JSON."),
    click.option(
        "--retry-seconds",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help=f"Give up after this time without an answer ({RETRY_SECONDS:g}).",
    ),
]


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        function = option(function)
    return function


class Context:
    """The first parameter of each command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # A pipe has no width: there no cell is folded.
        self.console = Console(width=None if sys.stdout.isatty() else 10_000)
        self.sandbox: Execd = settings.connect()

    def print_json(self, value: Any) -> None:
        click.echo(msgspec.json.encode(value).decode())

    def print_table(self, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        """A table for people; without colours and borders where nobody looks."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, column in enumerate(columns):
            table.add_column(column, overflow="fold", no_wrap=number == 0)
        for row in rows:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        self.console.print(table)


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command with a connection. Errors of the client end the program with 125 and the next
    step, failures on this side with 125, and a reader that has gone with 141. The connection is
    closed at the end."""

    @with_options
    @click.pass_context
    @functools.wraps(function)
    def command(click_context: click.Context, /, **options: Any) -> None:
        names = ("url", "token", "headers", "json", "retry_seconds")
        own = Settings(**{name: options.pop(name) for name in names})
        context = Context(own.over(click_context.obj or Settings()))
        with context.sandbox:
            try:
                exit_code = function(context, **options) or 0
                sys.stdout.flush()
            except execd_client.ExecdError as error:
                tell(f"{error.message}{next_step(error, context)}")
                exit_code = REFUSED
            except (OSError, UnicodeError) as error:
                exit_code = failed(error)
        sys.exit(exit_code)

    return command


def next_step(error: execd_client.ExecdError, context: Context) -> str:
    """What to do about an error, as a second line; empty where the message says it."""
    url = context.settings.url or DEFAULT_URL
    match error:
        case execd_client.Unreachable():
            step = f"is execd running at {url}? Give the address with --url or EXECD_URL"
        case execd_client.Unauthenticated():
            step = "give the token with --token or EXECD_TOKEN"
        case execd_client.EpisodeEnded():
            step = "somebody has reset the sandbox; begin again"
        case execd_client.ConnectionLost():
            step = "`execctl ps --all` shows what has run; `execctl doctor` looks at the connection"
        case execd_client.ResourceExhausted():
            step = "repeat the command later; `execctl stats` shows what is full"
        case execd_client.Unavailable():
            step = "execd is stopping or has no warden; `execctl doctor` tells more"
        case execd_client.NotFound():
            step = "`execctl ps --all`, `execctl sessions` and `execctl ls` show what there is"
        case execd_client.Internal():
            step = "execd's log has the cause under this id"
        case _:
            return ""
    return f"\n  next: {step}"


def remote(path: str) -> str:
    """A remote path, with or without the colon."""
    return path.removeprefix(":") or "."
