"""A program's standard input, from the daemon's side: the bytes of callers, in order, as fast as
the program reads.

Stdin owns the descriptor. There is one write at a time. A writer waits while the pipe is full and
holds only its caller's bytes; nothing is queued. When the program has closed its input, or has
ended, the writer gets Conflict.
"""

from __future__ import annotations

import asyncio
import os

from execd.errors import Conflict


class Stdin:
    """Ended by ``close``, or by the program; each write after the end raises."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = fd
        self._turn = asyncio.Lock()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    async def write(self, data: bytes) -> None:
        """Return when the kernel has taken all bytes. Raises Conflict."""
        async with self._turn:
            view = memoryview(data)
            while view:
                if self._fd is None:
                    raise Conflict("the program's standard input is closed")
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    await self._wait_writable(self._fd)
                except OSError:  # EPIPE: nobody reads any more; EIO: the terminal is gone
                    self.close()

    async def _wait_writable(self, fd: int) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(fd, _set, writable)
        try:
            await asyncio.wait((writable, self._closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._fd is not None:
                self._loop.remove_writer(fd)

    async def end(self) -> None:
        """Close after the current write: the program reads end of file."""
        async with self._turn:
            self.close()

    def close(self) -> None:
        """Close at once; a waiting writer gets Conflict."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._loop.remove_writer(fd)
            os.close(fd)
            if not self._closed.done():
                self._closed.set_result(None)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
