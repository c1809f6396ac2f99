"""A real engine, with small grace periods."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from execd.config import Config
from execd.engine.engine import Engine
from execd.engine.executions.command import shell_program
from execd.engine.executions.submission import Submission
from execd.model import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from execd.engine.executions.execution import Execution
    from execd.model import Result

SETTINGS = {
    "timeout_grace_seconds": 0.1,
    "cancel_grace_seconds": 0.1,
    "drain_grace_seconds": 0.1,
    "warden_ping_seconds": 0.2,
    "queue_wait_seconds": 10.0,
    "sessions": "lazy",
}


def make_config(folder: Path, **settings: Any) -> Config:
    return Config(
        **(
            {"base_dir": str(folder / "base"), "state_dir": str(folder / "state")}
            | SETTINGS
            | settings
        )
    )


@contextlib.asynccontextmanager
async def running(
    folder: Path, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Engine]:
    environment = {"PATH": os.defpath} if environment is None else environment
    async with Engine.open(make_config(folder, **settings), environment) as engine:
        yield engine
    engine._parts.store.threads.shutdown(wait=True)  # the disk of a test does not hang


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with running(tmp_path) as engine:
        yield engine


class Outcome:
    """An ended execution. All of the output is read."""

    def __init__(self, execution: Execution, result: Result, stdout: bytes, stderr: bytes) -> None:
        self.execution, self.result, self.stdout, self.stderr = execution, result, stdout, stderr

    @property
    def text(self) -> str:
        assert self.result.exit_code == 0, (self.result, self.stderr)
        return self.stdout.decode().strip()


async def finish(execution: Execution) -> Outcome:
    """Attach, wait, read and deliver, as a dialect does."""
    with execution.attach() as attachment:
        result = await execution.wait()
        outputs = []
        for stream in "stdout", "stderr":
            excerpt = await execution.view.excerpt(stream, 1 << 30)  # type: ignore[arg-type]  # a stream
            assert excerpt.truncation is None
            outputs.append(excerpt.head)
        attachment.delivered()
    return Outcome(execution, result, *outputs)


def shell_command(script: str, **fields: Any) -> Command:
    """A command line for /bin/sh; ``fields`` as in model.Command."""
    return Command(program=shell_program(script, nul_is_a_result=True), **fields)


async def sh(engine: Engine, script: str, **options: Any) -> Outcome:
    return await finish(engine.submit(Submission(shell_command(script, **options))).execution)
