"""Changes since a checkpoint as a tar: the new content, and the names of what is gone.

The first member is the file ``.execd-deleted``. Each name in the file ends with a zero byte,
because a name may hold newlines: ``xargs -0 rm -rf -- < .execd-deleted``. The file also names what
has become something else, for example a directory in whose place a file is now; so delete first,
and then unpack the rest. FIFOs, sockets and devices are left out, as of every archive.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal

from execd.errors import Conflict
from execd.files.archive.pack import Item, tar, tar_gz
from execd.files.resolve import held

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from execd.files.checkpoints.entries import TreeChange, TreeEntry
    from execd.files.checkpoints.patch import Sources

DELETED_NAME = b".execd-deleted"
_TYPES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "link": stat.S_IFLNK}


def pack_changes(
    changes: Sequence[TreeChange],
    prefixes: Mapping[str, bytes],
    sources: Sources,
    kind: Literal["tar", "tar.gz"],
) -> Generator[bytes, None, None]:
    """Yield the archive in pieces. Blocking.

    ``prefixes``: for each root whose content is kept, what stands before the paths in the archive.
    Changes of other roots are left out. Raises Conflict before the first piece if user code has a
    file with the name of the list; later ExecdError, OSError: the archive is not complete.
    """
    for change in changes:
        if change.new and prefixes.get(change.root, b"/") + change.path == DELETED_NAME:
            raise Conflict(
                f"{change.full_path!r} has the name of the archive's list of deletions; give the "
                "file another name, or ask for a patch"
            )
    packed = tar if kind == "tar" else tar_gz
    return packed(_items(changes, prefixes, sources))


class _Deleted(Item):
    """The list of what is gone."""

    def __init__(self, names: bytes) -> None:
        mode = stat.S_IFREG | 0o644
        super().__init__(DELETED_NAME, os.stat_result((mode, 0, 0, 1, 0, 0, len(names), 0, 0, 0)))
        self._names = names

    def content(self) -> Iterator[bytes]:
        yield self._names


def _items(
    changes: Sequence[TreeChange], prefixes: Mapping[str, bytes], sources: Sources
) -> Iterator[Item]:
    kept = [change for change in changes if change.root in prefixes]
    gone = [prefixes[each.root] + each.path + b"\0" for each in kept if each.is_removal]
    yield _Deleted(b"".join(gone))
    for change in kept:
        entry = change.new
        if entry is None or entry.type not in _TYPES:
            continue
        name = prefixes[change.root] + change.path or b"."
        if entry.type != "file":
            yield Item(name, _info(entry), target=entry.target)
            continue
        with held(sources.open_new(change.root, entry)) as fd:
            yield Item(name, _info(entry), fd)


def _info(entry: TreeEntry) -> os.stat_result:
    modified = entry.modified_ns // 1_000_000_000
    return os.stat_result(
        (
            *(_TYPES[entry.type] | entry.mode, entry.inode, entry.device, entry.n_links),
            *(entry.uid, entry.gid, entry.size_bytes, modified, modified, modified),
        )
    )
