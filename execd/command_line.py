"""The command line as click reads it: ``--help``, ``--version``, errors, and the settings in
words."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, get_type_hints

import click
import msgspec

from execd import __version__, config, dialects

if TYPE_CHECKING:
    from collections.abc import Callable


def make_group(serve: Callable[[dict[str, object]], None]) -> click.Group:
    """Return the commands. ``serve`` gets the flags, without a check of their values."""

    @click.group(context_settings={"max_content_width": 120})
    @click.version_option(__version__, prog_name="execd")
    def cli() -> None:
        """execd runs commands and moves files inside a sandbox pod."""

    @_options
    @click.option(
        "--detach",
        is_flag=True,
        help="Return when the daemon listens, for hooks that cannot leave a program in the "
        "background. The log goes to --log-fd, or nowhere.",
    )
    @cli.command("serve", options_metavar="[OPTIONS] [-- CMD ARG...]")
    def serve_command(**flags: object) -> None:
        """Serve until SIGTERM.

        With -- CMD ARG... also run the image's own program: with the container's input, output,
        variables and directory. CMD gets the signals of the container, and the daemon ends with
        CMD and with CMD's exit code.
        """
        serve(flags)

    return cli


def _options(command: click.Command) -> click.Command:
    """Add one option for each setting. click only splits the words: ``config.load`` checks all
    rules."""
    for name, setting in descriptions().items():
        default = "" if setting.default == "none" else f" [default: {setting.default}]"
        command.params.append(
            click.Option(
                [config.flag(name)],
                multiple=name in config.REPEATABLE,
                help=f"{setting.meaning.replace('`', '')}{default}"
                f" [env: {config.environment_name(name)}]",
            )
        )
    older = {name: f"--dialect {dialect}=PORT" for name, dialect in dialects.PORT_FLAGS.items()}
    for name, meaning in {**older, **dialects.VARIABLE_FLAGS}.items():
        variable = config.environment_name(name)
        shown = "" if variable == meaning else f" [env: {variable}]"
        command.params.append(
            click.Option([config.flag(name)], help=f"The same as {meaning}.{shown}")
        )
    return command


class SettingDescription(NamedTuple):
    """A setting in words."""

    meaning: str
    """One line of Markdown."""
    default: str
    """``none`` if the setting is unset."""


def descriptions() -> dict[str, SettingDescription]:
    """Return the words of all settings, by name."""
    hints = get_type_hints(config.Config, include_extras=True)
    meanings = _docstrings(config.Config)
    found = {}
    for field in msgspec.structs.fields(config.Config):
        metas = getattr(hints[field.name], "__metadata__", ())
        default = next((meta.extra["default"] for meta in metas if meta.extra), None)
        if default is None:
            value = field.default
            default = f"{value:g}" if isinstance(value, float) else str(value)
            default = "none" if value in (None, ()) else default
        found[field.name] = SettingDescription(meanings.get(field.name, ""), default)
    return found


def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a class; nothing where the source is not installed.
    Python keeps these docstrings in the source only."""
    try:
        [tree] = ast.parse(inspect.getsource(cls)).body
    except OSError:
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(text.split())
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(text := ast.literal_eval(below.value), str)
    }
