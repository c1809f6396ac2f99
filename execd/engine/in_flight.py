"""A budget for all bytes from peers in the daemon's memory: bodies, frames, file buffers. Pure.

The reason for one budget: memory of the daemon belongs to no execution's tree, so no other limit
counts these bytes. 60 unfinished bodies of 16 MiB made the daemon 900 MiB large.

A holder is refused when the budget is used up. A lone holder is never refused: the limit of its
request bounds it. The first FREE_BYTES of each holder do not count, so a small request is answered
whatever the budget's state. The number of connections bounds the uncounted bytes: 4,096 connections
of 16 KiB are 64 MiB.
"""

from __future__ import annotations

from execd.errors import ResourceExhausted

MAX_BYTES = 64 << 20
"""Bodies under way, all together. 429 with Retry-After; a single body, and each body up to
``FREE_BYTES``, is never refused."""
FREE_BYTES = 16 << 10
RETRY_AFTER_SECONDS = 2.0


class InFlight:
    """The budget. ``held_bytes``: the counted bytes of all holders together."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def lease(self) -> Lease:
        """Make a lease for a holder. The holder calls ``release`` at the end."""
        return Lease(self)


class Lease:
    """The bytes of a holder, 0 at first."""

    def __init__(self, budget: InFlight) -> None:
        self._budget = budget
        self._counted_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """Set the holder's size, before or after the bytes arrive.

        Raises ResourceExhausted and keeps the old size.
        """
        assert size_bytes >= 0
        counted_bytes = max(0, size_bytes - FREE_BYTES)
        others_bytes = self._budget.held_bytes - self._counted_bytes
        assert others_bytes >= 0, "the budget counts each lease"
        if (
            counted_bytes > self._counted_bytes
            and others_bytes
            and others_bytes + counted_bytes > self._budget.max_bytes
        ):
            raise ResourceExhausted(
                f"requests that are under way hold {self._budget.held_bytes} bytes,"
                f" and this one would make them more than {self._budget.max_bytes}; repeat the"
                " request when others are over",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._budget.held_bytes = others_bytes + counted_bytes
        self._counted_bytes = counted_bytes

    def has_room(self, size_bytes: int, share: float) -> bool:
        """Whether all holders would stay within ``share`` of the budget, if this holder had
        ``size_bytes``.

        ``share``: 0.0 to 1.0.
        """
        others_bytes = self._budget.held_bytes - self._counted_bytes
        return others_bytes + size_bytes <= self._budget.max_bytes * share

    def release(self) -> None:
        """Set the holder's size to 0. Idempotent."""
        assert self._counted_bytes <= self._budget.held_bytes
        self._budget.held_bytes -= self._counted_bytes
        self._counted_bytes = 0
