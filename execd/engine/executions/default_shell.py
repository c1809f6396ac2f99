"""Whether /bin/sh can run, for readiness: without the shell nearly all commands fail."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from execd.engine.executions.command import SHELL

if TYPE_CHECKING:
    from execd.proc.client import SpawnError

# execve(2), of the file itself: missing (or its loader), not executable, of another machine. Other
# errors are of the request, or of a moment.
UNFIT_ERRORS = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENOEXEC))


class DefaultShell:
    """Remembers the last start of the shell that failed. A changed file may be a repair, so the
    failure counts as long as the file is the same."""

    def __init__(self) -> None:
        self._failure = ""
        self._failed_file: tuple[int, ...] | None = None

    def note_start(self, program: str) -> None:
        """``program`` runs."""
        if self._failure and program == SHELL[0]:
            self._failure = ""

    def note_failure(self, program: str, error: SpawnError) -> None:
        """``program`` could not be executed."""
        if program == SHELL[0] and error.error in UNFIT_ERRORS:
            self._failure, self._failed_file = str(error), _identity(program)

    @property
    def trouble(self) -> str:
        """Why the shell cannot run; empty: nothing is known against the shell."""
        shell = SHELL[0]
        if not os.access(shell, os.X_OK):
            return f"{shell} is missing or not executable"
        return self._failure if self._failure and self._failed_file == _identity(shell) else ""


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
