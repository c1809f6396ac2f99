"""What a checkpoint knows of a directory tree: an entry for each file, and the manifest of a root.

Pure values. ``scan`` makes manifests, ``compare`` finds the changes between two of them, ``restore``
makes a tree as in its manifest again.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EntryType = Literal["file", "directory", "link", "fifo", "socket", "device"]
ChangeKind = Literal["created", "modified", "deleted", "type", "mode"]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name in the tree."""

    path: bytes
    """Below the root, without a leading slash; empty for the root itself."""
    type: EntryType
    mode: int
    """The permission bits, with setuid, setgid and sticky."""
    uid: int
    gid: int
    size_bytes: int
    """Of a file; 0 for everything else."""
    modified_ns: int
    changed_ns: int
    """st_ctime, which no program can set."""
    device: int
    inode: int
    n_links: int
    target: bytes = b""
    """Of a link."""
    attributes: dict[bytes, bytes] = {}
    """The extended attributes ``user.*``."""
    digest: bytes = b""
    """SHA-256 of a file's content; empty: nobody has read the content."""
    trouble: str = ""
    """Why the entry could not be read whole; such an entry is never taken for unchanged."""


class Manifest(msgspec.Struct, frozen=True):
    """All entries of one root, in the order of a walk: a directory before its content. Entries with
    the same device and inode, and with ``n_links`` over 1, are one file with several names."""

    root: str
    """As user code sees the path: absolute."""
    has_content: bool
    """False for a watched directory, of which only the manifest is kept."""
    entries: list[Entry]

    @property
    def n_files(self) -> int:
        return sum(entry.type == "file" for entry in self.entries)

    @property
    def n_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries if entry.type == "file")


class Change(msgspec.Struct, frozen=True):
    """A difference between a checkpoint and the present."""

    root: str
    kind: ChangeKind
    old: Entry | None
    """None: created since."""
    new: Entry | None
    """None: deleted since."""

    @property
    def path(self) -> bytes:
        """Below ``root``."""
        entry = self.new or self.old
        assert entry is not None, "a change has a side"
        return entry.path
