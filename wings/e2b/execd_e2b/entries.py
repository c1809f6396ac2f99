"""EntryInfo and events of ``filesystem.Filesystem``. Pure."""

from __future__ import annotations

import posixpath
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from execd.api.wire_api import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from execd.engine.engine_api import Change, DescribedEntry, FileKind

FILE_TYPES: dict[FileKind, str] = {
    "directory": "FILE_TYPE_DIRECTORY",
    "symlink": "FILE_TYPE_SYMLINK",
}
"""By kind. Every other kind is a file, because the SDKs drop entries of an unknown type."""
LETTERS: dict[FileKind, str] = {
    "directory": "d",
    "symlink": "L",
    "fifo": "p",
    "socket": "S",
    "character_device": "Dc",
    "block_device": "D",
}
"""As Go's FileMode prints them."""


METADATA_PREFIX = "user.e2b."
"""Of the extended attributes that hold the metadata of a file, as in envd."""


class OwnerNames(NamedTuple):
    """The names of users and groups by number."""

    users: Mapping[int, str]
    groups: Mapping[int, str]


class WatchEvent(NamedTuple):
    """An event of a watched directory."""

    kind: str
    name: str
    """Relative to the watched directory."""


def entry_info(path: str, entry: DescribedEntry, names: OwnerNames) -> dict[str, Any]:
    """Return the EntryInfo of an entry, under the absolute ``path`` that the client named.

    A link has the type and the mode of its end, as in envd, and says ``isSymlink``. A link that
    leads nowhere is a FILE_TYPE_SYMLINK.
    """
    own, end = entry.description, entry.end
    shown = end or own
    info: dict[str, Any] = {
        "name": replace_surrogates(posixpath.basename(path) or "/"),
        "type": FILE_TYPES.get(shown.kind, "FILE_TYPE_FILE"),
        "path": replace_surrogates(path),
        "size": str(own.size_bytes),
        "mode": shown.mode,
        "permissions": LETTERS.get(own.kind, "-") + stat.filemode(own.mode)[1:],
        "owner": names.users.get(own.uid, str(own.uid)),
        "group": names.groups.get(own.gid, str(own.gid)),
        "modifiedTime": timestamp(own.modified_at),
    }
    if own.kind == "symlink":
        info["isSymlink"] = True
        target = own.target or ""
        if end is not None:
            target = "/" + end.place
        elif not target.startswith("/"):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        info["symlinkTarget"] = replace_surrogates(target)
    if entry.attributes:
        info["metadata"] = {
            replace_surrogates(name.removeprefix(METADATA_PREFIX)): value.decode("utf-8", "replace")
            for name, value in entry.attributes.items()
        }
    return info


def timestamp(seconds: float) -> str:
    """Return RFC 3339 in UTC, within the years that Timestamp of protobuf allows (1 to 9999)."""
    bounded = min(max(seconds, -62_135_596_800), 253_402_300_799)
    return datetime.fromtimestamp(bounded, UTC).isoformat().replace("+00:00", "Z")


def watch_events(change: Change) -> Iterator[WatchEvent]:
    """Yield the events of a change. A rename is one event for the old name and one for the new, as
    inotify tells it. A file that arrived whole, as uploads do, counts as created and written."""
    name = _text(change.path)
    match change.kind:
        case "created":
            yield WatchEvent("EVENT_TYPE_CREATE", name)
            if change.may_replace and not change.is_directory:
                yield WatchEvent("EVENT_TYPE_WRITE", name)
        case "modified":
            yield WatchEvent("EVENT_TYPE_WRITE", name)
        case "deleted":
            yield WatchEvent("EVENT_TYPE_REMOVE", name)
        case "moved":
            yield WatchEvent("EVENT_TYPE_RENAME", _text(change.old_path or b""))
            yield WatchEvent("EVENT_TYPE_CREATE", name)
        case "chmod":
            yield WatchEvent("EVENT_TYPE_CHMOD", name)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
