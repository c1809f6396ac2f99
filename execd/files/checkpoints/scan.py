"""The manifest of a tree: all names below a root, with facts and digests.

Theory. A manifest is believed later on: a reset says "as before" by comparing two of them. So a
scan takes over nothing that the kernel does not vouch for.

* A digest is of bytes that were there at one moment: the file's ctime is the same before and after
  the read. A file that keeps changing has no digest, but a ``trouble``, and is never unchanged.
* A later scan takes over the former entry if device, inode, size, mtime and ctime are as before. No
  program can set ctime. Two gaps are left, and closed:
  - The clock of a file system stands still for up to 10 ms, so a file can change twice at one
    ctime. Files that changed after the beginning of the former scan, or less than ``TICK_NS``
    before, are hashed again.
  - A write to a mapped page sets ctime at its first write only, until the page is written to disk.
    So a checkpoint first has the file system write all pages (``begin``). Some file systems, tmpfs
    above all, never set ctime so. ``is_told_by_ctime`` tries on the file system itself.
* Directories are opened as ``tree_walk`` opens them, never through a link.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execd.errors import Conflict
from execd.files.checkpoints.crew import BUFFER_BYTES, Crew, Place
from execd.files.checkpoints.directories import Directories
from execd.files.checkpoints.entries import Manifest, TreeEntry
from execd.files.copy import STAT_BLOCK_BYTES, copy_bytes
from execd.files.resolve import open_and_stat, open_directory, reopen
from execd.files.syscalls import sync_file_system
from execd.files.tree_walk import Step, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.resolve import Forbidden
    from execd.files.tree_walk import Visit
    from execd.model import EntryType

# The clock of file systems is that of the scheduler's tick: 10 ms with the slowest (HZ=100).
TICK_NS = 20_000_000
MAX_DEPTH = 512
"""Directories below each other. A deeper one is named as a trouble, and removed by a restore."""
MAX_MANIFEST_BYTES = 256 << 20
"""Memory of the entries of a root: about 500,000 files. User code can make millions."""
_ENTRY_BYTES = 450
MAX_TRIES = 3
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # linux/fs.h, of 64-bit kernels
FORBIDDING_FLAGS = 0x10 | 0x20  # immutable, append only
FLAGS = b"flags"
_ATTRIBUTES = ("user.", "system.posix_acl_", "security.capability")
_ZEROS = bytes(BUFFER_BYTES)
_TYPES: dict[int, EntryType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


class TooManyEntries(Exception):
    """The tree is too large for a manifest."""


@dataclass(frozen=True)
class Scanning:
    """How a tree is scanned."""

    forbidden: Forbidden
    crew: Crew
    stop: Callable[[], bool] = lambda: False
    excludes: Callable[[bytes], bool] | None = None
    """Whether a path is left out, with all below."""
    skipped_prefix: bytes | None = None
    """Of names that are left out: the daemon's own temporary files."""
    opens: bool = False
    """Give the owner all rights on directories that cannot be read."""


def begin(top: int) -> int:
    """Prepare the file system of a directory for a scan that is believed later on, and return the
    time of the beginning. Raises OSError: later scans cannot rely on ctime."""
    began_ns = time.time_ns()
    fd = reopen(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)
    return began_ns


def is_told_by_ctime(directory: int) -> bool:
    """Whether the file system sets ctime for each write to a clean page of a mapping. Tries with a
    file without a name; a file system without such files is not believed. Takes ``TICK_NS``."""
    try:
        fd = os.open(
            f"/proc/self/fd/{directory}", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode=0o600
        )
    except OSError:
        return False
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        with mmap.mmap(fd, mmap.PAGESIZE) as page:
            page[0] = 1
            os.fsync(fd)
            before = os.fstat(fd).st_ctime_ns
            time.sleep(TICK_NS / 1e9)
            page[0] = 2
            return os.fstat(fd).st_ctime_ns != before
    except OSError:
        return False
    finally:
        os.close(fd)


def scan(
    top: int,
    root: str,
    how: Scanning,
    former: Manifest | None = None,
    *,
    has_content: bool = True,
) -> Manifest:
    """Return the manifest of the directory ``top`` (O_PATH), which is the root ``root``.

    ``former``: the manifest whose entries are taken over where ctime vouches for them. What cannot
    be read is in the manifest as a trouble. Raises TooManyEntries; Conflict (given up);
    TreeChanged; OSError if the root itself cannot be read.
    """
    run = _Scan(top, how, former)
    entries = run.entries()
    missing = [
        index
        for index, entry in enumerate(entries)
        if entry.type == "file" and not entry.digest and not entry.trouble
    ]
    found = how.crew.share(top, [entries[index] for index in missing], hashed, how.stop)
    for index, entry in zip(missing, found, strict=True):
        entries[index] = entry
    return Manifest(root, has_content, entries)


