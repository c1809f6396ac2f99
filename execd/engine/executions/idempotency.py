"""Exactly once: what is asked for again, under its key or under the name that its caller gave it,
is what there is already.

Looking for a name and taking it are one step of the loop: of two requests that come together one
finds the other's. Taken it stays until ``retention`` forgets it; what never ran gives it back.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions import command
from execd.engine.executions.execution import new_id
from execd.errors import IdempotencyMismatch, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.engine.executions.execution import Execution
    from execd.engine.executions.registry import Registry
    from execd.engine.executions.retention import Retention

    Make = Callable[[str, str | None, str, bool], Execution]
    """Of its id, the digests of its key and of its payload, and whether it is kept."""


class Submitted(NamedTuple):
    execution: Execution
    is_new: bool
    """False: it is one that was submitted before."""


class Idempotency:
    """The engine's. ``payload`` is what two requests must share to be the same; without a name and
    a key it says nothing."""

    def __init__(self, registry: Registry, retention: Retention) -> None:
        self._registry = registry
        self._retention = retention

    def submit(
        self,
        make: Make,
        *,
        is_kept: bool,
        execution_id: str | None,
        key: str | None,
        payload: bytes,
    ) -> Submitted:
        """Make it, unless it was. Raises what ``repeated`` and ``make`` raise."""
        repeated = self.repeated(execution_id, key, payload)
        if repeated is not None:
            return Submitted(repeated, False)
        failed = self._earlier(execution_id, key)
        is_kept = is_kept or key is not None or execution_id is not None
        execution = make(
            execution_id or new_id(), _key_digest(key), hashlib.sha256(payload).hexdigest(), is_kept
        )
        if failed is not None:  # it never ran, and the name is now another's
            self._registry.remove(failed)
        self._retention.vacate(execution.id)
        self._registry.add(execution)
        return Submitted(execution, True)

    def repeated(
        self, execution_id: str | None, key: str | None, payload: bytes
    ) -> Execution | None:
        """The one of the same key, or id, that ran or will. Raises IdempotencyMismatch,
        InvalidArgument."""
        if execution_id is not None and not command.ID_PATTERN.fullmatch(execution_id):
            raise InvalidArgument(f"id: must match {command.ID_PATTERN.pattern}", field="id")
        earlier = self._earlier(execution_id, key)
        if earlier is None or earlier.has_failed:
            return None
        if earlier.payload != hashlib.sha256(payload).hexdigest():
            raise IdempotencyMismatch("this key or id was used for another request")
        return earlier

    def _earlier(self, execution_id: str | None, key: str | None) -> Execution | None:
        key_digest = _key_digest(key)
        earlier = self._registry.by_key(key_digest) if key_digest is not None else None
        if earlier is None and execution_id is not None:
            earlier = self._registry.get(execution_id)
        return earlier


def _key_digest(key: str | None) -> str | None:
    return (
        None if key is None else hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    )
