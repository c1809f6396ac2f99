"""The replies of /v1/files, /v1/fs and /v1/archive, and the events of /v1/watch. Pure.

The words of a listing are sandboxd's. A name or a path that is not UTF-8 is shown with replacement
characters, and has a percent-encoded form too, for requests.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from execd.api.wire.replies import replace_surrogates

# msgspec reads the annotations at run time.
from execd.engine.files.service import ChangeKind, FileKind, LostChanges  # noqa: TC001
from execd.model import SearchEnd  # noqa: TC001

if TYPE_CHECKING:
    from execd.engine.files.service import Change, Description, Entry, SearchResult

Size = int
"""Size in bytes."""
ModifiedAt = str
"""Time of the last change of the content, RFC 3339 in UTC."""
Mode = str
"""Permission bits: four octal digits."""
PercentEncodedPath = str | UnsetType
"""The path for requests, where it is not UTF-8, with all other bytes percent-encoded. Absent for
all other paths."""
PathBelowRoot = str
"""The path below the root of the route, with links resolved."""


class EntryReply(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a directory."""

    name: str
    """The name in the directory."""
    size: Size
    type: Literal["file", "directory"]
    """Everything except directories is a file. Links are followed."""
    modified_at: ModifiedAt
    mode: Mode
    name_percent_encoded: str | UnsetType = UNSET
    """The name for requests, percent-encoded, where it is not UTF-8. Absent for all other names."""


class ListingReply(msgspec.Struct, frozen=True, kw_only=True):
    """A directory. ``files.get`` writes the JSON in pieces, since a directory may be large."""

    path: PathBelowRoot
    entries: list[EntryReply]
    """The entries, sorted by the bytes of their names."""


