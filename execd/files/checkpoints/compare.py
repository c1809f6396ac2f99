"""The changes between two manifests of a root. Pure.

A file has changed if its content, its owner, its attributes or its hard links differ. Device, inode
and ctime are no change: a restored file has others. But a file with a further name outside of the
root is another file if the inode differs. The time of the last change of the content counts only
for a restore and its proof (``setter``): a harness that takes the work of an agent does not ask who
called touch(1). The times of watched directories never count, since a file that was made and
removed again leaves nothing else. Nor does the time of a directory of another user, as a volume of
Kubernetes is: only the owner can set it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from execd.files.checkpoints.entries import Manifest, TreeChange, TreeEntry

if TYPE_CHECKING:
    from execd.model import EntryChange


def compare(old: Manifest, new: Manifest, *, setter: int | None = None) -> list[TreeChange]:
    """Return the changes in the order of a walk. ``setter``: the uid of a restore, for which the
    times of content count too."""
    were = {entry.path: entry for entry in old.entries}
    groups, old_groups = link_groups(new), link_groups(old)
    n_inside = Counter(old_groups.values())
    changes: list[TreeChange] = []
    for entry in new.entries:
        was = were.pop(entry.path, None)
        if was is entry and not entry.trouble:
            continue
        if was is None:
            if entry.path in new.holders and not entry.trouble:
                continue
            changes.append(TreeChange(new.root, "created", None, entry))
            continue
        group = old_groups.get(entry.path)
        has_other_links = groups.get(entry.path) != group or (
            group is not None and n_inside[group] < was.n_links and was.inode != entry.inode
        )
        counts_time = setter is not None and (
            entry.type != "directory" or (old.has_content and setter in (0, entry.uid))
        )
        kind = _difference(was, entry, counts_time=counts_time, has_other_links=has_other_links)
        if kind is not None:
            changes.append(TreeChange(new.root, kind, was, entry))
    changes.extend(TreeChange(new.root, "deleted", was, None) for was in were.values())
    changes.sort(key=lambda change: in_walk_order(change.path))
    return changes


def in_walk_order(path: bytes) -> bytes:
    """Return the key of a path by which a directory comes just before its content."""
    return path.replace(b"/", b"\0")


def link_groups(manifest: Manifest) -> dict[bytes, bytes]:
    """Return for each path of a file with several names the first path of the same file."""
    firsts: dict[tuple[int, int], bytes] = {}
    linked = [each for each in manifest.entries if each.n_links > 1 and each.type != "directory"]
    linked.sort(key=lambda each: in_walk_order(each.path))
    return {
        entry.path: firsts.setdefault((entry.device, entry.inode), entry.path) for entry in linked
    }


def _difference(
    was: TreeEntry, entry: TreeEntry, *, counts_time: bool, has_other_links: bool
) -> EntryChange | None:
    if was.type != entry.type:
        return "type"
    nobody_can_read = _is_known_by_stat(was)
    if (
        was.trouble
        or (entry.trouble and not nobody_can_read)
        or has_other_links
        or has_other_content(was, entry)
        or (was.uid, was.gid, was.attributes) != (entry.uid, entry.gid, entry.attributes)
        or (entry.type != "directory" and was.n_links != entry.n_links)
        or (counts_time and was.modified_ns != entry.modified_ns)
    ):
        return "modified"
    return "mode" if was.mode != entry.mode else None


def _is_known_by_stat(was: TreeEntry) -> bool:
    """Whether nobody could read the entry for the checkpoint."""
    return was.is_closed or (was.type == "file" and not was.digest)


def has_other_content(was: TreeEntry, entry: TreeEntry) -> bool:
    """Return whether the bytes of a file, or the target of a link, may differ. A file or a
    directory that nobody can read has changed if the kernel shows a change."""
    if was.digest or entry.digest or not _is_known_by_stat(was):
        return (was.digest, was.target) != (entry.digest, entry.target)
    return (was.inode, was.changed_ns, was.size_bytes) != (
        entry.inode,
        entry.changed_ns,
        entry.size_bytes,
    )
