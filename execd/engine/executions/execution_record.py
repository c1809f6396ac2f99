"""The record of an execution: names, command, phase, output, and what is known of the end. Other
modules read the record; ``execution`` keeps the record up to date, by the table of ``state``."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions.state import ExecutionPhase
from execd.model import ExitReason, Result, State

if TYPE_CHECKING:
    from execd.engine.output.log import OutputLog
    from execd.errors import ExecdError
    from execd.model import CellFacts, Command, DiskExcess, StartedBy


class Registration(NamedTuple):
    """The names of an execution."""

    id: str
    key: str | None = None
    """Digest of the idempotency key."""
    payload: str = ""
    """Digest of the request; empty for an execution without a key and without a caller's name."""
    is_kept: bool = False
    """Whether the execution is journaled from its start on: yes for executions that a caller may
    ask for after a restart, which are those with a key or a name of the caller's, and detached
    executions."""


class ExecutionRecord:
    __slots__ = (
        "__weakref__",
        "cause",
        "cause_at",
        "cell",
        "command",
        "created_at",
        "ended_at",
        "ended_monotonic",
        "error",
        "excess",
        "id",
        "is_journaled",
        "is_kept",
        "key",
        "may_have_run",
        "not_journaled",
        "output",
        "payload",
        "phase",
        "pid",
        "result",
        "started_at",
        "started_by",
    )

    def __init__(
        self,
        registration: Registration,
        command: Command,
        output: OutputLog,
        phase: ExecutionPhase,
        cell: CellFacts | None = None,
    ) -> None:
        self.id, self.key, self.payload, self.is_kept = registration
        self.is_journaled = False
        """Whether the journal has the execution, or will have it before any later record."""
        self.not_journaled: str | None = None
        """Why the journal could not take the execution: after a restart of the daemon a repeated
        request may run the program again."""
        self.command = command
        self.cell = cell
        self.output = output
        self.phase = phase
        self.may_have_run = False
        """Whether a start of the program was ever requested."""
        self.cause: ExitReason | None = None
        """The first cause of an end."""
        self.cause_at = -math.inf
        """When the cause arose, on the monotonic clock. A program that ended earlier ended by
        itself; -inf: the cause needs no clock."""
        self.excess: int | DiskExcess | None = None
        """What was over a limit of the tree, or over the limit of a directory, if that is the cause
        and is known."""
        self.result: Result | None = None
        self.error: ExecdError | None = None
        self.pid: int | None = None
        self.started_by: StartedBy | None = None
        """None: a cell, or not started, or started by a daemon that did not record the way."""
        self.created_at = time.time()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.ended_monotonic = 0.0

    @property
    def state(self) -> State:
        """The phase as the wire shows it."""
        if self.phase is ExecutionPhase.EXITED:
            return State.EXITED
        return State.QUEUED if self.started_at is None else State.RUNNING

    @property
    def outcome(self) -> Result | None:
        """The result, once the execution has ended. For an execution that an error kept from
        running: a result with the error's message. None after a fault of execd in the middle of a
        run: nobody knows how the program ended."""
        if self.phase is not ExecutionPhase.EXITED:  # ``result`` is set slightly earlier
            return None
        if self.error is None or self.may_have_run:
            return self.result
        return Result(
            exit_code=None,
            term_signal=None,
            exit_reason=self.cause or ExitReason.SPAWN_FAILED,
            message=self.error.message,
        )

    @property
    def refusal(self) -> ExecdError | None:
        """The error that kept the program from being started."""
        return None if self.may_have_run else self.error

    @property
    def has_failed(self) -> bool:
        """Whether the execution has ended without having run, so that its name is free."""
        return self.phase is ExecutionPhase.EXITED and self.refusal is not None

    def refuse_failed(self) -> None:
        """Raise the error that kept the program from running, if there is such an error."""
        if self.error is not None:
            # Without this the traceback would grow with each raise.
            raise self.error.with_traceback(None)

    @property
    def is_repeatable(self) -> bool:
        """Whether a repeated request finds the execution: by a key or by the caller's name."""
        return bool(self.payload)

    def has_ended_at(self, sequence: int) -> bool:
        """Whether this event is the last event."""
        return self.phase is ExecutionPhase.EXITED and sequence == self.output.events.last_sequence

    @property
    def memory_bytes(self) -> int:
        """About how much memory remembering the execution takes."""
        program = self.command.program
        words_bytes = sum(map(sys.getsizeof, program.argv))
        if not program.argv or program.argv[-1] is not program.display:
            words_bytes += sys.getsizeof(program.display)
        background = None if self.cell is None else self.cell.background
        background_bytes = (
            0 if background is None else len(background.stdout) + len(background.stderr)
        )
        return self.output.memory_bytes + words_bytes + background_bytes


def new_id() -> str:
    return os.urandom(8).hex()
