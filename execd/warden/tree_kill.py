"""How a tree is ended: SIGTERM, a grace, SIGKILL until nothing is left. Pure: callers pass the time
and the living members; the result is which signals to send.

    TERMINATING  until the grace is over: SIGTERM once to each member, and SIGCONT after SIGTERM (a
                 stopped process acts on SIGTERM only once continued).
    KILLING      SIGKILL to every member that each scan finds, since a tree may fork on while the
                 warden kills.
    DONE         two scans in a row found nothing alive.

A kill that has been in KILLING for REPORT_SECONDS reports the survivors: processes that sleep where
no signal ends the sleep, or a bomb that has spread over thousands of sessions. A kill never ends
before DONE. After EAGER_SECONDS the kill no longer asks for frequent scans.

Why two scans. A scan is not a point in time. The order of events that deceives a single scan: the
scan lists the pids; a member forks; the member ends; the scan finds the member dead and has never
listed the child. The next scan begins after that death and lists the child. The child may deceive
the second scan in the same way. Therefore the second scan counts only if the scan is clear: each
listed process was read, and the owner of each process is known.

Why SIGKILL at once, and not SIGSTOP before. A process that has got SIGKILL can fork no more than a
stopped process, and SIGKILL alone is a single signal. Members may lose their parents meanwhile; the
job remembers its members, so the loss does no harm. A tree that forks faster than the rounds of
SIGKILL (``is_outrun``) is frozen first (``fork_bombs``).
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from execd.proc.process_tree import Process

REPORT_SECONDS = 2.0
OUTRUN_ROUNDS = 3
EAGER_SECONDS = 10.0


class Phase(StrEnum):
    TERMINATING = "TERMINATING"
    KILLING = "KILLING"
    DONE = "DONE"


class Send(NamedTuple):
    """The signals ``numbers``, to send in that order to each of ``pids``."""

    numbers: tuple[signal.Signals, ...]
    pids: tuple[int, ...]


TERMINATE = (signal.SIGTERM, signal.SIGCONT)
KILL = (signal.SIGKILL,)


class TreeKill:
    """A kill under way. Times are monotonic seconds.

    ``group``: the number of the leader's process group, which the supervisor signals at once,
    without a scan. None if the leader was reaped before the kill, so that the number may be reused.
    """

    def __init__(self, now: float, grace_seconds: float, group: int | None) -> None:
        self.phase = Phase.TERMINATING if grace_seconds > 0 else Phase.KILLING
        self.asked_at = now
        self.kill_at = now + grace_seconds
        self.group = group
        self.terminated: set[int] = set()
        self.killed: set[int] = set()
        self.survivors: tuple[int, ...] = ()
        """Pids that the last scan found alive, once REPORT_SECONDS are over; empty before."""
        self.is_reported = False
        """The supervisor has answered the daemon's request, so the end needs no message."""
        self.is_outrun = False
        """The tree forks faster than the warden kills: OUTRUN_ROUNDS rounds have passed, and the
        last round found new processes or was not clear."""
        self._was_last_scan_empty = False
        self._unclear_rounds = 0
        self._rounds = 0

    def shorten_grace(self, now: float, grace_seconds: float) -> None:
        """Act on a further request: send SIGKILL earlier, never later, and answer again."""
        self.kill_at = min(self.kill_at, now + grace_seconds)
        self.is_reported = False

    def is_eager(self, now: float) -> bool:
        """Whether this kill asks for frequent scans."""
        return now < self.kill_at + EAGER_SECONDS

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        """The signals of the present phase."""
        return TERMINATE if self.phase is Phase.TERMINATING else KILL

    def advance_clock(self, now: float) -> bool:
        """Begin KILLING when the grace is over. Returns whether KILLING has just begun, so that the
        caller can send SIGKILL to the leader's group at once."""
        if self.phase is Phase.TERMINATING and now >= self.kill_at:
            self.phase = Phase.KILLING
            return True
        return False

    def record_scan(
        self,
        began: float,
        alive: Collection[Process],
        *,
        is_clear: bool = True,
        is_still: bool = False,
    ) -> Send | None:
        """Return the signals to send after a scan, or None if the kill is now DONE.

        ``began``: when the scan began. ``alive``: the living members in the scan. ``is_clear``: the
        scan has missed no member. ``is_still``: everything was stopped during the scan.
        """
        self.survivors = ()
        self.is_outrun = False
        if not alive:
            if is_still or (self._was_last_scan_empty and is_clear):
                self.phase = Phase.DONE
                return None
            self._was_last_scan_empty = True
            self._unclear_rounds = 0 if is_clear else self._unclear_rounds + 1
            self.is_outrun = self._unclear_rounds > OUTRUN_ROUNDS
            return Send((), ())
        self._was_last_scan_empty = False
        if self.phase is Phase.TERMINATING:
            # Never twice: many programs take a second SIGTERM for "give up the clean-up".
            fresh = [p.pid for p in alive if p.pid not in self.terminated and p.group != self.group]
            self.terminated.update(fresh)
            return Send(TERMINATE, tuple(fresh))
        pids = tuple(sorted(process.pid for process in alive))
        # Report survivors of at least a round of SIGKILL: on a starved machine the first scan may
        # come after REPORT_SECONDS.
        if began - self.kill_at >= REPORT_SECONDS and self._rounds:
            self.survivors = pids
        self._rounds += 1
        self.is_outrun = (
            not is_still and self._rounds > OUTRUN_ROUNDS and not self.killed.issuperset(pids)
        )
        self.killed.update(pids)
        return Send(KILL, pids)
