"""Everything below a directory, one thing at a time, while user code rewrites it.

Theory. As in ``resolve``, no path is handed to the kernel whole: each directory is opened by its
one name below the descriptor of its parent, never through a link. The way back up is the parent's
descriptor, which is still open, and not ".." (why: ``resolve``). Of a tree deeper than ``MAX_HELD``
only the innermost directories are held: what is above them is found again by name from the top, and
if it is another directory by then, user code has moved one under the walk, and it ends
(TreeChanged).

Procfs, sysfs, their like and the state dir are not entered; nor is anything inside the temporary
files of this process' uploads.
"""

from __future__ import annotations

import os
import stat
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from execd.files.resolve import TreeChanged, identity, open_directory
from execd.files.syscalls import is_kernel_interface

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from execd.files.resolve import Forbidden


# Descriptors that one walk may hold. Trees that people make are a tenth as deep.
MAX_HELD = 256


class Step(Enum):
    LEAF = auto()
    """Something that is no directory; links are leaves."""
    ENTER = auto()
    """A directory, before what is in it."""
    LEAVE = auto()
    """The same, after what is in it."""
    REFUSED = auto()
    """Something that could not be looked at, or a directory that is not to be entered; neither
    ENTER nor LEAVE comes for it."""


class Visit(NamedTuple):
    step: Step
    parents: list[bytes]
    """The names of the directories from where the walk began to ``directory``: the walk's own list,
    good until the next step. No path for every level: a tree that is thousands deep would take its
    square in memory."""
    name: bytes
    directory: int
    """The descriptor of the directory it lies in, open until the next step."""
    info: os.stat_result | None
    """Of itself, not of what a link leads to. None where it could not be asked."""
    error: OSError | None
    """Why it was refused; None then means: on purpose."""

    @property
    def path(self) -> bytes:
        """Relative to where the walk began."""
        return b"/".join((*self.parents, self.name))


class _Level:
    """A directory that the walk is in. Owns its descriptor, unless it is -1: let go of, to be found
    again."""

    def __init__(self, fd: int, info: os.stat_result, names: list[bytes]) -> None:
        self.fd = fd
        self.info = info
        self.names = names
        """Still to come, the next one last."""


def walk(
    top: int,
    forbidden: Forbidden,
    skipped_prefix: bytes | None = None,
    max_depth: int | None = None,
    on_open: Callable[[bytes, int], None] | None = None,
) -> Generator[Visit, None, None]:
    """Visit what is below the directory ``top``, a descriptor that stays the caller's, in the order
    of names.

    Names that begin with ``skipped_prefix`` are passed over. Directories that many names down are
    not entered: they are leaves. ``on_open`` gets the path and descriptor of each directory below
    ``top`` before its names are read. Raises TreeChanged; OSError if ``top`` cannot be listed.
    """
    levels: list[_Level] = []
    parents: list[bytes] = []
    try:
        fd = os.open(f"/proc/self/fd/{top}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        levels.append(_Level(fd, os.fstat(fd), []))
        levels[0].names = _names(fd, skipped_prefix)
        while True:
            level = levels[-1]
            if not level.names:
                if len(levels) == 1:
                    return
                os.close(levels.pop().fd)
                name = parents.pop()
                if levels[-1].fd < 0:
                    _find_again(levels, parents)
                yield Visit(Step.LEAVE, parents, name, levels[-1].fd, level.info, None)
                continue
            name = level.names.pop()
            try:
                found = os.stat(name, dir_fd=level.fd, follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode) or len(levels) == max_depth:
                    yield Visit(Step.LEAF, parents, name, level.fd, found, None)
                    continue
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Visit(Step.REFUSED, parents, name, level.fd, None, error)
                continue
            try:
                child = open_directory(name, level.fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Visit(Step.REFUSED, parents, name, level.fd, found, error)
                continue
            levels.append(_Level(child, os.fstat(child), []))
            entered = levels[-1]
            refusal: OSError | None = None
            is_refused = _is_forbidden(child, entered.info, level.info.st_dev, forbidden)
            if not is_refused:
                try:
                    if on_open is not None:
                        on_open(b"/".join((*parents, name)), child)
                    entered.names = _names(child, skipped_prefix)
                except OSError as error:
                    is_refused, refusal = True, error
            if is_refused:
                os.close(levels.pop().fd)
                yield Visit(Step.REFUSED, parents, name, level.fd, entered.info, refusal)
                continue
            yield Visit(Step.ENTER, parents, name, level.fd, entered.info, None)
            parents.append(name)
            if len(levels) > MAX_HELD + 1:  # but never of the top
                _let_go(levels[-MAX_HELD - 1])
    finally:
        for level in levels:
            _let_go(level)


def _let_go(level: _Level) -> None:
    if level.fd >= 0:
        os.close(level.fd)
        level.fd = -1


def _find_again(levels: list[_Level], parents: list[bytes]) -> None:
    """Open the innermost ``MAX_HELD`` levels again, all the way down from the top, which is always
    held. Raises TreeChanged."""
    fd = os.dup(levels[0].fd)
    try:
        for depth in range(1, len(levels)):
            try:
                below = open_directory(parents[depth - 1], fd)
            except OSError:
                raise TreeChanged from None
            os.close(fd)
            fd = below
            if identity(os.fstat(fd)) != identity(levels[depth].info):
                raise TreeChanged
            if depth >= len(levels) - MAX_HELD:
                levels[depth].fd = os.dup(fd)
    finally:
        os.close(fd)


def _names(directory: int, skipped_prefix: bytes | None) -> list[bytes]:
    names = sorted(map(os.fsencode, os.listdir(directory)), reverse=True)
    return (
        names
        if skipped_prefix is None
        else [name for name in names if not name.startswith(skipped_prefix)]
    )


def _is_forbidden(fd: int, info: os.stat_result, device: int, forbidden: Forbidden) -> bool:
    if info.st_dev in forbidden.devices or identity(info) == forbidden.state_dir:
        return True
    return info.st_dev != device and is_kernel_interface(fd)
