"""Merge an unpacked archive into a directory that exists: everything or nothing.

A trial changes no file of the target, and finds what the kernel would refuse half way:

* An entry of another kind, an entry that may not be replaced, or a directory without permission to
  write: the merge ends.
* A directory on another mount takes no rename from here. The trial copies the subtree to that
  mount, under the temporary name in that directory, and the merge goes on from the copy.
* A mounted file takes no rename at all. The trial checks that the file can be written, and the
  merge writes the content into the file (``write.write_into``).

After the trial only an error of the disk, or user code in the same directories, can leave a half.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from typing import TYPE_CHECKING

from execd.errors import Conflict
from execd.files import write
from execd.files.change import remove_below
from execd.files.copy import copy_tree
from execd.files.mounts import mount_points
from execd.files.paths import blame, decode, denied
from execd.files.resolve import TreeChanged, open_directory, undoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.resolve import Forbidden
    from execd.files.root import Room


class _Pair:
    """A directory and the directory to merge into. Owns both; ``close`` ends the pair."""

    def __init__(self, source: int, target: int, path: bytes) -> None:
        self.source = source
        self.target = target
        self.path = path
        """Below the top of the merge."""
        self.names: list[bytes] = []
        """The names to come, the next name last."""
        self.takes_entries = False
        """Whether the trial has made an entry in the target."""

    def list(self) -> None:
        self.names = sorted(map(os.fsencode, os.listdir(self.source)), reverse=True)

    def below(self, name: bytes) -> _Pair:
        """Open the directories of this name in both. Raises OSError."""
        source = open_directory(name, self.source)
        with undoing(os.close, source):
            target = open_directory(name, self.target)
        return _Pair(source, target, posixpath.join(self.path, name))

    def close(self) -> None:
        os.close(self.source)
        os.close(self.target)


class Merge:
    """Moves the content of ``source`` into ``target``, directories into directories.

    Borrows both descriptors. Owns the copies on other mounts; ``close`` removes the copies.
    """

    def __init__(
        self,
        source: int,
        target: int,
        path: str,
        temporary: bytes,
        forbidden: Forbidden,
        room_of: Callable[[int], Room | None],
        modes: dict[bytes, int],
    ) -> None:
        """``path`` names the target to people. ``temporary`` is a name for copies on other mounts.
        ``modes``: by path, of the archive's directories. Directories that exist are taken out of
        ``modes``. Raises OSError.
        """
        self._source = source
        self._target = target
        self._path = path
        self._temporary = temporary
        self._forbidden = forbidden
        self._room_of = room_of
        self._modes = modes
        self._mount_points = mount_points(target)
        self._copied_to: list[int] = []
        """Directories on other mounts that hold a copy under the temporary name."""

    def run(self) -> None:
        """Raises Conflict, NoSpace, ReadOnly, PermissionDenied, TreeChanged, and errors of the
        disk."""
        self._pass(is_trial=True)
        self._pass(is_trial=False)

    def close(self) -> None:
        """Idempotent."""
        while self._copied_to:
            directory = self._copied_to.pop()
            with contextlib.suppress(OSError, TreeChanged):  # removed by user code
                remove_below(directory, self._temporary, self._forbidden)
            os.close(directory)

    def _pass(self, *, is_trial: bool) -> None:
        """Descend while both sides have directories of the same names, at most half of PATH_MAX
        deep. A recursive Python function could not call itself so often."""
        levels = [_Pair(os.dup(self._source), os.dup(self._target), b"")]
        try:
            levels[0].list()
            while levels:
                level = levels[-1]
                if not level.names:
                    levels.pop().close()
                    continue
                name = level.names.pop()
                try:
                    below = self._entry(level, name, is_trial)
                except OSError as error:
                    path = posixpath.join(self._path, decode(level.path), decode(name))
                    raise blame(error, repr(path)) from error
                if below is not None:
                    levels.append(below)
                    below.list()
        finally:
            for level in levels:
                level.close()

    def _entry(self, level: _Pair, name: bytes, is_trial: bool) -> _Pair | None:
        """Put an entry in place, or return the pair of directories to go on with."""
        path = posixpath.join(level.path, name)
        source_mode = os.stat(name, dir_fd=level.source, follow_symlinks=False).st_mode
        try:
            target_mode = os.stat(name, dir_fd=level.target, follow_symlinks=False).st_mode
        except FileNotFoundError:
            target_mode = None
        if target_mode is not None:
            is_mounted_file = path in self._mount_points and not stat.S_ISDIR(target_mode)
            if stat.S_ISDIR(source_mode) != stat.S_ISDIR(target_mode) or (
                is_mounted_file and not (stat.S_ISREG(source_mode) and stat.S_ISREG(target_mode))
            ):
                shown = repr(name.decode("utf-8", "replace"))
                raise Conflict(
                    f"{self._path!r}: {shown} in the archive would take the place of something of "
                    "another kind; remove that first"
                )
            if stat.S_ISDIR(source_mode):
                return self._directory(level, name, is_trial)
            if is_mounted_file:
                if is_trial:
                    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    os.close(os.open(name, flags, dir_fd=level.target))
                else:
                    write.write_into(level.source, name, level.target, name)
                return None
        if is_trial:
            self._try_entry(level)
            if target_mode is not None:
                # The kernel asks first whether the entry may go (a sticky directory, an immutable
                # file), and then for its kind.
                with contextlib.suppress(NotADirectoryError):
                    os.rmdir(name, dir_fd=level.target)
        else:
            os.rename(name, name, src_dir_fd=level.source, dst_dir_fd=level.target)
        return None

    def _try_entry(self, level: _Pair) -> None:
        """Find out once for each directory whether it takes entries. Raises OSError."""
        if not level.takes_entries:
            with contextlib.suppress(FileExistsError):  # the staging or a copy: it does
                os.mkdir(self._temporary, 0o700, dir_fd=level.target)
                os.rmdir(self._temporary, dir_fd=level.target)
            level.takes_entries = True

    def _directory(self, level: _Pair, name: bytes, is_trial: bool) -> _Pair:
        below = level.below(name)
        with undoing(below.close):
            self._modes.pop(below.path, None)
            if below.path in self._mount_points and os.listdir(below.source):
                if self._forbidden.includes(below.target, os.fstat(below.target), -1):
                    raise denied()
                if is_trial:
                    self._copy_to_mount(below)
                copied = open_directory(self._temporary, below.target)
                os.close(below.source)
                below.source = copied
            return below

    def _copy_to_mount(self, below: _Pair) -> None:
        os.mkdir(self._temporary, 0o700, dir_fd=below.target)
        self._copied_to.append(os.dup(below.target))
        copied = open_directory(self._temporary, below.target)
        try:
            copy_tree(
                below.source,
                copied,
                self._forbidden,
                source_path=posixpath.join(self._path, decode(below.path)),
                mode=None,
                room=self._room_of(copied),
                keeps_times=True,
            )
        finally:
            os.close(copied)
