"""Visit everything below a directory while user code rewrites the tree.

Theory. As in ``resolve``, the kernel never gets a whole path: the walk opens each directory by a
single name below the descriptor of the parent, never through a link. The way back up is the
parent's descriptor, still open, and not ".." (``resolve`` has the reason). In a tree deeper than
``MAX_HELD`` the walk holds only the innermost directories. To return to an outer directory, the
walk opens the names again from the top, and compares device and inode. A different directory means
that user code moved a directory under the walk, and the walk ends (TreeChanged).

The walk does not enter procfs, sysfs, similar file systems and the state dir, nor the temporary
files of this process's uploads. Names are read in batches of bounded memory (``names``).
"""

from __future__ import annotations

import os
import stat
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from execd.files.names import MAX_BATCH_BYTES, Names, next_names
from execd.files.resolve import (
    TreeChanged,
    go_down,
    identity,
    open_and_stat,
    open_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from execd.files.resolve import Forbidden


# Descriptors that a walk may hold. Ordinary trees are a tenth as deep.
MAX_HELD = 256

# The least memory for a batch of names, when the outer levels hold MAX_BATCH_BYTES between them.
MIN_BATCH_BYTES = 256 << 10


class Step(Enum):
    LEAF = auto()
    """Not a directory; links are leaves."""
    ENTER = auto()
    """A directory, before its content."""
    LEAVE = auto()
    """The same directory, after its content."""
    REFUSED = auto()
    """An entry without a readable stat, or a directory that is not entered; neither ENTER nor LEAVE
    follows."""


class Visit(NamedTuple):
    step: Step
    parents: list[bytes]
    """The names of the directories from the top of the walk to ``directory``. The list belongs to
    the walk and is valid until the next step. A path for each level would take memory quadratic in
    the depth, and a tree can be thousands deep."""
    name: bytes
    directory: int
    """The descriptor of the directory that holds the entry, open until the next step."""
    info: os.stat_result | None
    """The stat of the entry itself, not of a link's target. None if stat failed."""
    error: OSError | None
    """Why the entry was refused; None means on purpose."""

    @property
    def path(self) -> bytes:
        """The path relative to the top of the walk."""
        return b"/".join((*self.parents, self.name))

    def open_file(self) -> tuple[int, os.stat_result]:
        """Open the entry, a regular file, for reading; the caller closes the descriptor. Raises
        TreeChanged if another file has the name by now; OSError."""
        assert self.info is not None
        # O_NONBLOCK: the file may have been replaced by a FIFO. fstat shows the kind before any
        # read.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd, info = open_and_stat(self.name, flags, self.directory)
        if identity(info) != identity(self.info):
            os.close(fd)
            raise TreeChanged
        return fd, info


class _Level:
    """A directory on the way from the top to the current position.

    Owns the descriptor. The descriptor is -1 while the walk has let go of the level.
    """

    def __init__(self, fd: int, info: os.stat_result) -> None:
        self.fd = fd
        self.info = info
        self.names: Names | None = None
        """The batch of names under visit."""


def walk(
    top: int,
    forbidden: Forbidden,
    skipped_prefix: bytes | None = None,
    max_depth: int | None = None,
    on_open: Callable[[bytes, int], None] | None = None,
) -> Generator[Visit, None, None]:
    """Visit the entries below the directory ``top``, in the order of names.

    The descriptor ``top`` stays the caller's. Names that begin with ``skipped_prefix`` are passed
    over. Directories ``max_depth`` names down are leaves. ``on_open`` gets the path and descriptor
    of each directory below ``top`` before the names in the directory are read. Raises TreeChanged;
    OSError if ``top``, or the rest of a large directory, cannot be listed.
    """
    return _Walk(forbidden, skipped_prefix, max_depth, on_open).visits(top)


class _Walk:
    """The state of one walk. Owns the descriptors of its levels."""

    def __init__(
        self,
        forbidden: Forbidden,
        skipped_prefix: bytes | None,
        max_depth: int | None,
        on_open: Callable[[bytes, int], None] | None,
    ) -> None:
        self._forbidden = forbidden
        self._skipped_prefix = skipped_prefix
        self._max_depth = max_depth
        self._on_open = on_open
        self._levels: list[_Level] = []
        self._parents: list[bytes] = []
        self._names_bytes = 0
        """Memory of the names of all levels."""

    def visits(self, top: int) -> Generator[Visit, None, None]:
        """Raises TreeChanged, OSError."""
        try:
            fd = os.open(f"/proc/self/fd/{top}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._levels.append(_Level(fd, os.fstat(fd)))
            self._read_names(self._levels[0])
            while self._levels:
                assert len(self._levels) == len(self._parents) + 1
                name = self._next_name(self._levels[-1])
                visit = self._leave() if name is None else self._visit(self._levels[-1], name)
                if visit is not None:
                    yield visit
                    if visit.step is Step.ENTER:
                        self._descend(visit.name)
        finally:
            for level in self._levels:
                _let_go(level)

    def _visit(self, level: _Level, name: bytes) -> Visit | None:
        """Return None for an entry that has vanished. Raises OSError."""
        found: os.stat_result | None = None
        try:
            found = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode) or len(self._levels) == self._max_depth:
                return Visit(Step.LEAF, self._parents, name, level.fd, found, None)
            child = open_directory(name, level.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Visit(Step.REFUSED, self._parents, name, level.fd, found, error)
        return self._enter(child, name)

    def _enter(self, child: int, name: bytes) -> Visit:
        above = self._levels[-1]
        entered = _Level(child, os.fstat(child))
        self._levels.append(entered)
        refusal: OSError | None = None
        is_refused = self._forbidden.includes(child, entered.info, above.info.st_dev)
        if not is_refused:
            try:
                if self._on_open is not None:
                    self._on_open(b"/".join((*self._parents, name)), child)
                self._read_names(entered)
            except OSError as error:
                is_refused, refusal = True, error
        if is_refused:
            os.close(self._levels.pop().fd)
            return Visit(Step.REFUSED, self._parents, name, above.fd, entered.info, refusal)
        return Visit(Step.ENTER, self._parents, name, above.fd, entered.info, None)

    def _descend(self, name: bytes) -> None:
        """Add the innermost level's name to the parents."""
        self._parents.append(name)
        if len(self._levels) > MAX_HELD + 1:
            _let_go(self._levels[-MAX_HELD - 1])

    def _leave(self) -> Visit | None:
        left = self._levels.pop()
        os.close(left.fd)
        self._drop_names(left)
        if not self._levels:
            return None
        assert len(self._parents) == len(self._levels)
        name = self._parents.pop()
        if self._levels[-1].fd < 0:
            _find_again(self._levels, self._parents)
        return Visit(Step.LEAVE, self._parents, name, self._levels[-1].fd, left.info, None)

    def _next_name(self, level: _Level) -> bytes | None:
        """The next name in ``level``, the innermost; None at the end. Raises OSError."""
        while True:
            assert level.names is not None
            for name in level.names:
                if self._skipped_prefix is None or not name.startswith(self._skipped_prefix):
                    return name
            if level.names.is_last:
                return None
            self._read_names(level)

    def _read_names(self, level: _Level) -> None:
        """Read the next batch of names. Raises OSError."""
        after = b"" if level.names is None else level.names.last_name
        self._drop_names(level)
        room = max(MIN_BATCH_BYTES, MAX_BATCH_BYTES - self._names_bytes)
        level.names = next_names(level.fd, after, room)
        self._names_bytes += level.names.n_bytes

    def _drop_names(self, level: _Level) -> None:
        if level.names is not None:
            self._names_bytes -= level.names.n_bytes
            level.names = None
        assert self._names_bytes >= 0


def _let_go(level: _Level) -> None:
    if level.fd >= 0:
        os.close(level.fd)
        level.fd = -1


def _find_again(levels: list[_Level], parents: list[bytes]) -> None:
    """Open the innermost ``MAX_HELD`` levels again, from the top down. The top is always held.

    Raises TreeChanged.
    """
    assert levels[0].fd >= 0, "the top is always held"
    fd = os.dup(levels[0].fd)
    try:
        for depth in range(1, len(levels)):
            try:
                fd = go_down(fd, parents[depth - 1])
            except OSError:
                raise TreeChanged from None
            if identity(os.fstat(fd)) != identity(levels[depth].info):
                raise TreeChanged
            if depth >= len(levels) - MAX_HELD:
                levels[depth].fd = os.dup(fd)
    finally:
        os.close(fd)
