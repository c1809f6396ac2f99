"""What a checkpoint knows of a directory tree: an entry for each file, and the manifest of a root.

Pure values. ``scan`` makes manifests, ``compare`` finds the changes between two of them,
``restore`` makes a tree as in its manifest again.
"""

from __future__ import annotations

import msgspec

from execd.model import EntryChange, EntryType  # noqa: TC001  # msgspec reads the annotations


class TreeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    """Of a link; of a device, its number."""
    attributes: dict[bytes, bytes] = {}
    """The extended attributes ``user.*``, access lists and file capabilities; and ``flags``, the
    flags of chattr(1) that forbid changes."""
    digest: bytes = b""
    """SHA-256 of a file's content; empty: nobody has read the content."""
    trouble: str = ""
    """Why the entry could not be read whole; such an entry is never taken for unchanged."""
    is_closed: bool = False
    """Of a directory: user code can neither list it nor reach what is in it, and does not own
    it."""


class Manifest(msgspec.Struct, frozen=True):
    """All entries of one root, in the order of a walk: a directory before its content. Entries with
    the same device and inode, and with ``n_links`` over 1, are one file with several names."""

    root: str
    """As user code sees the path: absolute."""
    has_content: bool
    """False for a watched directory, of which only the manifest is kept."""
    entries: list[TreeEntry]
    began_ns: int = 0
    """When the scan began, by the clock of the file system. A file that changed later, or shortly
    before, may change again and keep its ctime: a scan never takes over its digest."""
    is_told_by_ctime: bool = False
    """Whether the file system sets ctime for each change of a content: see ``scan``."""
    holders: set[bytes] = set()
    """Of a scan: the directories with excluded paths in or below them. Of these, those that were
    created since a checkpoint are no difference, and stay."""

    @property
    def facts(self) -> CheckpointRoot:
        sizes = [entry.size_bytes for entry in self.entries if entry.type == "file"]
        return CheckpointRoot(self.root, len(sizes), sum(sizes))


class TreeChange(msgspec.Struct, frozen=True):
    """A difference between a checkpoint and the present."""

    root: str
    kind: EntryChange
    old: TreeEntry | None
    """None: created since."""
    new: TreeEntry | None
    """None: deleted since."""

    @property
    def path(self) -> bytes:
        """Below ``root``."""
        return self.last.path

    @property
    def last(self) -> TreeEntry:
        """The present entry; of what is deleted, the former one."""
        entry = self.new or self.old
        assert entry is not None, "a change has a side"
        return entry

    @property
    def is_removal(self) -> bool:
        """Whether the old entry is gone, or something of another type is in its place."""
        return self.old is not None and (self.new is None or self.new.type != self.old.type)

    @property
    def full_path(self) -> str:
        """As user code sees the path: absolute."""
        return full_path(self.root, self.path)


def full_path(root: str, path: bytes) -> str:
    """Return the absolute path of an entry."""
    below = path.decode("utf-8", "surrogateescape")
    return root.rstrip("/") + "/" + below if below else root


class Trouble(msgspec.Struct, frozen=True):
    """A file that is not as in the checkpoint, or could not be read or restored."""

    path: str
    """As user code sees the path: absolute."""
    message: str


class CheckpointRoot(msgspec.Struct, frozen=True):
    """A directory of a checkpoint."""

    path: str
    """Absolute, without links."""
    n_files: int
    n_bytes: int


class Checkpoint(msgspec.Struct, frozen=True):
    """The facts of a checkpoint."""

    id: str
    created_at: float
    """Seconds since 1970."""
    roots: list[CheckpointRoot]
    """The directories whose content is kept."""
    watched: list[CheckpointRoot]
    """The directories of which the manifest alone is kept."""
    exclude: list[str]
    """Patterns of paths below each directory that are left out."""
    duration_seconds: float

    @property
    def n_bytes(self) -> int:
        """The bytes of all files whose content is kept."""
        return sum(root.n_bytes for root in self.roots)


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint as it is on the disk."""

    facts: Checkpoint
    manifests: list[Manifest]
    """Those of ``roots``, then those of ``watched``."""
