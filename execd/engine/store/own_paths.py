"""Directories made or opened by a root daemon along a path under the control of user code.

The danger: user code owns a directory of the path, and puts a link or another directory in the
place of the next name. A root daemon going by path then makes, deletes or opens a file in a place
chosen by user code.

The rules for a root daemon (without root, the kernel treats daemon and user code alike):

* The daemon acts as the user where the user may act. The kernel then refuses every action forbidden
  to the user.
* As root the daemon goes name by name, and opens each name below the descriptor of the directory
  before. The daemon follows a link only if the link belongs to root: user code cannot make a link
  of root.
* A directory made by root must still belong to root when root opens the directory. Otherwise user
  code replaced the directory between mkdir and open.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, TypeVar

from execd.proc.spawn import KEEP_IDENTITY, Identity, act_as

if TYPE_CHECKING:
    from collections.abc import Callable

# The kernel follows as many, path_resolution(7).
MAX_LINKS = 40

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

T = TypeVar("T")


def open_directory(path: str, mode: int) -> int:
    """Open the directory at the absolute ``path`` (O_PATH), made with ``mode`` if missing.

    Missing parents get mode 0755. Raises OSError with the path at fault; EACCES also if a link, or
    a new directory, does not belong to root.
    """
    assert path.startswith("/")
    if os.geteuid() != 0:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            os.makedirs(path, mode=mode, exist_ok=True)
            return os.open(path, flags)
    for _ in range(MAX_LINKS):
        found = _walk(path, mode)
        if isinstance(found, int):
            return found
        path = found
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _walk(path: str, mode: int) -> int | str:
    """Return the directory; at the first link, return the path with the link's target instead."""
    names = [name for name in path.split("/") if name]
    folder = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        for n, name in enumerate(names):
            here = "/" + "/".join(names[: n + 1])
            following = _step(folder, name, mode if n == len(names) - 1 else 0o755, here)
            os.close(folder)
            folder = following
            info = os.fstat(folder)
            if stat.S_ISLNK(info.st_mode):
                if info.st_uid != 0:
                    raise PermissionError(
                        errno.EACCES, f"a link that belongs to uid {info.st_uid}", here
                    )
                target = os.fsdecode(os.readlink(b"", dir_fd=folder))
                # No earlier name is a link, so normpath may remove ".." from the text.
                return os.path.normpath(
                    os.path.join(os.path.dirname(here), target, *names[n + 1 :])
                )
            if not stat.S_ISDIR(info.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
        found, folder = folder, -1
        return found
    finally:
        if folder >= 0:
            os.close(folder)


def _step(folder: int, name: str, mode: int, here: str) -> int:
    """Open ``name`` below ``folder``; make a directory of that name if missing."""
    try:
        return os.open(name, _STEP, dir_fd=folder)
    except FileNotFoundError:
        pass
    os.mkdir(name, mode, dir_fd=folder)
    made = os.open(name, _STEP, dir_fd=folder)
    info = os.fstat(made)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != 0:
        os.close(made)
        raise PermissionError(errno.EACCES, "somebody took the name of a new directory", here)
    return made


def make_base_dir(path: str, identity: Identity) -> None:
    """Make the base dir if missing; a new base dir belongs to the user.

    The daemon makes the directory as the user, if the user may. Otherwise root makes the directory,
    but only in a parent under root's control alone. There user code cannot replace the new
    directory between mkdir and chown. Raises OSError if the user cannot enter the base dir.
    """
    try:
        as_user(identity, lambda: _make_and_enter(path))
    except PermissionError:
        if identity == KEEP_IDENTITY or os.path.exists(path):
            raise
        parent = open_directory(os.path.dirname(path), 0o755)
        try:
            info = os.fstat(parent)
            if info.st_uid != 0 or info.st_mode & 0o022:
                raise
            name = os.path.basename(path)
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chown(
                name, identity.uid or 0, identity.gid or 0, dir_fd=parent, follow_symlinks=False
            )
        finally:
            os.close(parent)
        as_user(identity, lambda: _make_and_enter(path))


def _make_and_enter(path: str) -> None:
    place = os.path.realpath(path)
    os.makedirs(place, exist_ok=True)
    if not os.access(place, os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)


def as_user(identity: Identity, call: Callable[[], T]) -> T:
    """Run ``call`` in a thread with the user's file rights, and return the result.

    Raises the errors of ``call``, and OSError if the daemon cannot act as the user.
    """
    if identity == KEEP_IDENTITY:
        return call()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act_as(identity)
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="as-user")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    assert results, "the thread ended with neither a result nor an error"
    return results[0]
