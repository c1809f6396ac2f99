"""Idempotency: a repeated request, under its key or under its caller's name for the execution, gets
the execution of the first request.

``repeated``, ``register`` and ``add`` are one step of the loop: of two requests that come together,
the second finds the first. A taken name stays taken until ``retention`` forgets the execution; an
execution that never ran gives its name back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions import command
from execd.engine.executions.execution_record import Registration, new_id
from execd.errors import IdempotencyMismatch, InvalidArgument

if TYPE_CHECKING:
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.registry import Registry
    from execd.engine.executions.retention import Retention


class Submitted(NamedTuple):
    execution: Execution
    is_new: bool
    """False: the execution was submitted before."""


class Idempotency:
    """Finds and registers executions by their names. Two requests are the same if their payloads
    are equal; without a name and without a key the payload means nothing."""

    def __init__(self, registry: Registry, retention: Retention) -> None:
        self._registry = registry
        self._retention = retention

    def register(
        self, execution_id: str | None, key: str | None, payload: bytes, *, is_kept: bool
    ) -> Registration:
        """The names of a new execution, which ``add`` takes. No ``await`` may come between."""
        return Registration(
            execution_id or new_id(),
            _key_digest(key),
            _sha256(payload) if key or execution_id else "",
            is_kept or key is not None or execution_id is not None,
        )

    def add(self, execution: Execution) -> Submitted:
        """Take the names of the execution. An execution of the same names that never ran loses
        them."""
        failed = self._named(execution.id, execution.key)
        if failed is not None:
            assert failed.has_failed
            self._registry.remove(failed)
        self._retention.vacate(execution.id)
        self._retention.add(execution)
        return Submitted(execution, True)

    def repeated(
        self, execution_id: str | None, key: str | None, payload: bytes
    ) -> Submitted | None:
        """Return the execution of the same key, or id, that ran or will run. Raises
        IdempotencyMismatch, InvalidArgument."""
        if execution_id is not None and not command.ID_PATTERN.fullmatch(execution_id):
            raise InvalidArgument(f"id: must match {command.ID_PATTERN.pattern}", field="id")
        earlier = self._named(execution_id, _key_digest(key))
        if earlier is None or earlier.has_failed:
            return None
        if earlier.payload != _sha256(payload):
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
