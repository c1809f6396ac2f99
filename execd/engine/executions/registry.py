"""The registry of executions: names, and how long finished executions are remembered. Pure: the
caller gives the time."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from execd.model import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.engine.executions.execution import Execution

# Without a live execution, expired executions wait to be forgotten together, this long at the most:
# a timer for each execution would keep an idle daemon awake for as long as it was busy before.
LATE_SHARE, MAX_LATE_SECONDS = 12, 300.0


class Registry:
    """All executions by id. Finished executions are forgotten by age, count and memory, oldest
    first.

    Kept executions (with a key, a name of the caller's, or detached) have a group of their own: a
    thousand plain executions must not push out the kept execution of a client that will come back.
    """

    def __init__(
        self,
        *,
        max_plain: int,
        max_kept: int,
        max_memory_bytes: int,
        plain_seconds: float,
        kept_seconds: float,
    ) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._live: dict[str, Execution] = {}
        self._plain: OrderedDict[str, Execution] = OrderedDict()
        self._kept: OrderedDict[str, Execution] = OrderedDict()
        self._groups = (
            (self._plain, max_plain, plain_seconds),
            (self._kept, max_kept, kept_seconds),
        )
        self._by_request: dict[bytes, Execution] = {}
        self._request_of: dict[str, bytes] = {}
        self._by_key: dict[str, Execution] = {}
        self._memory_of: dict[str, int] = {}
        self._memory_bytes = 0

    def add(self, execution: Execution, request_key: bytes | None = None) -> None:
        self._live[execution.id] = execution
        if execution.key is not None:
            self._by_key[execution.key] = execution
        if request_key is not None:
            self._by_request[request_key] = execution
            self._request_of[execution.id] = request_key

    def get(self, execution_id: str) -> Execution | None:
        return (
            self._live.get(execution_id)
            or self._plain.get(execution_id)
            or self._kept.get(execution_id)
        )

    def by_key(self, key: str) -> Execution | None:
        return self._by_key.get(key)

    def joinable(self, request_key: bytes) -> Execution | None:
        """Return the execution that a repeated request joins: a live execution, or a finished
        execution whose whole reply no client has got."""
        execution = self._by_request.get(request_key)
        if execution is None or (
            execution.state is State.EXITED and (execution.is_delivered or execution.error)
        ):
            return None
        return execution

    @property
    def has_live(self) -> bool:
        return bool(self._live)

    @property
    def live(self) -> list[Execution]:
        return list(self._live.values())

    def __iter__(self) -> Iterator[Execution]:
        return iter([*self._live.values(), *self._plain.values(), *self._kept.values()])

    def finished(self, execution: Execution, now: float) -> list[Execution]:
        """Take note of an end. Return the executions to forget now."""
        assert execution.state is State.EXITED
        del self._live[execution.id]
        if execution.has_failed:  # a retry may run
            self._unname(execution)
            if not execution.command.detached:  # the reply to the caller has the error
                return self.expired(now)
        (self._kept if execution.is_kept else self._plain)[execution.id] = execution
        self.measure(execution)
        return self.expired(now)

    def measure(self, execution: Execution) -> None:
        """Count the memory of a finished execution, whose log may have grown."""
        n_bytes = execution.memory_bytes
        self._memory_bytes += n_bytes - self._memory_of.get(execution.id, 0)
        self._memory_of[execution.id] = n_bytes

    def expired(self, now: float) -> list[Execution]:
        """Remove the finished executions that are too old or too many, and return them."""
        gone = []
        for group, max_count, max_seconds in self._groups:
            while group:
                oldest = next(iter(group.values()))
                if (
                    len(group) <= max_count
                    and self._memory_bytes <= self._max_memory_bytes
                    and now - oldest.ended_monotonic <= max_seconds
                ):
                    break
                self.remove(oldest)
                gone.append(oldest)
        return gone

    def postpone(self, seconds: float, now: float) -> None:
        """The clock has counted ``seconds`` in which nothing ran: finished executions are younger
        by that time."""
        for group in (self._plain, self._kept):
            for execution in group.values():
                execution.ended_monotonic = min(execution.ended_monotonic + seconds, now)

    def next_expiry(self) -> float:
        """Return when to forget again if nothing else happens: some time after the next finished
        execution will be too old. Infinity if there is none."""
        return min(
            (
                next(iter(group.values())).ended_monotonic
                + max_seconds
                + min(max_seconds / LATE_SHARE, MAX_LATE_SECONDS)
                for group, _, max_seconds in self._groups
                if group
            ),
            default=math.inf,
        )

    def largest_on_disk(self) -> Execution | None:
        """Return the finished execution with the largest logs, the oldest of equals, plain
        executions first. An execution with readers is left out."""
        for group in self._plain, self._kept:
            found = [
                execution
                for execution in group.values()
                if execution.output.disk_bytes and not execution.is_read
            ]
            if found:
                return max(found, key=lambda execution: execution.output.disk_bytes)
        return None

    def remove(self, execution: Execution) -> None:
        """Forget a finished execution."""
        for group in (self._plain, self._kept):
            group.pop(execution.id, None)
        self._memory_bytes -= self._memory_of.pop(execution.id, 0)
        self._unname(execution)

    def forget_key(self, execution: Execution) -> None:
        """Keep the record of a finished execution, and let no request find the record by a key."""
        self._unname(execution)
        execution.key, execution.payload = None, ""

    def _unname(self, execution: Execution) -> None:
        request_key = self._request_of.pop(execution.id, None)
        if request_key is not None and self._by_request.get(request_key) is execution:
            del self._by_request[request_key]
        if execution.key is not None and self._by_key.get(execution.key) is execution:
            del self._by_key[execution.key]
