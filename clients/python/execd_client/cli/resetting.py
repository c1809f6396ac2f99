"""``checkpoint``, ``changes``, ``diff``, ``restore``, ``reset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from execd_client.checkpointing import START, words_of
from execd_client.cli.connection import connected
from execd_client.cli.output import tell, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd_client.cli.connection import Context

NOT_CLEAN = 3
"""The exit code of a reset after which something is not as before."""


def since(function: Callable[..., Any]) -> Callable[..., Any]:
    """The checkpoint of a command, and the path to which the command is restricted."""
    function = click.option("--path", metavar="PATH", help="Only this file or directory.")(function)
    return click.argument("checkpoint_id", metavar="[ID]", default=START)(function)


@click.command()
@click.argument("checkpoint_id", metavar="[ID]", required=False)
@click.option("--root", "roots", metavar="DIR", multiple=True, help="Keep the content of DIR.")
@click.option("--watched", metavar="DIR", multiple=True, help="Only detect changes in DIR.")
@click.option("--exclude", metavar="GLOB", multiple=True, help="Leave out paths below the roots.")
@click.option("-l", "--list", "is_list", is_flag=True, help="List the checkpoints.")
@click.option("--delete", "is_delete", is_flag=True, help="Forget the checkpoint ID.")
@connected
def checkpoint(
    context: Context,
    checkpoint_id: str | None,
    is_list: bool,
    is_delete: bool,
    **options: tuple[str, ...],
) -> None:
    """Remember directories, by themselves the base directory, and print the id."""
    if is_list:
        found = context.sandbox.checkpoints()
        if context.settings.json:
            context.print_json(found)
            return
        rows = [(each.id, " ".join(root.path for root in each.roots)) for each in found]
        context.print_table(["id", "roots"], rows)
    elif is_delete:
        if checkpoint_id is None:
            raise click.UsageError("--delete: name the checkpoint")
        context.sandbox.delete_checkpoint(checkpoint_id)
    else:
        given: dict[str, Any] = {name: list(value) or None for name, value in options.items()}
        made = context.sandbox.checkpoint(checkpoint_id, **given)
        if context.settings.json:
            context.print_json(made)
        else:
            click.echo(made.id)


@click.command()
@since
@connected
def changes(context: Context, checkpoint_id: str, path: str | None) -> None:
    """List what has changed since a checkpoint, by itself `start`."""
    found = context.sandbox.changes(checkpoint_id, path)
    if context.settings.json:
        context.print_json(found)
        return
    for each in found:
        click.echo(f"{each.change:8}  {each.path}")


@click.command()
@since
@connected
def diff(context: Context, checkpoint_id: str, path: str | None) -> None:
    """Print what has changed since a checkpoint, by itself `start`, for `git apply`."""
    write("stdout", context.sandbox.patch(checkpoint_id, path))


@click.command()
@click.argument("checkpoint_id", metavar="[ID]", default=START)
@connected
def restore(context: Context, checkpoint_id: str) -> None:
    """Make the files of a checkpoint, by itself `start`, as they were."""
    found = context.sandbox.restore(checkpoint_id)
    if context.settings.json:
        context.print_json(found)
    else:
        click.echo(f"{found.restored} restored, {found.removed} removed")


@click.command()
@click.argument("checkpoint_id", metavar="[ID]", required=False)
@click.option("--verify", type=click.Choice(["auto", "content", "stat"]), help="How to compare.")
@click.option("--keep-records", is_flag=True, default=None, help="Keep the ended executions.")
@connected
def reset(context: Context, checkpoint_id: str | None, **options: Any) -> int:
    """End everything, restore the files of a checkpoint, by itself `start`, and verify. The exit
    code is 0 if the sandbox is clean, and 3 if not: stderr names what is not as before."""
    found = context.sandbox.reset(checkpoint_id, **options)
    if context.settings.json:
        context.print_json(found)
    else:
        click.echo(f"{'clean' if found.clean else 'NOT clean'}, episode {found.episode}")
        for each in found.differences.items:
            tell(words_of(each))
    return 0 if found.clean else NOT_CLEAN


COMMANDS = [checkpoint, changes, diff, restore, reset]