class _Scan:
    """The walk of one scan."""

    def __init__(self, top: int, how: Scanning, former: Manifest | None) -> None:
        self._top = top
        self._how = how
        self._former: dict[bytes, TreeEntry] = {}
        self._trusted_before_ns = 0
        if former is not None:
            self._former = {entry.path: entry for entry in former.entries}
            self._trusted_before_ns = former.began_ns - TICK_NS
        self._entries: dict[bytes, TreeEntry] = {}
        self._n_bytes = 0
        self._opened: set[bytes] = set()
        """The directories that got rights: each at most once."""
        self._pending = [b""]
        """Directories to walk from: the root, and what got rights meanwhile."""

    def entries(self) -> list[TreeEntry]:
        with Directories(self._top) as directories:
            while self._pending:
                start = self._pending.pop()
                self._walk_from(start, directories.open(start))
                directories.close()
        return list(self._entries.values())

    def _walk_from(self, start: bytes, directory: int) -> None:
        info = os.fstat(directory)
        try:
            readable = reopen(directory, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            if not self._open_up(start, directory, info):
                raise
            info = os.fstat(directory)
            readable = reopen(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not start:
                self._add(b"", info, readable, b"")
        finally:
            os.close(readable)
        how, depth = self._how, start.count(b"/") + bool(start)
        prefixes = [start + b"/" if start else b""]
        n_excluded = 0
        """The length of ``prefixes`` within an excluded directory; 0: not excluded."""
        for visit in walk(directory, how.forbidden, how.skipped_prefix, MAX_DEPTH - depth):
            if visit.step is Step.LEAVE:
                prefixes.pop()
                if len(prefixes) < n_excluded:
                    n_excluded = 0
                continue
            path = prefixes[-1] + visit.name
            if not n_excluded:
                if how.excludes is not None and how.excludes(path):
                    n_excluded = len(prefixes) + 1 if visit.step is Step.ENTER else 0
                else:
                    self._take(path, visit)
            if visit.step is Step.ENTER:
                prefixes.append(path + b"/")

    def _take(self, path: bytes, visit: Visit) -> None:
        info = visit.info
        if visit.step is Step.REFUSED:
            self._take_refused(path, visit)
            return
        assert info is not None
        old = self._former.get(path)
        if (
            old is not None
            and old.changed_ns == info.st_ctime_ns
            and old.inode == info.st_ino
            and old.changed_ns < self._trusted_before_ns
            and old.modified_ns == info.st_mtime_ns
            and old.device == info.st_dev
            and old.n_links == info.st_nlink
            and not old.trouble
            and (old.size_bytes == info.st_size or old.type != "file")
        ):
            self._entries[path] = old
            return
        is_too_deep = visit.step is Step.LEAF and stat.S_ISDIR(info.st_mode)
        trouble = f"lies in more than {MAX_DEPTH} directories" if is_too_deep else ""
        self._add(path, info, visit.directory, visit.name, trouble)

    def _take_refused(self, path: bytes, visit: Visit) -> None:
        """A directory that cannot be read, or an entry of a directory that cannot be searched."""
        above = path.rpartition(b"/")[0]
        if self._how.opens and isinstance(visit.error, PermissionError):
            if visit.info is None:
                if self._open_up(above, visit.directory, os.fstat(visit.directory)):
                    self._pending.append(above)
                    return
            elif self._open_below(path, visit):
                self._pending.append(path)
        reason = "is not for user code" if visit.error is None else visit.error.strerror
        if path in self._pending:
            reason = ""
        try:
            info = os.stat(visit.name, dir_fd=visit.directory, follow_symlinks=False)
        except OSError:
            self._entries[path] = TreeEntry(
                path, "file", 0, 0, 0, 0, 0, 0, 0, 0, 1, trouble=reason or "cannot be read"
            )
        else:
            self._add(path, info, visit.directory, visit.name, reason or "")

    def _open_below(self, path: bytes, visit: Visit) -> bool:
        try:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd, info = open_and_stat(visit.name, flags, visit.directory)
        except OSError:
            return False
        try:
            return self._open_up(path, fd, info)
        finally:
            os.close(fd)

    def _open_up(self, path: bytes, directory: int, info: os.stat_result) -> bool:
        """Give the owner all rights on a directory. Return whether a new walk may find more."""
        if not self._how.opens or path in self._opened:
            return False
        self._opened.add(path)
        try:
            os.chmod(f"/proc/self/fd/{directory}", stat.S_IMODE(info.st_mode) | 0o700)
        except OSError:
            return False
        return True

    def _add(
        self, path: bytes, info: os.stat_result, directory: int, name: bytes, trouble: str = ""
    ) -> None:
        if self._how.stop():
            raise Conflict("the scan was given up; repeat the request")
        kind = _TYPES.get(stat.S_IFMT(info.st_mode), "device")
        target, attributes = b"", {}
        try:
            if kind == "link":
                target = os.readlink(name, dir_fd=directory)
            elif kind != "file":  # ``hashed`` reads those of a file
                attributes = read_attributes(directory, name, with_flags=kind == "directory")
        except OSError as error:
            trouble = trouble or error.strerror or "cannot be read"
        self._n_bytes += _ENTRY_BYTES + len(path) + len(target)
        self._n_bytes += sum(len(each) + len(value) for each, value in attributes.items())
        if self._n_bytes > MAX_MANIFEST_BYTES:
            raise TooManyEntries
        self._entries[path] = make_entry(path, info, attributes, target=target, trouble=trouble)


def make_entry(
    path: bytes,
    info: os.stat_result,
    attributes: dict[bytes, bytes],
    *,
    target: bytes = b"",
    digest: bytes = b"",
    trouble: str = "",
) -> TreeEntry:
    kind = _TYPES.get(stat.S_IFMT(info.st_mode), "device")
    return TreeEntry(
        path,
        kind,
        stat.S_IMODE(info.st_mode),
        info.st_uid,
        info.st_gid,
        info.st_size if kind == "file" else 0,
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_dev,
        info.st_ino,
        info.st_nlink,
        target,
        attributes,
        digest,
        trouble,
    )


def hashed(place: Place, entry: TreeEntry) -> TreeEntry:
    """Return the entry of a file with the digest of its content, and with the facts of that
    moment; with a trouble if the content cannot be read."""
    for _ in range(MAX_TRIES):
        try:
            fd, info = open_and_stat(*_name_of(place, entry))
        except OSError as error:
            return replace(entry, trouble=error.strerror or "cannot be read")
        try:
            if not stat.S_ISREG(info.st_mode):
                break
            digest = digest_of(place, fd, info)
            attributes = read_attributes(fd, b"", with_flags=True)
            after = os.fstat(fd)
            if (after.st_ctime_ns, after.st_size) == (info.st_ctime_ns, info.st_size):
                return make_entry(entry.path, after, attributes, digest=digest)
        except OSError as error:
            return replace(entry, trouble=error.strerror or "cannot be read")
        finally:
            os.close(fd)
    return replace(entry, trouble="changed while it was read")


def _name_of(place: Place, entry: TreeEntry) -> tuple[bytes, int, int]:
    parent, name = place.directories.open_parent(entry.path)
    return name, READ_FILE, parent


def digest_of(place: Place, fd: int, info: os.stat_result) -> bytes:
    """Return the SHA-256 of a file from its beginning. Raises OSError, Conflict."""
    import hashlib  # see lean_imports

    digest = hashlib.sha256()

    def skip(n_bytes: int) -> None:
        for at in range(0, n_bytes, BUFFER_BYTES):
            digest.update(_ZEROS[: n_bytes - at])

    if info.st_blocks * STAT_BLOCK_BYTES < info.st_size:
        copy_bytes(fd, digest.update, skip, place.stop)
        return digest.digest()
    n_bytes = 0
    while n := os.readv(fd, (place.buffer,)):
        digest.update(place.buffer[:n])
        n_bytes += n
        if n_bytes == info.st_size and n < BUFFER_BYTES:
            break  # a later stat shows whether the file has grown
    return digest.digest()


def read_attributes(directory: int, name: bytes, *, with_flags: bool) -> dict[bytes, bytes]:
    """Return the attributes of a file that a checkpoint keeps. ``name`` empty: of the file
    ``directory`` itself, which is O_PATH only without ``with_flags``. Values that cannot be read
    are empty. Raises OSError."""
    path: bytes | int = b"/proc/self/fd/%d" % directory + (b"/" + name if name else b"")
    if with_flags and not name:
        path = directory
    found: dict[bytes, bytes] = {}
    try:
        names = os.listxattr(path, follow_symlinks=not name)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        names = []
    for each in names:
        if each.startswith(_ATTRIBUTES):
            try:
                value = os.getxattr(path, each, follow_symlinks=not name)
            except PermissionError:
                value = b""
            found[os.fsencode(each)] = value
    if with_flags and (flags := _read_flags(directory, name)):
        found[FLAGS] = bytes((flags,))
    return found


def _read_flags(directory: int, name: bytes) -> int:
    """Return the flags of a file, or of a directory below ``directory``, that forbid changes; 0
    where the file system has no flags."""
    try:
        fd = open_directory(name, directory) if name else directory
    except OSError:
        return 0
    try:
        return _flags_of(fd) & FORBIDDING_FLAGS
    except OSError:
        return 0
    finally:
        if name:
            os.close(fd)


def _flags_of(fd: int) -> int:
    return int(struct.unpack("=q", fcntl.ioctl(fd, _GET_FLAGS, bytes(8)))[0])


def clear_flags(fd: int) -> bool:
    """Clear the flags that forbid changes. Return whether there were any, and they are gone."""
    try:
        flags = _flags_of(fd)
        if not flags & FORBIDDING_FLAGS:
            return False
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("=q", flags & ~FORBIDDING_FLAGS))
        return True
    except OSError:
        return False
