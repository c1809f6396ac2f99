"""Submissions: what a dialect asks the engine to run, and how a repeated request, under its key or
under its caller's name for the execution, gets the execution of the first request.

``repeated``, ``register`` and ``add`` are one step of the loop: of two requests that come together,
the second finds the first. A taken name stays taken until ``retention`` forgets the execution; an
execution that never ran gives its name back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from execd.engine.executions import command
from execd.engine.executions.execution_record import Registration, new_id
from execd.errors import IdempotencyMismatch, InvalidArgument

if TYPE_CHECKING:
    import asyncio

    from execd.engine.executions.execution import Execution
    from execd.engine.executions.registry import Registry
    from execd.engine.executions.retention import Retention
    from execd.model import Command


class CellOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a cell is run, beyond what every execution has."""

    session_id: str | None = None
    """The session. None: a session of an id that the engine makes up."""
    makes_session: bool = False
    """Make the session if there is none, with the limits of the command, and forget the session if
    the cell cannot run."""
    keeps_env: bool = False
    """A session that is made keeps the environment of the command, which otherwise holds for the
    cell."""
    on_busy: Literal["queue", "reject"] = "queue"
    """What happens while another cell has the session's turn."""
    allow_input: bool = False
    """``input()`` asks the caller, instead of raising at once."""
    expect_generation: int | None = None
    """Run only in this generation."""
    is_last: bool = False
    """The interpreter ends with the cell, as with a script, and the answer comes afterwards. Then
    the session is deleted."""


class Submission(msgspec.Struct, frozen=True):
    """A request to run a command, or the code of a command as a cell."""

    command: Command
    cell: CellOptions | None = None
    """None: no cell; a program of its own."""
    execution_id: str | None = None
    """The caller's name for the execution."""
    key: str | None = None
    """The idempotency key. The same key, or id, and the same payload again give the execution of
    the first request."""
    payload: bytes = b""
    """The request in bytes, compared when a key or an id repeats. Unused without key and id."""
    request_key: bytes | None = None
    """A request with the key of an earlier request joins the earlier execution, while the reply of
    that execution is still wanted."""
    after: asyncio.Future[None] | None = None
    """Done when the command may join the queue. This wait counts against ``queue_seconds``."""

    @property
    def is_named(self) -> bool:
        return self.key is not None or self.execution_id is not None


class Submitted(NamedTuple):
    execution: Execution
    is_new: bool
    """False: the execution was submitted before."""


class Idempotency:
    """Finds and registers executions by their names."""

    def __init__(self, registry: Registry, retention: Retention) -> None:
        self._registry = registry
        self._retention = retention

    def register(self, submission: Submission, *, is_kept: bool) -> Registration:
        """The names of a new execution, which ``add`` takes. No ``await`` may come between."""
        if not submission.is_named:
            return Registration(new_id(), None, "", is_kept)
        return Registration(
            submission.execution_id or new_id(),
            _key_digest(submission.key),
            _sha256(submission.payload),
            is_kept=True,
        )

    def add(self, execution: Execution, request_key: bytes | None = None) -> Submitted:
        """Take the names of the execution. An execution of the same names that never ran loses
        them."""
        if execution.is_repeatable:
            failed = self._named(execution.id, execution.key)
            if failed is not None:
                assert failed.has_failed
                self._registry.remove(failed)
            self._retention.vacate(execution.id)
        self._retention.add(execution, request_key)
        return Submitted(execution, True)

    def repeated(self, submission: Submission) -> Submitted | None:
        """Return the execution of the same key, or id, that ran or will run. Raises
        IdempotencyMismatch, InvalidArgument."""
        assert submission.is_named
        execution_id = submission.execution_id
        if execution_id is not None and not command.ID_PATTERN.fullmatch(execution_id):
            raise InvalidArgument(f"id: must match {command.ID_PATTERN.pattern}", field="id")
        earlier = self._named(execution_id, _key_digest(submission.key))
        if earlier is None or earlier.has_failed:
            return None
        if earlier.payload != _sha256(submission.payload):
            raise IdempotencyMismatch(
                "this key or id was used for another request; repeat that request as it was, or "
                "use another key or id"
            )
        return Submitted(earlier, False)

    def _named(self, execution_id: str | None, key_digest: str | None) -> Execution | None:
        earlier = self._registry.by_key(key_digest) if key_digest is not None else None
        if earlier is None and execution_id is not None:
            earlier = self._registry.get(execution_id)
        return earlier


def _key_digest(key: str | None) -> str | None:
    return None if key is None else _sha256(key.encode("utf-8", "surrogateescape"))


def _sha256(data: bytes) -> str:
    import hashlib  # see lean_imports

    return hashlib.sha256(data).hexdigest()
