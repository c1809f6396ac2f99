"""Everything below a directory, one thing at a time, while user code rewrites it.

Theory. As in ``root``, no path is handed to the kernel whole: each directory is opened by its one name below the descriptor of
its parent, never through a link. One descriptor is open at a time, however deep the tree goes: the way back up is "..", checked
against the identity that was noted on the way down. If the parent is another one, user code has moved a directory under the walk,
and it ends (Moved): what it would do next, it would do somewhere else.

Procfs, sysfs, their like and the state dir are not entered; nor is anything inside the temporary files of this process' uploads.
"""

from __future__ import annotations

import os
import stat
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from execd.files.kernel import is_kernel_interface
from execd.files.landing import Identity, Moved, identity, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator

    from execd.files.landing import Forbidden


class Step(Enum):
    LEAF = auto()
    """Something that is no directory; links are leaves."""
    ENTER = auto()
    """A directory, before what is in it."""
    LEAVE = auto()
    """The same, after what is in it."""
    REFUSED = auto()
    """Something that could not be looked at, or a directory that is not to be entered; neither ENTER nor LEAVE comes for it."""


class Visit(NamedTuple):
    step: Step
    parents: list[bytes]
    """The names of the directories from where the walk began to ``directory``: the walk's own list, good until the next step.
    No path for every level: a tree that is thousands deep would take its square in memory."""
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


class _Level(NamedTuple):
    identity: Identity
    info: os.stat_result | None
    names: list[bytes]
    """Still to come, the next one last."""


def walk(top: int, forbidden: Forbidden, skipped_prefix: bytes | None = None) -> Generator[Visit, None, None]:
    """Visit what is below the directory ``top``, a descriptor that stays the caller's, in the order of names.

    Names that begin with ``skipped_prefix`` are passed over. Raises Moved; OSError if ``top`` cannot be listed.
    """
    current = os.open(f"/proc/self/fd/{top}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        info = os.fstat(current)
        device = info.st_dev
        levels = [_Level(identity(info), None, _names(current, skipped_prefix))]
        parents: list[bytes] = []
        while True:
            level = levels[-1]
            if not level.names:
                levels.pop()
                if not levels:
                    return
                parent = open_directory(b"..", current)
                os.close(current)
                current = parent
                info = os.fstat(current)
                if identity(info) != levels[-1].identity:
                    raise Moved
                device = info.st_dev
                yield Visit(Step.LEAVE, parents, parents.pop(), current, level.info, None)
                continue
            name = level.names.pop()
            try:
                found = os.stat(name, dir_fd=current, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Visit(Step.REFUSED, parents, name, current, None, error)
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield Visit(Step.LEAF, parents, name, current, found, None)
                continue
            try:
                child = open_directory(name, current)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Visit(Step.REFUSED, parents, name, current, found, error)
                continue
            try:
                entered = os.fstat(child)
                if _is_forbidden(child, entered, device, forbidden):
                    yield Visit(Step.REFUSED, parents, name, current, entered, None)
                    continue
                try:
                    names = _names(child, skipped_prefix)
                except OSError as error:
                    yield Visit(Step.REFUSED, parents, name, current, entered, error)
                    continue
                yield Visit(Step.ENTER, parents, name, current, entered, None)
                child, current = current, child
            finally:
                os.close(child)
            device = entered.st_dev
            levels.append(_Level(identity(entered), entered, names))
            parents.append(name)
    finally:
        os.close(current)


def _names(directory: int, skipped_prefix: bytes | None) -> list[bytes]:
    names = sorted(map(os.fsencode, os.listdir(directory)), reverse=True)
    return names if skipped_prefix is None else [name for name in names if not name.startswith(skipped_prefix)]


def _is_forbidden(fd: int, info: os.stat_result, device: int, forbidden: Forbidden) -> bool:
    if info.st_dev in forbidden.devices or identity(info) == forbidden.state_dir:
        return True
    return info.st_dev != device and is_kernel_interface(fd)
