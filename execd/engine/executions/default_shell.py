"""Whether /bin/sh can run, for readiness: without the shell nearly all commands fail.

An image without a shell is not broken. There a line of plain words starts its program, and any
other line fails with the advice to use ``argv``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from execd.engine.executions.command import SHELL, is_argv
from execd.engine.executions.plain_words import plain_words

if TYPE_CHECKING:
    from execd.model import Program
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
        self._is_missing = not os.path.lexists(SHELL[0])

    @property
    def is_missing(self) -> bool:
        """Whether the image came without a shell, and has none yet. Where a shell was before, its
        loss is trouble."""
        self._is_missing = self._is_missing and not os.path.lexists(SHELL[0])
        return self._is_missing

    def is_missed_by(self, program: Program) -> bool:
        """Whether ``program`` is a command line that no shell can read here."""
        return self.is_missing and program.argv[:-1] == SHELL and not is_argv(program)

    def words_instead(self, program: Program) -> list[str] | None:
        """Return the words to start where the image has no shell; None: as ``program`` says."""
        if not self.is_missed_by(program) or program.script is not None:
            return None
        return plain_words(program.argv[-1])

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
        if self.is_missing:
            return ""
        if not os.access(shell, os.X_OK):
            return f"{shell} is missing or not executable"
        return self._failure if self._failure and self._failed_file == _identity(shell) else ""


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
