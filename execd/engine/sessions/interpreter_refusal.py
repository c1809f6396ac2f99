"""Interpreters that cannot serve sessions: how a failed start is judged, and when to try again.

A start fails because of the interpreter, or because of the machine at the moment (no memory, no
process, a zygote killed from outside). Only an interpreter is refused; a refusal stands until the
interpreter changes, or a later start succeeds.

A ``Footprint`` tells whether the interpreter has changed: its file, or a folder of sys.path, where
each installation of a package leaves another time. A change within a package leaves none, so a
refused interpreter also gets a new start some time after the last (``zygote_client``).
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions import exit_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from execd.proc.client import SpawnError
    from execd.proc.messages import Exited

OLDEST_PYTHON = (3, 9)

# Errors of exec(2) that the program's file causes.
_CAUSES_BY_ERRNO = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.ELOOP: "not_found",
    errno.ENAMETOOLONG: "not_found",
    errno.EACCES: "not_executable",
    errno.EPERM: "not_executable",
    errno.EISDIR: "not_executable",
    errno.ENOEXEC: "not_a_python",
    errno.ELIBBAD: "not_a_python",
    errno.EINVAL: "not_a_python",
}
# Sent from outside: by the kernel without memory, by an operator, or by user code.
_SIGNALS_FROM_OUTSIDE = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGXCPU,
)
# Last words of a Python, or of a dynamic loader, without memory or descriptors.
_WORDS_OF_NEED = (
    "MemoryError",
    "Cannot allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "Too many open files",
    "Resource temporarily unavailable",
    "No space left on device",
)
_SEEN_IN_STDERR_CHARS = 1000


class Refusal(NamedTuple):
    """Why an interpreter cannot serve sessions."""

    cause: str
    """One of the words of docs/reference/capabilities.md."""
    message: str
    """For people. May quote what the interpreter printed."""

    @property
    def is_certain(self) -> bool:
        """Whether no trouble of the machine can look the same."""
        return self.cause not in ("crashed", "garbage", "hangs")


def of_spawn_error(error: SpawnError) -> Refusal | None:
    """Return the refusal for a program that exec(2) refuses. None: another step failed."""
    cause = _CAUSES_BY_ERRNO.get(error.error) if error.step == "exec" else None
    return None if cause is None else Refusal(cause, str(error))


def of_version(python: str, version: Sequence[int]) -> Refusal | None:
    """Return the refusal for a Python that is too old."""
    if tuple(version) >= OLDEST_PYTHON:
        return None
    return Refusal(
        "too_old",
        f"Python {'.'.join(map(str, version))} at {python} is too old: sessions need Python "
        f"{'.'.join(map(str, OLDEST_PYTHON))} or newer",
    )


def of_end(python: str, ended: Exited, *, has_begun: bool, stderr: str) -> Refusal | None:
    """Return the refusal for an interpreter that ended before it was ready, without a reason.

    ``has_begun``: whether the interpreter ran the zygote's program. None: the end says nothing
    about the interpreter.
    """
    decoded = exit_status.decode(ended.wait_status)
    if decoded.term_signal in _SIGNALS_FROM_OUTSIDE or any(
        words in stderr for words in _WORDS_OF_NEED
    ):
        return None
    how = (
        f"signal {decoded.term_signal} ({signal.strsignal(decoded.term_signal)})"
        if decoded.term_signal is not None
        else f"exit code {decoded.exit_code}"
    )
    said = f": {seen}" if (seen := stderr.strip()[-_SEEN_IN_STDERR_CHARS:]) else ""
    if has_begun:
        return Refusal("crashed", f"{python} crashed with {how} while it loaded IPython{said}")
    if decoded.term_signal is not None:
        return Refusal("crashed", f"{python} crashed at its start with {how}{said}")
    return Refusal("not_a_python", f"{python} ended with {how} and does not run Python{said}")


class Footprint:
    """The traces that a change of an interpreter leaves in the file system."""

    def __init__(self, python: str) -> None:
        self._found = {python: _look_at(python)}

    def include(self, folders: Iterable[str]) -> None:
        """Look at the folders of sys.path, too."""
        self._found |= {folder: _look_at(folder) for folder in folders}

    def has_changed(self) -> bool:
        return any(_look_at(path) != found for path, found in self._found.items())


def _look_at(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: sys.path may hold any text
        return None
    return (found.st_dev, found.st_ino, found.st_mode, found.st_mtime_ns, found.st_ctime_ns)
