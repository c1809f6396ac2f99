"""Waiting for the daemon's own children: the warden, and orphans that the kernel gives to a PID 1
or a subreaper.

Only this module waits, so a child that this module has not reaped keeps its pid and may be
signaled.

What can race. A child may end before ``watch`` is called. If the child is still a zombie, ``watch``
reaps the child. If ``reap`` has reaped the child already, as an orphan, waitpid(2) finds no such
child. In both orders ``watch`` marks the child as gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05


class Reaper:
    """Reaps on SIGCHLD.

    ``everything``: also reap orphans. Right only for a process without a library that waits for
    children of its own.
    """

    def __init__(self, *, everything: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._everything = everything
        self._watched: dict[int, asyncio.Event] = {}
        self._on_stop: dict[int, Callable[[], None]] = {}
        # signal.signal and not the add_signal_handler of the loop: uvloop keeps SIGCHLD for itself.
        # The handler only wakes the loop.
        self._previous = signal.signal(signal.SIGCHLD, self._on_sigchld)

    def close(self) -> None:
        """Restore the former handler of SIGCHLD; in place of SIG_DFL or SIG_IGN a handler that does
        nothing.

        The kernel may deliver SIGCHLD just before Python's interpreter looks: Python writes a
        traceback to stderr if the handler has become SIG_DFL meanwhile (bpo-43406).
        """
        signal.signal(
            signal.SIGCHLD, self._previous if callable(self._previous) else lambda *_: None
        )

    def watch(self, pid: int, on_stop: Callable[[], None] = lambda: None) -> None:
        """Watch a child. ``on_stop`` is called when a signal has stopped the child: WUNTRACED of
        waitpid(2)."""
        assert pid > 0, "kill(2) and waitpid(2) take 0 and less for groups"
        self._watched[pid] = asyncio.Event()
        self._on_stop[pid] = on_stop
        if self._wait(pid) != 0:  # ended already, perhaps reaped as an orphan
            self._mark_gone(pid)

    def send_signal(self, pid: int, number: int) -> None:
        """Signal a watched child, unless the child has been reaped."""
        if pid in self._watched and not self._watched[pid].is_set():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                log.warning("a watched child vanished", extra={"child_pid": pid})

    async def wait_gone(self, pid: int, timeout_seconds: float) -> bool:
        """Wait until the child has been reaped and end the watch; return False after a timeout.

        Returns True at once for a child that is not watched (any more). Polls every POLL_SECONDS as
        well: a SIGCHLD that the kernel delivers to a different thread does not wake every kind of
        loop.
        """
        deadline = self._loop.time() + timeout_seconds
        gone = self._watched.get(pid)
        while gone is not None and not gone.is_set():
            if self._loop.time() > deadline:
                return False
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await gone.wait()
            except TimeoutError:
                self.reap()
        self._watched.pop(pid, None)
        self._on_stop.pop(pid, None)
        return True

    async def collect(self, pid: int, timeout_seconds: float) -> None:
        """Reap a child that is about to end by itself."""
        self.watch(pid)
        await self.wait_gone(pid, timeout_seconds)

    def reap(self) -> None:
        """Collect ended children. Never blocks."""
        if self._everything:
            while (pid := self._wait(-1)) != 0:
                self._mark_gone(pid)
        else:
            for watched in list(self._watched):
                if self._wait(watched) != 0:
                    self._mark_gone(watched)

    def _mark_gone(self, pid: int) -> None:
        if pid in self._watched:
            self._watched[pid].set()

    def _on_sigchld(self, _number: int, _frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.reap)

    def _wait(self, pid: int) -> int:
        """Return the pid of a reaped child; 0 if no child has ended.

        A ``pid`` above 0 without such a child counts as reaped.
        """
        while True:
            try:
                found, wait_status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 0 if pid == -1 else pid
            if found == 0 or not os.WIFSTOPPED(wait_status):
                return found
            self._on_stop.get(found, lambda: None)()
