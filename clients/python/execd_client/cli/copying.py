"""``cp``, ``ls``, ``cat``, ``rm``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from execd_client import ApiError, NotFound
from execd_client.cli import REFUSED
from execd_client.cli.connection import connected, remote
from execd_client.cli.output import tell, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from execd_client import Execd
    from execd_client.cli.connection import Context
    from execd_client.transfers import Progress


@click.command()
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("target", metavar="DST")
@connected
def cp(context: Context, sources: tuple[str, ...], target: str) -> None:
    """Copy files and directories into the sandbox, or out of it.

    A remote path begins with a colon: `execctl cp data.csv :inputs/` and
    `execctl cp :results .`. A copy that was interrupted goes on when it is repeated. Links that
    lead out of a copied directory are left out.
    """
    are_remote = {source.startswith(":") for source in sources}
    if are_remote != {not target.startswith(":")}:
        raise click.UsageError("a remote path begins with ':'; give SRC or DST such a path")
    for source in sources:
        with _progress(context, source) as progress:
            if target.startswith(":"):
                _upload(context.sandbox, Path(source), remote(target), progress, len(sources) > 1)
            else:
                _download(context.sandbox, remote(source), target, progress, len(sources) > 1)


def _upload(sandbox: Execd, source: Path, target: str, progress: Progress, into: bool) -> None:
    if not source.exists():
        raise click.UsageError(f"{source}: no such file or directory")
    if into or target.endswith("/") or _is_remote_directory(sandbox, target):
        target = os.path.join(target, os.path.basename(os.path.abspath(source)))
    if source.is_dir():
        _warn(sandbox.files.upload_dir(source, target, progress=progress))
    else:
        sandbox.files.upload(source, target, progress=progress)


def _download(sandbox: Execd, source: str, target: str, progress: Progress, into: bool) -> None:
    is_directory = sandbox.files.stat(source).type == "directory"
    local = Path(target)
    if into or target.endswith("/") or local.is_dir():
        local /= os.path.basename(source.rstrip("/")) or "."
    local.parent.mkdir(parents=True, exist_ok=True)
    if is_directory:
        _warn(sandbox.files.download_dir(source, local, progress=progress))
    else:
        sandbox.files.download(source, local, progress=progress)


def _warn(left_out: Sequence[str]) -> None:
    for warning in left_out:
        click.echo(f"execctl: {warning}", err=True)


def _is_remote_directory(sandbox: Execd, path: str) -> bool:
    try:
        return sandbox.files.stat(path).type == "directory"
    except NotFound:
        return False


@contextmanager
def _progress(context: Context, name: str) -> Iterator[Progress]:
    """A bar on stderr, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    disable = context.settings.json or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=disable) as shown:
        task = shown.add_task(name)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@click.command()
@click.option("-l", "long", is_flag=True, help="Show mode, size and time.")
@click.argument("path", default=".")
@connected
def ls(context: Context, path: str, long: bool) -> None:
    """List a directory of the sandbox."""
    entries = sorted(context.sandbox.files.list(remote(path)), key=lambda entry: entry.name)
    if context.settings.json:
        context.print_json(entries)
    elif long:
        rows = [
            (entry.mode, entry.size, entry.modified_at, _shown_name(entry.name, entry.type))
            for entry in entries
        ]
        context.print_table(["mode", "size", "modified", "name"], rows)
    else:
        for entry in entries:
            click.echo(_shown_name(entry.name, entry.type))


def _shown_name(name: str, kind: str) -> str:
    return name + "/" * (kind == "directory")


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@connected
def cat(context: Context, paths: tuple[str, ...]) -> None:
    """Print files of the sandbox."""
    for path in paths:
        for piece in context.sandbox.files.stream(remote(path)):
            write("stdout", piece)


@click.command()
@click.option("-r", "--recursive", is_flag=True, help="Delete directories with their content.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@connected
def rm(context: Context, paths: tuple[str, ...], recursive: bool) -> int:
    """Delete files of the sandbox. After an error the other files are deleted all the same."""
    exit_code = 0
    for path in paths:
        try:
            context.sandbox.files.remove(remote(path), recursive=recursive)
        except ApiError as error:
            tell(error.message)
            exit_code = REFUSED
    return exit_code


COMMANDS = [cp, ls, cat, rm]
