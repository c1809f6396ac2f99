"""How a tree is ended: TERM, a grace, KILL until nothing is left. Pure: told the time and who is
there, says what to send.

    TERMINATING  until the grace is over: TERM once to each member, CONT after it (a stopped process
                 acts on TERM only then).
    KILLING      KILL to every member that each scan finds, since a tree may fork on while it is
                 being killed.
    DONE         two scans in a row found nothing alive.

After 2 s of KILLING whoever waits is told who is left: such as sleep where no signal reaches them,
and a bomb that has spread over thousands of sessions. The kill itself is never given up, only less
eager after 10 s.

Two scans, because one is not a point in time: it may list the pids, then a member forks, then it
finds that member dead. The next one began after that death, so it lists the child. The child may do
the same to the second scan. Therefore the second scan counts only if it is clear: it read
everything that it listed, and knows whose each process is.

Killing at sight rather than stopping first: a process that has got KILL cannot fork again, the same
as a stopped one, and it is one signal instead of two. Parenthood may be lost on the way, which the
warden's memory of members makes good. A tree that forks faster than the rounds come (``is_outrun``)
is for ``fork_bombs``.
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
    """Signals to send, in order, to each of these."""

    numbers: tuple[signal.Signals, ...]
    pids: tuple[int, ...]


TERMINATE = (signal.SIGTERM, signal.SIGCONT)
KILL = (signal.SIGKILL,)


class TreeKill:
    """One kill. Times are monotonic seconds. A second request for the same tree can only shorten
    the grace.

    The leader's group gets its signals at once, without a scan; ``group`` is its number while that
    is so, None otherwise.
    """

    def __init__(self, now: float, grace_seconds: float, group: int | None) -> None:
        self.phase = Phase.TERMINATING if grace_seconds > 0 else Phase.KILLING
        self.kill_at = now + grace_seconds
        self.group = group
        self.terminated: set[int] = set()
        self.killed: set[int] = set()
        self.survivors: tuple[int, ...] = ()
        """Who is left when 2 s are over."""
        self.is_reported = False
        """Nobody waits for the end any more: they were told. The owner sets it."""
        self.is_outrun = False
        """The tree forks faster than rounds follow: they keep finding new processes, or are not
        clear."""
        self._was_last_scan_empty = False
        self._unclear_rounds = 0
        self._rounds = 0

    def shorten_grace(self, now: float, grace_seconds: float) -> None:
        """The one who asks will wait for an answer again."""
        self.kill_at = min(self.kill_at, now + grace_seconds)
        self.is_reported = False

    def is_eager(self, now: float) -> bool:
        """Whether scans should follow each other closely for its sake."""
        return now < self.kill_at + EAGER_SECONDS

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        return TERMINATE if self.phase is Phase.TERMINATING else KILL

    def advance_clock(self, now: float) -> bool:
        """Move on with the clock; whether KILLING just began, so that everybody known can get KILL
        at once."""
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
        """Take the result of a scan that began at ``began``: whom to signal, or None when it is
        over (DONE).

        ``is_clear``: no member can have been missed by the scan. ``is_still``: no process could
        change meanwhile.
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
            # Never twice: to many programs the second TERM means "drop everything".
            fresh = [p.pid for p in alive if p.pid not in self.terminated and p.group != self.group]
            self.terminated.update(fresh)
            return Send(TERMINATE, tuple(fresh))
        pids = tuple(sorted(process.pid for process in alive))
        # Not before a round of KILL: on a starved machine the first scan may come after the time is
        # up.
        if began - self.kill_at >= REPORT_SECONDS and self._rounds:
            self.survivors = pids
        self._rounds += 1
        self.is_outrun = (
            not is_still and self._rounds > OUTRUN_ROUNDS and not self.killed.issuperset(pids)
        )
        self.killed.update(pids)
        return Send(KILL, pids)
