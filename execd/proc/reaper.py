"""Waiting for the daemon's own children: the warden, and strangers that come to a PID 1 or a
subreaper.

Only this module waits, so a pid that it has not reaped is still ours to signal.
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
    """Reaps on SIGCHLD. ``everything``: strangers too, which is right for a process that is
    nobody's library."""

    def __init__(self, *, everything: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._everything = everything
        self._watched: dict[int, asyncio.Event] = {}
        self._on_stop: dict[int, Callable[[], None]] = {}
        # signal.signal and not the loop's own: uvloop keeps SIGCHLD for itself. The handler only
        # wakes the loop.
        self._previous = signal.signal(signal.SIGCHLD, self._on_sigchld)

    def close(self) -> None:
        signal.signal(signal.SIGCHLD, self._previous)

    def watch(self, pid: int, on_stop: Callable[[], None] = lambda: None) -> None:
        """``on_stop`` is called when a signal has stopped the child: WUNTRACED of waitpid(2)."""
        self._watched[pid] = asyncio.Event()
        self._on_stop[pid] = on_stop
        if self._wait(pid) != 0:  # dead already, or even reaped as a stranger
            self._mark_gone(pid)

    def send_signal(self, pid: int, number: int) -> None:
        """Signal a watched child, if it has not been reaped."""
        if pid in self._watched and not self._watched[pid].is_set():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                log.warning("a watched child vanished", extra={"child_pid": pid})

    async def wait_gone(self, pid: int, timeout_seconds: float) -> bool:
        """Whether the child was reaped in time, or before, when it is watched no more. Ends the
        watch.

        Looks for itself now and then: a SIGCHLD that the kernel hands to another thread does not
        wake every kind of loop.
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
        """Collect what has ended. Never blocks."""
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
        """The pid reaped; 0 if there is none now. No such child counts as reaped when it was asked
        for by number."""
        while True:
            try:
                found, wait_status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 0 if pid == -1 else pid
            if found == 0 or not os.WIFSTOPPED(wait_status):
                return found
            self._on_stop.get(found, lambda: None)()
