"""The command line: ``execd serve``. The options come from the table in ``config``."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, get_origin

import click

from execd import __version__, config

if TYPE_CHECKING:
    from collections.abc import Iterator


def _options(command: click.Command) -> click.Command:
    """Add one option for each setting. click only splits the words: ``config.load`` checks all
    rules."""
    for name, setting in config.descriptions().items():
        default = "" if setting.default == "none" else f" [default: {setting.default}]"
        command.params.append(
            click.Option(
                [config.flag(name)],
                multiple=get_origin(setting.annotation) is tuple,
                help=f"{setting.meaning.replace('`', '')}{default}"
                f" [env: {config.environment_name(name)}]",
            )
        )
    return command


@click.group(context_settings={"max_content_width": 120})
@click.version_option(__version__, prog_name="execd")
def cli() -> None:
    """execd runs commands and moves files inside a sandbox pod."""


@_options
@cli.command()
def serve(**flags: object) -> None:
    """Serve until SIGTERM."""
    try:
        settings = config.load(flags, os.environ)
    except config.ConfigError as error:
        raise click.UsageError(str(error)) from None  # exit code 2
    # Imported here, so that --help does not pay for the server's imports.
    with _no_certificates():
        from execd.server import serve as run
    run(settings)


@contextlib.contextmanager
def _no_certificates() -> Iterator[None]:
    """Hide the machine's CA bundle. aiohttp's client loads the bundle at import, for 40 ms and 2
    MB, and execd connects to nobody."""
    nowhere = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
    before = {name: os.environ.get(name) for name in nowhere}
    os.environ.update(nowhere)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main() -> None:
    cli(prog_name="execd")
