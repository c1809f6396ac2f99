"""The entries of one directory."""

from __future__ import annotations

import os
import stat
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.errors import ExecdError, NotFound
from execd.files.names import Names, few_names, next_names
from execd.files.paths import blame, decode
from execd.files.resolve import ResolvedPath, TreeChanged, reopen, undoing
from execd.files.root import Root, retrying
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

# The most entries in a piece. A directory with no more names is answered in a single piece, with a
# reply of about 400 KB.
MAX_PIECE = 4096


class Entry(msgspec.Struct, frozen=True):
    """A name in a directory. ``name`` holds undecodable bytes as surrogate escapes: render with
    care."""

    name: str
    size_bytes: int
    kind: Literal["file", "directory"]
    """Everything except directories is a file: the python-runtime's SDK rejects a list with any
    third word."""
    modified_at: float
    """Seconds since the epoch."""
    mode: int
    """Permission bits."""


class Listing:
    """The entries of a directory, sorted by the bytes of their names, in pieces.

    Owns descriptors; ``close`` ends the listing. Not safe for two threads at a time.

    Symlinks with a target inside the root are described by the target. A symlink that dangles,
    loops or leads out is described by itself, as a file: the listing does not fail, and reveals
    nothing of the outside. Two kinds of entry are left out: entries removed during the listing, and
    the temporary files of this process's uploads.
    """

    def __init__(self, resolved: ResolvedPath, path: str, *, omits_dangling: bool) -> None:
        """Take over ``resolved``, a directory. Raises OSError."""
        self._path = path
        self._resolved = resolved
        self._omits_dangling = omits_dangling
        self.place = decode(resolved.place)
        """Where the directory is below the root, links resolved."""
        self._fd = reopen(resolved.directory, os.O_RDONLY | os.O_DIRECTORY)
        with undoing(os.close, self._fd):
            few = few_names(self._fd, MAX_PIECE)
            self.is_large = few is None
            """Whether there may be more than one piece."""
            # The first ``read`` gathers the names of a large directory, once the listing has its
            # turn.
            self._names = few or Names([b""], is_last=False)

    def read(self) -> list[Entry]:
        """Return the next entries, at most ``MAX_PIECE``; an empty list at the end. Raises
        ExecdError."""
        assert self._fd >= 0, "read after the end"
        try:
            return list(islice(self._entries(), MAX_PIECE))
        except OSError as error:
            raise blame(error, repr(self._path)) from error

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._resolved.close()

    def _entries(self) -> Iterator[Entry]:
        while True:
            for name in self._names:
                entry = self._describe(name)
                if entry is not None:
                    yield entry
            if self._names.is_last:
                return
            self._names = next_names(self._fd, self._names.last_name)

    def _describe(self, name: bytes) -> Entry | None:
        # A regular entry costs one lstat. The d_type of scandir would not spare the lstat, since
        # the size is needed.
        if name.startswith(TEMPORARY_PREFIX):
            return None
        try:
            info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(info.st_mode):
            target = _target(self._resolved, name)
            if target is None and self._omits_dangling:
                return None
            info = target or info
        return Entry(
            name=decode(name),
            size_bytes=info.st_size,
            kind="directory" if stat.S_ISDIR(info.st_mode) else "file",
            modified_at=info.st_mtime,
            mode=stat.S_IMODE(info.st_mode),
        )


@retrying
def open_listing(root: Root, path: str, *, omits_dangling: bool = False) -> Listing:
    """Begin to list the directory at ``path``; the caller closes the listing.

    ``omits_dangling`` leaves out links that lead nowhere or outside: sandboxd's listing does not
    show them. Raises NotFound (missing, or no directory), PermissionDenied, InvalidArgument,
    Conflict.
    """
    resolved = root.resolve(path)
    with undoing(resolved.close):
        if resolved.names:
            raise NotFound(f"{path!r} is not a directory")
        return Listing(resolved, path, omits_dangling=omits_dangling)


def _target(resolved: ResolvedPath, name: bytes) -> os.stat_result | None:
    """Return the stat of the target of link ``name``; None if the target is missing or outside."""
    try:
        with resolved.below(name) as target:
            return target.stat
    except (ExecdError, OSError, TreeChanged):
        return None
