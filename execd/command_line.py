"""The command line as click reads it: ``--help``, ``--version``, and the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from execd import __version__, config

if TYPE_CHECKING:
    from collections.abc import Callable


def make_group(serve: Callable[[dict[str, object]], None]) -> click.Group:
    """Return the commands. ``serve`` gets the flags, without a check of their values."""

    @click.group(context_settings={"max_content_width": 120})
    @click.version_option(__version__, prog_name="execd")
    def cli() -> None:
        """execd runs commands and moves files inside a sandbox pod."""

    @_options
    @cli.command("serve")
    def serve_command(**flags: object) -> None:
        """Serve until SIGTERM."""
        serve(flags)

    return cli


def _options(command: click.Command) -> click.Command:
    """Add one option for each setting. click only splits the words: ``config.load`` checks all
    rules."""
    for name, setting in config.descriptions().items():
        default = "" if setting.default == "none" else f" [default: {setting.default}]"
        command.params.append(
            click.Option(
                [config.flag(name)],
                multiple=name in config.REPEATABLE,
                help=f"{setting.meaning.replace('`', '')}{default}"
                f" [env: {config.environment_name(name)}]",
            )
        )
    older = {name: f"--dialect {dialect}=PORT" for name, dialect in config.PORT_FLAGS.items()}
    for name, meaning in {**older, **config.DIALECT_FLAGS}.items():
        variable = config.environment_name(name)
        shown = "" if variable == meaning else f" [env: {variable}]"
        command.params.append(
            click.Option([config.flag(name)], help=f"The same as {meaning}.{shown}")
        )
    return command
