"""The folder with the state of a daemon's bash sessions, in the directory for temporary files.

The state holds variables of the user, so the folder goes with the daemon. A daemon that is killed
leaves its folder behind, and the next daemon removes the folder. Several daemons may share the
directory, also from different containers, where a pid means nothing: a daemon that lives holds a
lock (flock(2)) on a file in its folder, and the kernel gives the lock up with the daemon.

The functions run in a thread, as the user of the commands.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from typing import NamedTuple

PREFIX = ".execd-bash-"
LOCK = "lock"
ATTEMPTS = 4


class BashStateFolder(NamedTuple):
    """The folder of this daemon. End with ``remove``."""

    path: str
    lock: int
    """Descriptor of the locked file."""

    def remove(self) -> None:
        """Remove the folder, as far as user code lets us, and give up the lock."""
        try:
            shutil.rmtree(self.path, ignore_errors=True)
        finally:
            os.close(self.lock)


def make_folder(directory: str) -> BashStateFolder:
    """Make the folder of this daemon. Raises OSError."""
    for _ in range(ATTEMPTS):
        path = os.path.join(directory, PREFIX + secrets.token_hex(8))
        os.mkdir(path, 0o700)
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _takes_lock(lock):
            return BashStateFolder(path, lock)
        os.close(lock)  # another daemon has taken the new folder for a leftover
    raise FileExistsError(f"{directory}: other daemons remove each new folder")


def remove_leftovers(directory: str) -> None:
    """Remove the folders of daemons that have ended. A folder without the file of the lock stays:
    the folder belongs to a daemon that is about to make the file, or to nobody whom execd knows."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in paths:
            _remove_if_free(path)


def _remove_if_free(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.islink(path):
            return
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(os.path.join(path, LOCK), flags)
        try:
            if _takes_lock(lock):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _takes_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