class DescriptionReply(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one path, as of stat(2)."""

    path: PathBelowRoot
    path_percent_encoded: PercentEncodedPath = UNSET
    type: FileKind
    """The kind of the file."""
    size: Size
    modified_at: ModifiedAt
    mode: Mode
    uid: int
    """The number of the owner."""
    gid: int
    """The number of the group."""
    links: int
    """The number of hard links."""
    etag: str | UnsetType = UNSET
    """The entity tag of the content. Absent unless `type` is `file`."""
    target: str | UnsetType = UNSET
    """The text of the link. Absent unless `type` is `symlink`."""


class CopiedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied."""

    files: int
    """The number of regular files."""
    directories: int
    """The number of directories."""
    links: int
    """The number of symbolic links."""
    bytes: int
    """The bytes of all regular files."""
    skipped: int
    """The number of other files, which are not copied: FIFOs, sockets, devices, and files that
    vanished or may not be served."""


class CopyReply(DescriptionReply, frozen=True, kw_only=True):
    """The facts of the copy, and the counts."""

    copied: CopiedCounts
    """What was copied."""


class SearchItem(msgspec.Struct, frozen=True, kw_only=True):
    """A path that matches. Links are not followed."""

    path: str
    """The path relative to the searched directory."""
    path_percent_encoded: PercentEncodedPath = UNSET
    type: FileKind
    """The kind of the file itself."""
    size: Size
    modified_at: ModifiedAt
    mode: Mode


class SearchTruncation(msgspec.Struct, frozen=True, kw_only=True):
    """The early end of a search."""

    by: SearchEnd
    """The bound that was reached: of matches (`limit`), of scanned names (`scanned`) or of seconds
    (`time`)."""


class SearchReply(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that match a pattern."""

    path: PathBelowRoot
    path_percent_encoded: PercentEncodedPath = UNSET
    items: list[SearchItem]
    """The matches by name, a directory before its content."""
    truncated: SearchTruncation | None
    """Why there may be more matches; null: the search is complete."""
    scanned: int
    """The number of names that were compared."""
    unreadable: int
    """The number of directories that could not be read."""


class UnpackReply(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive held."""

    files: int
    """The number of regular files."""
    directories: int
    """The number of directories."""
    links: int
    """The number of links."""
    bytes: int
    """The bytes of all regular files."""


# --- the events of a watch


class WatchingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Changes from now on are told. The first event."""

    path: PathBelowRoot
    path_percent_encoded: PercentEncodedPath = UNSET
    recursive: bool
    """Whether directories below are watched too."""
    directories: int
    """The number of watched directories."""
    complete: bool
    """Whether every directory of the tree could be watched."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of the changes of one path."""

    type: ChangeKind
    """The kind of the change."""
    path: str
    """The path after the changes, relative to the watched directory."""
    path_percent_encoded: PercentEncodedPath = UNSET
    is_directory: bool
    """Whether the path is a directory."""
    old_path: str | UnsetType = UNSET
    """The path before a move. Absent unless the path was moved."""


class ChangesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of files."""

    changes: list[FileChange]
    """At most one change for each path, in the order of the last changes."""


class OverflowEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Changes were lost: the caller must look at the files."""

    reason: LostChanges | Literal["reconnect"]
    """Why changes were lost: the kernel's queue was full (`queue`), too many changes came at once
    (`flood`), not every directory could be watched (`directories`), or the caller was away
    (`reconnect`)."""


class GoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The watched path is gone. The last event."""


# --- from the engine's facts


def entry_reply(entry: Entry) -> EntryReply:
    name = replace_surrogates(entry.name)
    return EntryReply(
        name=name,
        size=entry.size_bytes,
        type=entry.kind,
        modified_at=timestamp(entry.modified_at),
        mode=f"{entry.mode & 0o777:04o}",
        name_percent_encoded=UNSET
        if name == entry.name
        else quote(entry.name.encode("utf-8", "surrogateescape"), safe=""),
    )


def description_reply(found: Description) -> DescriptionReply:
    place = "/" + found.place
    return DescriptionReply(
        path=replace_surrogates(place),
        path_percent_encoded=percent_encoded(place),
        type=found.kind,
        size=found.size_bytes,
        modified_at=timestamp(found.modified_at),
        mode=f"{found.mode:04o}",
        uid=found.uid,
        gid=found.gid,
        links=found.n_links,
        etag=found.etag if found.kind == "file" else UNSET,
        target=UNSET if found.target is None else replace_surrogates(found.target),
    )


def search_reply(found: SearchResult) -> SearchReply:
    place = "/" + found.place
    return SearchReply(
        path=replace_surrogates(place),
        path_percent_encoded=percent_encoded(place),
        items=[
            SearchItem(
                path=replace_surrogates(match.path),
                path_percent_encoded=percent_encoded(match.path),
                type=match.kind,
                size=match.size_bytes,
                modified_at=timestamp(match.modified_at),
                mode=f"{match.mode:04o}",
            )
            for match in found.matches
        ],
        truncated=None if found.truncated is None else SearchTruncation(by=found.truncated),
        scanned=found.n_scanned,
        unreadable=found.n_unreadable,
    )


def file_change(change: Change) -> FileChange:
    path = decoded(change.path)
    return FileChange(
        type=change.kind,
        path=replace_surrogates(path),
        path_percent_encoded=percent_encoded(path),
        is_directory=change.is_directory,
        old_path=UNSET if change.old_path is None else replace_surrogates(decoded(change.old_path)),
    )


def decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def percent_encoded(path: str) -> str | UnsetType:
    """Return the form of the path for requests, if JSON cannot hold the path."""
    if replace_surrogates(path) == path:
        return UNSET
    return quote(path, errors="surrogateescape")


def timestamp(seconds: float) -> str:
    """Format as RFC 3339, UTC, whole seconds. Years outside 1 to 9999 become the nearest of
    these."""
    # From -62135596800, year 1, to the last second of year 9999.
    whole = min(max(int(seconds // 1), -62_135_596_800), 253_402_300_799)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
