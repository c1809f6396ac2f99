"""The tools for checkpoints. Their docstrings and the descriptions of their parameters are what a
model reads."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from execd_client import AsyncExecd
from execd_client.checkpointing import START
from execd_client.mcp_server import answers
from execd_client.mcp_server.tools import told

Checkpoint = Annotated[str, Field(description="The id of a checkpoint of the sandbox's owner.")]


class CheckpointTools:
    """The tools for checkpoints of one sandbox."""

    def __init__(self, sandbox: AsyncExecd) -> None:
        self._sandbox = sandbox

    @told
    async def changes(
        self,
        path: Annotated[
            str | None, Field(description="Only this file or directory. Default: everything.")
        ] = None,
        as_patch: Annotated[
            bool, Field(description="Show the changed lines, as a patch for git apply.")
        ] = False,
        checkpoint: Checkpoint = START,
    ) -> str:
        """List the files that were created, modified or deleted since a checkpoint, or show the
        changed lines. A sandbox without the checkpoint says so."""
        if as_patch:
            return answers.of_patch(await self._sandbox.patch(checkpoint, path))
        return answers.of_changes(await self._sandbox.changes(checkpoint, path))

    @told
    async def reset(self, checkpoint: Checkpoint = START) -> str:
        """Begin anew: end all commands, jobs and Python sessions, and make the files as they were
        at a checkpoint. All work since is lost. The answer says whether the sandbox is clean."""
        return answers.of_reset(await self._sandbox.reset(checkpoint))

    def registered(self) -> list[Callable[..., Any]]:
        """All tools."""
        return [self.changes, self.reset]
