"""Which interpreter serves the sessions: the first candidate that can.

The start of a zygote probes a candidate, and after a refusal the next candidate gets its turn. The
first candidate that serves is the choice for good: sessions of one daemon do not change their
Python, whatever happens to the others or to itself. When all candidates are refused, the first may
get its turn again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from execd.engine.sessions.interpreter_refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd.engine.sessions.interpreter_refusal import Footprint
    from execd.model import Interpreter


class InterpreterChoice:
    def __init__(self, candidates: Sequence[Interpreter]) -> None:
        assert candidates
        self._candidates = candidates
        self._refusals: list[Refusal] = []
        """Of the first candidates, in their order."""
        self._footprints: list[Footprint] = []

    @property
    def current(self) -> Interpreter:
        """The candidate to start, with the reason for it; the last one if all are refused."""
        position = min(len(self._refusals), len(self._candidates) - 1)
        chosen = self._candidates[position]
        if position == 0:
            return chosen
        reason = f"{chosen.reason}: {self._refusals[position - 1].message}"
        return msgspec.structs.replace(chosen, reason=reason)

    @property
    def is_last(self) -> bool:
        """Whether no further candidate could serve after a refusal of the current one."""
        return len(self._refusals) >= len(self._candidates) - 1

    def refuse(self, refusal: Refusal, footprint: Footprint) -> Refusal:
        """Refuse the current candidate. Return the refusal of all candidates so far, with the cause
        of the first, which a user would rather repair."""
        if len(self._refusals) == len(self._candidates):  # the last one, again
            self._refusals.pop()
            self._footprints.pop()
        self._refusals.append(refusal)
        self._footprints.append(footprint)
        message = "; and execd's own: ".join(refused.message for refused in self._refusals)
        return Refusal(self._refusals[0].cause, message)

    def settle(self) -> None:
        """The current candidate serves."""
        self._candidates = (self.current,)
        self.begin_again()

    def has_changed(self) -> bool:
        """Whether a refused interpreter may serve now."""
        return any(footprint.has_changed() for footprint in self._footprints)

    def begin_again(self) -> None:
        """Give the first candidate its turn."""
        self._refusals.clear()
        self._footprints.clear()
