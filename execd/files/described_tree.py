"""Descriptions of a directory's tree down to a depth, and of single entries, with the ends of
links."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from execd.errors import ExecdError, InvalidArgument, ResourceExhausted
from execd.files.attributes import read_attributes
from execd.files.paths import decode
from execd.files.read import Description, describe, describe_resolved, description
from execd.files.root import Root, retry_on_change, retrying
from execd.files.tree_walk import Step, Visit, walk
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable


class DescribedEntry(msgspec.Struct, frozen=True):
    """An entry of a tree, and the end of the link if the entry is a link."""

    path: str
    """Relative to the directory of the request; undecodable bytes as surrogate escapes. Empty: the
    path of the request itself."""
    description: Description
    """Of the entry itself."""
    end: Description | None
    """Of the file at the end of the links. None: the entry is no link, or leads nowhere."""
    attributes: dict[str, bytes] = {}
    """The extended attributes of a regular file, as far as the caller asked for them."""


def describe_entry(root: Root, path: str, attribute_prefix: str) -> DescribedEntry:
    """Describe the file at ``path``, and where the file leads if it is a link. The names of the
    described extended attributes begin with ``attribute_prefix``.

    Raises NotFound, PermissionDenied, InvalidArgument, Conflict.
    """

    def attempt() -> tuple[Description, dict[str, bytes]]:
        with root.resolve(path, follow=False) as resolved:
            found = describe_resolved(resolved, path)
            if found.kind != "file":
                return found, {}
            return found, read_attributes(resolved.leaf, b"", attribute_prefix)

    found, attributes = retry_on_change(attempt, path)
    return DescribedEntry("", found, _end_of(root, path, found), attributes)


TREE_ATTRIBUTE_BYTES = 16 << 20
"""Of the values of extended attributes in one description of a tree."""


@retrying
def describe_tree(
    root: Root,
    path: str,
    *,
    attribute_prefix: str,
    depth: int,
    limit: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[DescribedEntry]:
    """Describe the entries below the directory ``path``, down to ``depth`` names, sorted by name, a
    directory before its content. Links below ``path`` are not followed. The names of the described
    extended attributes begin with ``attribute_prefix``.

    Raises NotFound, InvalidArgument (not a directory), ResourceExhausted (over ``limit`` entries or
    TREE_ATTRIBUTE_BYTES), PermissionDenied, Conflict.
    """
    assert depth >= 1

    found: list[DescribedEntry] = []
    attribute_bytes = 0
    with root.resolve(path) as resolved:
        if resolved.names:
            # a missing path is not found, any other file is the wrong kind of file
            describe(root, path)
            raise InvalidArgument(f"{path!r}: is not a directory")
        place = decode(resolved.place)
        # closed at once, also by an error, whose traceback would keep the walk's descriptors
        with contextlib.closing(
            walk(resolved.directory, resolved.forbidden, TEMPORARY_PREFIX, depth)
        ) as visits:
            for visit in visits:
                if visit.info is None or visit.step is Step.LEAVE:
                    continue
                if len(found) >= limit or stop():
                    raise ResourceExhausted(
                        f"{path!r}: over {limit} entries; ask for a smaller depth, or name a "
                        "directory below"
                    )
                entry = _described(root, path, place, visit, visit.info, attribute_prefix)
                attribute_bytes += sum(map(len, entry.attributes.values()))
                if attribute_bytes > TREE_ATTRIBUTE_BYTES:
                    raise ResourceExhausted(
                        f"{path!r}: over {TREE_ATTRIBUTE_BYTES} bytes of metadata; ask for a "
                        "smaller depth, or name a directory below"
                    )
                found.append(entry)
    return found


def _described(
    root: Root, top: str, place: str, visit: Visit, info: os.stat_result, attribute_prefix: str
) -> DescribedEntry:
    below = decode(visit.path)
    is_link = stat.S_ISLNK(info.st_mode)
    target = os.readlink(visit.name, dir_fd=visit.directory) if is_link else None
    found = description(info, f"{place}/{below}" if place else below, target)
    attributes = (
        read_attributes(visit.directory, visit.name, attribute_prefix)
        if found.kind == "file"
        else {}
    )
    return DescribedEntry(below, found, _end_of(root, f"{top}/{below}", found), attributes)


def _end_of(root: Root, path: str, description: Description) -> Description | None:
    if description.kind != "symlink":
        return None
    try:
        return describe(root, path)
    except ExecdError:
        return None  # the link dangles, loops, or leads to what is refused
