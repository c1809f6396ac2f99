"""A pump: move the bytes of one pipe into a log, in the event loop.

A pump reads from the first moment, and stops only while the log writes to the disk (``append``
returned an awaitable). A slow reader of the log therefore never blocks the program.

Most programs have ended by the time the daemon learns of their start. All their output is then in
the pipe: ``drain_now`` reads the pipe, and ``start``, which registers the descriptor with the event
loop, is never needed.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

READ_BYTES = 64 * 1024  # the capacity of a pipe
# Reads for one readiness event; then other callbacks run, even if a flood goes on.
READS_PER_TURN = 4
DRAIN_READS = 16


class Pump:
    """Own the read end ``fd``. The end of the stream or ``close`` closes the descriptor."""

    def __init__(
        self,
        fd: int,
        append: Callable[[bytes], Awaitable[None] | None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``append`` takes the bytes; the pump awaits a returned awaitable before the next read.
        ``loop``: the running loop, if the caller knows the loop."""
        assert fd >= 0
        self._loop = loop or asyncio.get_running_loop()
        self._fd = fd
        self._append = append
        self._writing: asyncio.Task[None] | None = None
        self.is_open = True
        self._ended: asyncio.Future[None] | None = None
        """Made when somebody waits: most pumps have ended by then."""
        self._is_started = False
        os.set_blocking(fd, False)

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the descriptor is closed."""
        if self._ended is None:
            self._ended = self._loop.create_future()
            if not self.is_open:
                self._ended.set_result(None)
        return self._ended

    def start(self) -> None:
        """Begin to read whenever the pipe is readable. Idempotent."""
        if not self._is_started and self.is_open:
            self._is_started = True
            if self._writing is None:
                self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        for _ in range(READS_PER_TURN):
            if not self._read_once():
                return

    def _read_once(self) -> bool:
        """Read once. Return whether a further read now may find more."""
        assert self._writing is None, "one write at a time"
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = self._read_after_hangup()
        if not data:
            self.close()
            return False
        write = self._append(data)
        if write is not None:
            if self._is_started:
                self._loop.remove_reader(self._fd)
            self._writing = asyncio.ensure_future(self._finish_write(write))
            return False
        return True

    def _read_after_hangup(self) -> bytes:
        """A terminal reports the end of file as EIO, when the other side is closed (pty(7)).

        Linux looks for output first, and then at the other side. A program that writes and ends in
        between makes a read fail although there is output; a second read finds the output.
        """
        try:
            return os.read(self._fd, READ_BYTES)
        except OSError:
            return b""

    def pause(self) -> None:
        """Read no more until ``resume``; the pipe stays open."""
        if self._is_started and self.is_open and self._writing is None:
            self._loop.remove_reader(self._fd)
        self._is_started = False

    def resume(self, append: Callable[[bytes], Awaitable[None] | None]) -> None:
        """Read on after ``pause``, for another taker of the bytes."""
        assert not self._is_started
        self._append = append
        self.start()

    async def _finish_write(self, write: Awaitable[None]) -> None:
        await write
        self._writing = None
        if self._is_started and self.is_open:
            self._loop.add_reader(self._fd, self._on_readable)

    def drain_now(self) -> None:
        """Read the pipe, without waiting for a readiness event.

        At most DRAIN_READS reads: a process that survives the program may write without end.
        """
        for _ in range(DRAIN_READS):
            if not self.is_open or self._writing is not None or not self._read_once():
                return

    def close(self) -> None:
        """Read no more, and close the descriptor. Idempotent."""
        if self.is_open:
            self.is_open = False
            if self._ended is not None:
                self._ended.set_result(None)
            if self._is_started:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)

    @property
    def is_writing(self) -> bool:
        """Whether a write to the disk is under way."""
        return self._writing is not None

    async def drain_after_writes(self) -> None:
        """Wait for the write to the disk under way, then read the pipe.

        Without this step, a slow disk would cost the bytes that the program wrote before its end.
        Bounded like ``drain_now``.
        """
        for _ in range(DRAIN_READS):
            if self._writing is None:
                return
            await asyncio.wait((self._writing,))
            self.drain_now()

    async def wait_for_write(self) -> None:
        """Wait for the write to the disk under way. After ``close`` no further write begins."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))
