"""``execd serve --detach``: the caller's process ends when the daemon listens, for a caller that
cannot leave a program in the background, such as a postStart hook.

The caller's process forks before the daemon has a thread, a loop or a large import. The child is
the daemon: a session of its own, /dev/null as 0, 1 and 2, and no other descriptor of the caller but
the log's (``--log-fd``). A descriptor that is left open keeps its reader waiting: containerd waits
for the end of a hook's output, and not only for the end of the hook.

A pipe carries what the child writes to ``sys.stderr`` until the daemon listens, and then one NUL.
The caller's process copies the text to its own stderr, and ends with 0 at the NUL. The end of the
pipe without a NUL is the end of the daemon, and its exit code becomes the caller's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

IS_LISTENING = b"\0"
STDIO = frozenset((0, 1, 2))
EXIT_NOT_LISTENING = 1
"""The exit code in the place of 0, for a daemon that ended in order before it listened."""


def detach(log_fd: int | None) -> Callable[[], None]:
    """Return in the daemon: a function to call when the daemon listens. The caller's process ends
    here. ``log_fd``: a descriptor that stays as it is."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        _follow(pid, reader)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    kept = {log_fd, writer, null}
    for fd in STDIO - kept:
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in STDIO | kept:
            with contextlib.suppress(OSError):  # the descriptor of the list itself
                os.close(fd)
    sys.stderr = os.fdopen(writer, "w", buffering=1, encoding="utf-8", errors="backslashreplace")

    def tell() -> None:
        with contextlib.suppress(OSError):  # the caller has gone away
            os.write(writer, IS_LISTENING)
        os.dup2(null, writer, inheritable=False)

    return tell


def _follow(pid: int, reader: int) -> None:
    """End the caller's process: with 0 once the daemon listens, or as the daemon has ended."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the wait, without a traceback
    while chunk := os.read(reader, 65_536):
        text, mark, _ = chunk.partition(IS_LISTENING)
        with contextlib.suppress(OSError):
            os.write(2, text)
        if mark:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(128 - code if code < 0 else code or EXIT_NOT_LISTENING)
