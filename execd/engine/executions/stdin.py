"""A program's standard input, from the daemon's side: the bytes of callers, in order, as fast as
the program reads.

Stdin owns the descriptor. There is one write at a time. A writer waits while the pipe is full and
holds only its caller's bytes; nothing is queued. When the program has closed its input, or has
ended, the writer gets Conflict.

In gVisor a pipe with room for a byte is ready for writing, but refuses up to PIPE_BUF bytes that do
not fit as a whole. A writer that offered all of them again would keep the loop busy until the
program reads. So a writer that is refused though the pipe is ready offers half as much.
"""

from __future__ import annotations

import asyncio
import os
import select

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
            n_offered, is_ready = len(view), False
            while view:
                if self._fd is None:
                    raise Conflict(
                        "stdin: closed; its end was sent, or the program has closed its input, so "
                        "nothing more can be written; start the program again"
                        " to send more"
                    )
                try:
                    view = view[os.write(self._fd, view[:n_offered]) :]
                    n_offered, is_ready = len(view), False
                except BlockingIOError:
                    if is_ready and 1 < n_offered <= select.PIPE_BUF:
                        n_offered //= 2
                        continue
                    await self._wait_writable(self._fd)
                    n_offered, is_ready = len(view), True
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
