"""A program's standard input and output: the daemon's ends of the pipes or of the terminal.

ProgramIO owns every descriptor that it opens. The program's ends go to the warden, and the warden's
client closes them (``descriptors`` is then empty here); ``close`` closes the daemon's ends. The
pumps read from ``start`` on: until the program is known to run, the pipes hold its output.

Reading a terminal ends with EIO once the last slave is closed (pty(7)); the pump takes EIO as end
of file. Where the kernel sends no SIGWINCH and no SIGHUP (``signals_terminals``), the runner of the
command sends both.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import select
import struct
import termios
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.output.pump import Pump
from execd.errors import Conflict
from execd.model import COLUMNS, ROWS, STREAMS
from execd.proc.messages import NULL_DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from execd.model import Command, Stream


TERMINAL_TYPE = "xterm-256color"
"""TERM of a program whose request names no other type. Without TERM no program can clear the screen
or find a key."""
END_OF_FILE = b"\x04"
"""The VEOF character: a line discipline in canonical mode takes it for end of file. A terminal
cannot be half closed."""


def typed(text: bytes, *, ends: bool) -> bytes:
    """Return the keys for a text, with end of file after the text if the input ``ends``.

    In the middle of a line the first END_OF_FILE only gives the program the line so far.
    """
    if not ends:
        return text
    is_line = not text or text.endswith(b"\n")
    return text + END_OF_FILE * (1 if is_line else 2)


class Terminal(NamedTuple):
    """Both ends, close-on-exec: the daemon keeps the master, the program gets the slave as its 0, 1
    and 2. The caller closes them."""

    master: int
    slave: int


def open_terminal(cols: int, rows: int) -> Terminal:
    """Raises OSError, for example when the system has no more terminals."""
    master, slave = os.openpty()
    try:
        set_size(master, cols, rows)
    except OSError:
        os.close(master)
        os.close(slave)
        raise
    return Terminal(master, slave)


def set_size(master: int, cols: int, rows: int) -> bool:
    """TIOCSWINSZ, ioctl_tty(2). Return whether the size is another now: then Linux sends SIGWINCH.
    Programs that divide by a size of 0 fail, so 0 is not set."""
    size = struct.pack("HHHH", rows or ROWS, cols or COLUMNS, 0, 0)
    before = fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(len(size)))
    fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    return before != size


class Stdin:
    """A program's standard input: the bytes of callers, in order, as fast as the program reads.

    There is one write at a time. A writer waits while the pipe is full and holds only its caller's
    bytes; nothing is queued. When the program has closed its input, or has ended, the writer gets
    Conflict.

    In gVisor a pipe with room for a byte is ready for writing, but refuses up to PIPE_BUF bytes
    that do not fit as a whole. A writer that offered all of them again would keep the loop busy
    until the program reads. So a writer that is refused though the pipe is ready offers half as
    much.

    Owns the descriptor. Ended by ``close``, or by the program; each write after the end raises."""

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


class ProgramIO:
    """The descriptors of one spawn. Raises OSError, with nothing left open, if there are no
    descriptors."""

    def __init__(
        self,
        command: Command,
        append: Callable[[Stream, bytes], Awaitable[None] | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.stdio: list[int] = []
        """The program's 0, 1, 2 …, as in ``messages.Spawn``."""
        self.descriptors: list[int] = []
        """The program's ends."""
        self._loop = loop
        self._command = command
        self._append = append
        self._pumps: dict[Stream, Pump] = {}
        self._stdin: Stdin | None = None
        self._terminal_fd: int | None = None
        self._feeder: asyncio.Task[None] | None = None
        try:
            if command.terminal is not None:
                self._open_terminal(command.terminal.cols, command.terminal.rows)
            else:
                self._open_pipes()
            if command.program.script is not None:
                self._give(_script_descriptor(command.program.script))
        except OSError:
            self._close_ours()
            self.close_theirs()
            raise

    def _open_terminal(self, cols: int, rows: int) -> None:
        terminal = open_terminal(cols, rows)
        append = functools.partial(self._append, "stdout")
        self._pumps["stdout"] = Pump(terminal.master, append, self._loop)
        self.stdio = [0, 0, 0]
        self.descriptors.append(terminal.slave)
        self._terminal_fd = os.dup(terminal.master)
        self._stdin = Stdin(os.dup(terminal.master))

    def _open_pipes(self) -> None:
        if self._command.stdin or self._command.stdin_open:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            self._stdin = Stdin(write_end)
            self._give(read_end)
        else:
            self.stdio.append(NULL_DEVICE)
        for stream in STREAMS:
            if stream == "stderr" and self._command.merges_output:
                self.stdio.append(self.stdio[-1])
                continue
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            append = functools.partial(self._append, stream)
            self._pumps[stream] = Pump(read_end, append, self._loop)
            self._give(write_end)

    def _give(self, fd: int) -> None:
        self.stdio.append(len(self.descriptors))
        self.descriptors.append(fd)

    # Input.

    @property
    def has_terminal(self) -> bool:
        return self._terminal_fd is not None

    def start(self) -> None:
        """Read the program's output, and write the input of the request, then end of file unless
        callers may send more. A terminal stays open after its end of file."""
        for pump in self._pumps.values():
            pump.start()
        if self._stdin is not None:
            self._feeder = asyncio.create_task(self._feed(self._stdin), name="stdin")

    async def _feed(self, stdin: Stdin) -> None:
        try:
            text, ends = self._command.stdin, not self._command.stdin_open
            if self.has_terminal:
                if text:  # without a first input somebody at the terminal is expected to type
                    await stdin.write(typed(text, ends=ends))
                return
            await stdin.write(text)
            if ends:
                await stdin.end()
        except Conflict:
            pass  # the program did not read all its input

    async def write(self, data: bytes) -> None:
        """Return when the program, or the pipe, has taken all bytes. Raises Conflict."""
        if self._stdin is None or not (self._command.stdin_open or self.has_terminal):
            raise Conflict(
                "stdin: the program has no open standard input; start it with stdin_open or a pty"
            )
        await self._stdin.write(data)

    async def end(self) -> None:
        """Send end of file after the bytes written so far; on a terminal send Ctrl-D. Raises
        Conflict."""
        if self.has_terminal:
            await self.write(END_OF_FILE)
        elif self._stdin is not None:
            await self._stdin.end()

    def resize(self, cols: int, rows: int) -> bool:
        """Return whether the size is another now. Raises Conflict if there is no terminal."""
        if self._terminal_fd is None:
            raise Conflict("the program has no terminal; start it with pty")
        return set_size(self._terminal_fd, cols, rows)

    # The end.

    def read_now(self) -> None:
        """Read the output that is there, without waiting for the loop."""
        for pump in self._pumps.values():
            pump.drain_now()

    async def drain(self, timeout_seconds: float) -> None:
        """Read the rest of the output, for the timeout at the most: a descendant may hold the pipes
        open."""
        self.read_now()
        # A pump that has met the end of its stream is closed, and has no write under way.
        self._pumps = {stream: pump for stream, pump in self._pumps.items() if pump.is_open}
        if self._pumps:
            for pump in self._pumps.values():
                pump.start()
            await asyncio.wait(
                [pump.ended for pump in self._pumps.values()], timeout=max(0.0, timeout_seconds)
            )

    async def close(self, *, spares_pipes: bool = False) -> dict[Stream, Pump]:
        """Close the daemon's ends, and the program's ends if no warden has taken them. Wait for a
        write to disk that is under way, and take the output behind that write. Afterwards nothing
        writes to the log.

        ``spares_pipes``: return the pumps of pipes that other processes hold, paused. The caller
        owns them from now on. A terminal is closed in any case: its session has lost its leader.
        """
        self.close_theirs()
        for pump in self._pumps.values():
            if pump.is_writing:
                await pump.drain_after_writes()
            pump.pause()
            if pump.is_writing:
                await pump.wait_for_write()
        spared = {}
        if spares_pipes and self._pumps and not self.has_terminal:
            spared = {stream: pump for stream, pump in self._pumps.items() if pump.is_open}
            self._pumps = {}
        self._close_ours()
        if self._feeder is not None:
            await asyncio.gather(self._feeder, return_exceptions=True)
            # A cancelled task keeps its exception, and the exception keeps this object.
            self._feeder = None
        return spared

    def _close_ours(self) -> None:
        if self._feeder is not None:
            self._feeder.cancel()
        if self._stdin is not None:
            self._stdin.close()
        if self._terminal_fd is not None:
            os.close(self._terminal_fd)
            self._terminal_fd = None
        for pump in self._pumps.values():
            pump.close()

    def close_theirs(self) -> None:
        """Close the program's ends, when no warden has taken them."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def give_to_user(descriptors: Iterable[int], uid: int | None, gid: int | None) -> None:
    """Give pipes or a terminal to the user of the program, who else may not open /dev/stdout,
    /dev/stderr and the terminal by name. ``uid`` None: the program's user is the daemon's."""
    if uid is None:
        return
    for fd in descriptors:
        with contextlib.suppress(OSError):  # without CAP_CHOWN they work by number only
            os.fchown(fd, uid, -1 if gid is None else gid)


def _script_descriptor(text: str) -> int:
    fd = os.memfd_create("execd-script", os.MFD_CLOEXEC)
    try:
        view = memoryview(os.fsencode(text))
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)  # Python reads the descriptor itself; a shell opens its path
    except OSError:
        os.close(fd)
        raise
    return fd
