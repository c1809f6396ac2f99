"""Find names below a directory."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING

import msgspec

from execd.errors import NotFound
from execd.files.glob import Glob, compile_glob
from execd.files.paths import MAX_PATH_BYTES, decode
from execd.files.read import KINDS, FileKind
from execd.files.root import Root, retrying
from execd.files.tree_walk import Step, Visit, walk
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.model import SearchEnd

# A tree of a million names takes seconds natively and a minute in gVisor. For more results a caller
# narrows the path.
MAX_SCANNED = 1_000_000


class Match(msgspec.Struct, frozen=True):
    """An entry that a search has found."""

    path: str
    """Relative to the searched directory; undecodable bytes as surrogate escapes."""
    kind: FileKind
    """The kind of the entry itself: links are not followed."""
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at: float
    """Seconds since the epoch."""
    changed_at: float
    """Time of the last change of the inode (ctime), in seconds since the epoch."""


class SearchResult(msgspec.Struct, frozen=True):
    """The outcome of a search."""

    place: str
    """The searched directory: the path below the root, links resolved."""
    matches: list[Match]
    """In the order of the walk: by name, a directory before its content."""
    n_scanned: int
    truncated: SearchEnd | None
    """The reason for an early end; None for a complete search."""
    n_unreadable: int
    """How many directories could not be read."""


@retrying
def search(
    root: Root,
    path: str,
    pattern: str,
    *,
    limit: int,
    seconds: float,
    kinds: frozenset[FileKind] | None = None,
    max_depth: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Find the entries below the directory ``path`` that match, at most ``limit``, in about
    ``seconds``. ``max_depth``: the most names of a path below ``path``; None: no limit.

    Entries below a path longer than PATH_MAX are scanned, but not listed: no program could open
    them by path. Raises NotFound, InvalidArgument, PermissionDenied, Conflict.
    """
    glob = compile_glob(pattern)
    depths = [depth for depth in (glob.max_depth, max_depth) if depth is not None]

    deadline = time.monotonic() + seconds
    found: list[Match] = []
    n_scanned = n_unreadable = 0
    truncated: SearchEnd | None = None
    with root.resolve(path) as resolved:
        place = decode(resolved.place)
        if resolved.names:
            raise NotFound(f"{path!r} is not a directory")
        for visit in walk(
            resolved.directory,
            resolved.forbidden,
            TEMPORARY_PREFIX,
            min(depths, default=None),
        ):
            if visit.step is Step.LEAVE:
                continue
            n_scanned += 1
            if visit.step is Step.REFUSED:
                n_unreadable += 1
            if _is_wanted(visit, glob, kinds):
                if len(found) == limit:
                    truncated = "limit"
                    break
                found.append(_match(visit))
            if n_scanned >= MAX_SCANNED:
                truncated = "scanned"
                break
            if n_scanned % 256 == 0 and (time.monotonic() > deadline or stop()):
                truncated = "time"
                break
    assert n_scanned <= MAX_SCANNED
    assert len(found) <= limit
    return SearchResult(place, found, n_scanned, truncated, n_unreadable)


def _is_wanted(visit: Visit, glob: Glob, kinds: frozenset[FileKind] | None) -> bool:
    if visit.info is None:
        return False
    if kinds is not None and KINDS[stat.S_IFMT(visit.info.st_mode)] not in kinds:
        return False
    if sum(map(len, visit.parents)) + len(visit.parents) >= MAX_PATH_BYTES:
        return False
    return glob.matches([*map(decode, visit.parents), decode(visit.name)])


def _match(visit: Visit) -> Match:
    assert visit.info is not None
    return Match(
        path=decode(visit.path),
        kind=KINDS[stat.S_IFMT(visit.info.st_mode)],
        size_bytes=visit.info.st_size,
        mode=stat.S_IMODE(visit.info.st_mode),
        uid=visit.info.st_uid,
        gid=visit.info.st_gid,
        modified_at=visit.info.st_mtime,
        changed_at=visit.info.st_ctime,
    )
