"""The entries of one directory."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal

import msgspec

from execd.errors import ExecdError, NotFound
from execd.files.paths import decode
from execd.files.resolve import ResolvedPath, TreeChanged, reopen
from execd.files.root import Root, retry_on_change
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator


class Entry(msgspec.Struct, frozen=True):
    """One name in a directory. ``name`` holds undecodable bytes as surrogate escapes: render it
    with care."""

    name: str
    size_bytes: int
    kind: Literal["file", "directory"]
    """Everything that is no directory is a file: the python-runtime's SDK rejects a list with any
    other word in it."""
    modified_at: float
    """Seconds since the epoch."""
    mode: int
    """Permission bits."""


def entries(root: Root, path: str) -> list[Entry]:
    """The entries of the directory at ``path``, sorted by their bytes.

    Symlinks that stay inside the root are described by their targets. One that dangles, loops or
    leads out is described by itself, as a file: a listing neither fails for it nor tells what is
    outside. Left out are entries that vanish meanwhile and the temporary files of uploads under way
    in this process.

    Raises NotFound (missing, or no directory), PermissionDenied, InvalidArgument, Conflict.
    """

    def attempt() -> list[Entry]:
        with root.resolve(path) as resolved:
            if resolved.names:
                raise NotFound(f"{path!r} is not a directory")
            return list_resolved(resolved, omits_dangling=False)

    return retry_on_change(attempt, path)


class Directory(msgspec.Struct, frozen=True):
    place: str
    """Where it is below the root, links resolved."""
    entries: list[Entry]


def directory(root: Root, path: str) -> Directory:
    """As ``entries``, but links that lead nowhere, or out, are left out: a peer of sandboxd is told
    nothing of them."""

    def attempt() -> Directory:
        with root.resolve(path) as resolved:
            if resolved.names:
                raise NotFound(f"{path!r} is not a directory")
            return Directory(decode(resolved.place), list_resolved(resolved, omits_dangling=True))

    return retry_on_change(attempt, path)


def list_resolved(resolved: ResolvedPath, *, omits_dangling: bool) -> list[Entry]:
    """As ``entries``; with ``omits_dangling`` links that lead to nothing a peer may know of are
    left out. Raises OSError."""
    fd = reopen(resolved.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return list(_describe(resolved, fd, omits_dangling))
    finally:
        os.close(fd)


def _describe(resolved: ResolvedPath, fd: int, omits_dangling: bool) -> Iterator[Entry]:
    # One lstat an entry and nothing else for what is no link; scandir's d_type would not spare it,
    # since the size is asked for anyway.
    for name in sorted(map(os.fsencode, os.listdir(fd))):
        if name.startswith(TEMPORARY_PREFIX):
            continue
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(info.st_mode):
            target = _target(resolved, name)
            if target is None and omits_dangling:
                continue
            info = target or info
        yield Entry(
            name=decode(name),
            size_bytes=info.st_size,
            kind="directory" if stat.S_ISDIR(info.st_mode) else "file",
            modified_at=info.st_mtime,
            mode=stat.S_IMODE(info.st_mode),
        )


def _target(resolved: ResolvedPath, name: bytes) -> os.stat_result | None:
    """The stat of what the link ``name`` leads to; ``None`` if that is nothing, or nothing a peer
    may know of."""
    try:
        with resolved.below(name) as target:
            return target.stat
    except (ExecdError, OSError, TreeChanged):
        return None
