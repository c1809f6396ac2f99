"""One budget for bytes that peers have sent and that execd still holds: bodies, frames, buffers of
files. Pure.

Why one: what the daemon holds belongs to no execution's tree, so no other limit sees it. 60
unfinished bodies of 16 MiB made the daemon 900 MiB large.

A holder is refused when the budget is used up, unless it is the only one: then its own limit bounds
it. The first FREE_BYTES of each holder are not counted, so a small request is answered whatever
others hold. The number of connections bounds these: 4,096 of 16 KiB are 64 MiB.
"""

from __future__ import annotations

from execd.errors import ResourceExhausted

MAX_BYTES = 64 << 20
FREE_BYTES = 16 << 10
RETRY_AFTER_SECONDS = 2.0


class InFlight:
    """The budget. ``held_bytes``: what all holders together count for now."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def lease(self) -> Lease:
        """For one holder, who calls ``release`` at the end."""
        return Lease(self)


class Lease:
    """What one holder has in flight. Nothing at first."""

    def __init__(self, budget: InFlight) -> None:
        self._budget = budget
        self._counted_bytes = 0

    def resize(self, size_bytes: int) -> None:
        """The holder has this much now, or is about to. Raises ResourceExhausted, and then nothing
        has changed."""
        counted_bytes = max(0, size_bytes - FREE_BYTES)
        others_bytes = self._budget.held_bytes - self._counted_bytes
        assert others_bytes >= 0
        if (
            counted_bytes > self._counted_bytes
            and others_bytes
            and others_bytes + counted_bytes > self._budget.max_bytes
        ):
            raise ResourceExhausted(
                f"requests that are under way hold {self._budget.held_bytes} bytes,"
                f" and this one would make them more than {self._budget.max_bytes}",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._budget.held_bytes = others_bytes + counted_bytes
        self._counted_bytes = counted_bytes

    def has_room(self, size_bytes: int, share: float) -> bool:
        """Whether it could grow to this, and all together would stay within this share of the
        budget."""
        others_bytes = self._budget.held_bytes - self._counted_bytes
        return others_bytes + size_bytes <= self._budget.max_bytes * share

    def release(self) -> None:
        """Nothing is held any more. Idempotent."""
        self._budget.held_bytes -= self._counted_bytes
        self._counted_bytes = 0
