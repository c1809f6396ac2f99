"""The manifest of a tree: all names below a root, with facts and digests.

Theory. A manifest is believed later on: a reset says "as before" by comparing two of them. So a
scan takes over nothing that the kernel does not vouch for.

* A digest is of bytes that were there at one moment: the file's ctime is the same before and after
  the read. A file that keeps changing has no digest, but a ``trouble``, and is never unchanged.
* A later scan takes over the former entry if device, inode, size, mtime and ctime are as before. No
  program can set ctime. Four gaps are left, and closed:
  - The clock of a file system stands still for up to 10 ms, so a file can change twice at one
    ctime. Files that changed after the beginning of the former scan, or less than ``TICK_NS``
    before, are hashed again.
  - A write to a mapped page sets ctime at its first write only, until the page is written to disk.
    So a checkpoint first has the file system write all pages (``begin``). Some file systems, tmpfs
    above all, never set ctime so. ``is_told_by_ctime`` tries on the file system itself. Both
    concern the file system of the root alone: what lies on another, mounted below, is read anew.
  - ext4 and XFS let a program exchange the contents of two files, and set no time.
    ``is_told_by_ctime`` believes no file system that knows such a call.
  - A write sets ctime when it begins, and may go on for seconds. So a checkpoint believes the ctime
    of a file only if nobody had the file open for writing before the read (``_is_quiet``).
* Directories are opened by descriptors and single names (``Directories``), never through a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import signal
import stat
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from execd.errors import Conflict, PayloadTooLarge
from execd.files.checkpoints.directories import Directories
from execd.files.checkpoints.entries import Manifest, TreeEntry
from execd.files.paths import blame
from execd.files.resolve import held, open_and_stat, reopen
from execd.files.syscalls import sync_file_system

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.checkpoints.crew import Crew, Place
    from execd.files.resolve import Forbidden
    from execd.model import EntryType

# The clock of file systems is that of the scheduler's tick: 10 ms with the slowest (HZ=100).
TICK_NS = 20_000_000
MAX_DEPTH = 512
"""Directories below each other. A deeper one is named as a trouble, and removed by a restore."""
MAX_MANIFEST_BYTES = 256 << 20
"""Memory for the entries of a root: about 240,000 files. User code can make millions."""
_ENTRY_BYTES = 1100
"""Measured, with what a comparison and a restore need for an entry."""
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_F_SETSIG = 10  # fcntl.h
# EXT4_IOC_MOVE_EXT and XFS_IOC_SWAPEXT, each with -1 for the other file: ext4.h, xfs_fs.h.
_EXCHANGES = {
    0xC028660F: struct.pack("=Ii32x", 0, -1),
    0xC0C0586D: struct.pack("=qqq168x", 0, -1, -1),
}
_GET_FLAGS = 0x80086601  # linux/fs.h, of 64-bit kernels
_FORBIDDING_FLAGS = 0x10 | 0x20  # immutable, append only
FLAGS = b"flags"
_ATTRIBUTES = ("user.", "system.posix_acl_", "security.capability")
_NO_ATTRIBUTES: dict[bytes, bytes] = {}
_TYPES: dict[int, EntryType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass
class Cleared:
    """What the scan of a restore has done already."""

    touched: set[bytes] = field(default_factory=set)
    """Directories that were given all rights of the owner, or in which files were removed."""
    n_removed: int = 0


class Scanning(NamedTuple):
    """How a tree is scanned."""

    forbidden: Forbidden
    crew: Crew
    stop: Callable[[], bool] = lambda: False
    excludes: Callable[[bytes], bool] | None = None
    """Whether a path is left out, with all below."""
    skipped_prefix: bytes | None = None
    """Of names that are left out: the daemon's own temporary files."""
    cleared: Cleared | None = None
    """Of a restore: its scan gives directories all rights of the owner, and removes files with
    names that are not wanted. An entry for each would take more memory than a sandbox may have."""
    is_kept: bool = False
    """The manifest will be a later scan's ``former``."""


def begin(top: int) -> int:
    """Prepare the file system of a directory for a scan that is believed later on, and return the
    time of the beginning. Raises OSError: later scans cannot rely on ctime."""
    began_ns = time.time_ns()
    with held(reopen(top, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        sync_file_system(fd)
    return began_ns


def is_told_by_ctime(directory: int) -> bool:
    """Whether the file system sets ctime for each change of a content, also for a write to a clean
    page of a mapping. Tries with a file without a name; a file system without such files is not
    believed. Takes ``TICK_NS``."""
    try:
        with held(reopen(directory, os.O_TMPFILE | os.O_RDWR)) as fd:
            if _exchanges_contents(fd) or not _tells_writers(fd):
                return False
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


def _exchanges_contents(fd: int) -> bool:
    """Whether the file system of a file knows a call that exchanges the blocks of two files. The
    other file is none, so nothing happens."""
    for call, arguments in _EXCHANGES.items():
        try:
            fcntl.ioctl(fd, call, arguments)
        except OSError as error:
            if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS):
                return True
    return False


def scan(
    top: int,
    root: str,
    how: Scanning,
    former: Manifest | None = None,
    *,
    has_content: bool = True,
    wanted: Manifest | None = None,
) -> Manifest:
    """Return the manifest of the directory ``top`` (O_PATH), which is the root ``root``.

    ``former``: the manifest whose entries are taken over where ctime vouches for them. ``wanted``:
    only files that have the same size in this manifest are hashed. The others differ from it
    anyway, and may be holes of many terabytes. What cannot
    be read is in the manifest as a trouble. Raises PayloadTooLarge; Conflict (given up); what
    ``blame`` returns if the root itself cannot be read.
    """
    run = _Scan(top, root, how, former, wanted)
    try:
        run.walk()
    except OSError as error:
        raise blame(error, repr(root)) from error
    entries = run.entries
    missing = [
        index
        for index, entry in enumerate(entries)
        if entry.type == "file"
        and not entry.digest
        and not entry.trouble
        and (wanted is None or run.is_wanted_size(entry))
    ]
    work = partial(hashed, is_kept=how.is_kept)
    found = how.crew.share(top, [entries[index] for index in missing], work, how.stop)
    for index, entry in zip(missing, found, strict=True):
        entries[index] = entry
    return Manifest(root, has_content, entries, holders=run.holders)


class _Scan:
    """The walk of one scan. A directory comes before its content, and its files come together.

    The names of a directory are read one by one: a full directory may have millions of names, and
    the manifest is bounded.
    """

    def __init__(
        self,
        top: int,
        root: str,
        how: Scanning,
        former: Manifest | None,
        wanted: Manifest | None,
    ) -> None:
        self.entries: list[TreeEntry] = []
        self.holders: set[bytes] = set()
        self._root = root
        self._how = how
        self._directories = Directories(top)
        former_entries = () if former is None else former.entries
        self._former = {entry.path: entry for entry in former_entries}
        self._wanted = self._former
        if wanted is not former:
            self._wanted = {} if wanted is None else {each.path: each for each in wanted.entries}
        self._device = former_entries[0].device if former_entries else None
        """Of the file system on which ``is_told_by_ctime`` and ``begin`` were tried."""
        self._trusted_before_ns = 0 if former is None else former.began_ns - TICK_NS
        self._n_bytes = 0
        self._pending: list[tuple[bytes, os.stat_result, int]] = []
        """Directories to be read: path, stat, and the device of the directory above."""

    def is_wanted_size(self, entry: TreeEntry) -> bool:
        old = self._wanted.get(entry.path)
        return old is not None and (old.type, old.size_bytes) == ("file", entry.size_bytes)

    def walk(self) -> None:
        """Raises PayloadTooLarge; Conflict (given up); OSError if the root cannot be read."""
        with self._directories as directories:
            top = os.fstat(directories.open(b""))
            self._pending.append((b"", top, top.st_dev))
            while self._pending:
                path, info, from_device = self._pending.pop()
                at = len(self.entries)
                try:
                    self._read_directory(path, from_device)
                except OSError as error:
                    if not path:
                        raise
                    if isinstance(error, FileNotFoundError):
                        del self.entries[at:]  # removed since its name was read
                        continue
                    if at == len(self.entries):
                        self._add(make_entry(path, info))
                    self.entries[at] = replace(
                        self.entries[at],
                        trouble=reason_of(error),
                        is_closed=isinstance(error, PermissionError) and self._is_closed(path),
                    )

    def _is_closed(self, path: bytes) -> bool:
        """Whether user code has no way into a directory, and cannot make one for a while."""
        try:
            directory = self._directories.open(path)
            if os.fstat(directory).st_uid != os.geteuid():
                os.stat(b".", dir_fd=directory)
        except OSError as error:
            return isinstance(error, PermissionError)
        return False

    def _read_directory(self, path: bytes, from_device: int) -> None:
        directory = self._directories.open(path)
        info = os.fstat(directory)
        if self._how.forbidden.includes(directory, info, from_device):
            self._add(make_entry(path, info, trouble="is not for user code"))
            return
        if path.count(b"/") >= MAX_DEPTH:
            trouble = f"lies in more than {MAX_DEPTH} directories"
            self._add(make_entry(path, info, trouble=trouble))
            return
        self._give_rights(path, directory, info)
        with held(reopen(directory, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            if not self._take_over(path, info):
                self._add(make_entry(path, info, attributes_and_flags(fd)))
            self._read_names(path, info, fd)

    def _give_rights(self, path: bytes, directory: int, info: os.stat_result) -> None:
        cleared = self._how.cleared
        lacks = stat.S_IMODE(info.st_mode) & stat.S_IRWXU != stat.S_IRWXU
        if cleared is not None and lacks and info.st_uid == os.geteuid():
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{directory}", stat.S_IMODE(info.st_mode) | stat.S_IRWXU)
                cleared.touched.add(path)

    def _read_names(self, path: bytes, info: os.stat_result, fd: int) -> None:
        prefix = path + b"/" if path else b""
        skipped, excludes = self._how.skipped_prefix, self._how.excludes
        with os.scandir(fd) as found:
            for each in found:
                name = each.name.encode("utf-8", "surrogateescape")
                below = prefix + name
                if skipped is not None and name.startswith(skipped):
                    continue
                if excludes is not None and excludes(below):
                    self._hold(path)
                    continue
                try:
                    facts = each.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    self._take_room(len(below))
                    self._pending.append((below, facts, info.st_dev))
                elif not self._clear(below, fd, name) and not self._take_over(below, facts):
                    self._read_entry(below, facts, fd, name)

    def _hold(self, directory: bytes) -> None:
        while directory and directory not in self.holders:
            self.holders.add(directory)
            directory = directory.rpartition(b"/")[0]

    def _clear(self, path: bytes, directory: int, name: bytes) -> bool:
        """Remove a file with a name that is not wanted, for a restore. Return whether it is gone;
        else the restore tries again, and says why."""
        cleared = self._how.cleared
        if cleared is None or path in self._wanted:
            return False
        try:
            os.unlink(name, dir_fd=directory)
        except OSError:
            return False
        cleared.touched.add(path.rpartition(b"/")[0])
        cleared.n_removed += 1
        return True

    def _take_over(self, path: bytes, info: os.stat_result) -> bool:
        """Whether the kernel vouches for the former entry, which is taken then."""
        old = self._former.get(path)
        if (
            old is None
            or old.changed_ns != info.st_ctime_ns
            or old.inode != info.st_ino
            or old.changed_ns >= self._trusted_before_ns
            or old.modified_ns != info.st_mtime_ns
            or not old.device == info.st_dev == self._device
            or old.n_links != info.st_nlink
            or old.trouble
            or (old.type == "file" and old.size_bytes != info.st_size)
        ):
            return False
        self.entries.append(old)
        return True

    def _read_entry(self, path: bytes, info: os.stat_result, directory: int, name: bytes) -> None:
        target, attributes, trouble = b"", {}, ""
        try:
            if stat.S_ISLNK(info.st_mode):
                target = os.readlink(name, dir_fd=directory)
            elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                target = b"%d" % info.st_rdev
            elif not stat.S_ISREG(info.st_mode):  # ``hashed`` reads those of a file
                by_name = b"/proc/self/fd/%d/" % directory + name
                attributes = read_attributes(by_name, follow_symlinks=False)
        except OSError as error:
            trouble = reason_of(error)
        self._add(make_entry(path, info, attributes, target=target, trouble=trouble))

    def _add(self, entry: TreeEntry) -> None:
        if self._how.stop():
            raise Conflict("the scan was given up; repeat the request")
        n_bytes = sum(len(each) + len(value) for each, value in entry.attributes.items())
        self._take_room(len(entry.path) + len(entry.target) + n_bytes)
        self.entries.append(entry)

    def _take_room(self, n_bytes: int) -> None:
        self._n_bytes += _ENTRY_BYTES + n_bytes
        if self._n_bytes > MAX_MANIFEST_BYTES:
            raise PayloadTooLarge(
                f"{self._root!r} has too many files for a checkpoint; exclude some of them"
            )


def make_entry(
    path: bytes,
    info: os.stat_result,
    attributes: dict[bytes, bytes] = _NO_ATTRIBUTES,
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


def hashed(place: Place, entry: TreeEntry, *, is_kept: bool = False) -> TreeEntry:
    """Return the entry of a file with the digest of its content, and with the facts of that
    moment; with a trouble if the content cannot be read. ``is_kept``: see ``Scanning``."""
    try:
        parent, name = place.directories.open_parent(entry.path)
        fd, before = open_and_stat(name, READ_FILE, parent)
        with held(fd):
            if stat.S_ISREG(before.st_mode):
                is_quiet = not is_kept or _is_quiet(fd)
                digest = digest_of(place, fd)
                attributes = attributes_and_flags(fd)
                after = os.fstat(fd)
                if (after.st_ctime_ns, after.st_size) == (before.st_ctime_ns, before.st_size):
                    found = make_entry(entry.path, after, attributes, digest=digest)
                    return found if is_quiet else replace(found, changed_ns=0)
    except OSError as error:
        return replace(entry, trouble=reason_of(error))
    return replace(entry, trouble="changed while it was read")


def _is_quiet(fd: int) -> bool:
    """Whether nobody who could has the file ``fd`` (O_RDONLY) open for writing, as far as the
    kernel tells: it gives a lease on such a file to nobody, and none on a file of another user.
    Where it gives none at all, only a caller who asks for ``stat`` believes ctime."""
    try:
        _lease(fd)
    except PermissionError:
        return not os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def _lease(fd: int) -> None:
    """Take a read lease, and give it back. Raises OSError: EAGAIN if the file is open for writing,
    EINVAL where there are no leases (gVisor)."""
    # Whoever opens the file at this moment waits for the release, and the signal is ignored.
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _tells_writers(fd: int) -> bool:
    """Whether the file system says that ``fd``, which is open for writing, is."""
    try:
        _lease(fd)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return False


def digest_of(place: Place, fd: int) -> bytes:
    """Return the SHA-256 of a file from its beginning. Raises OSError, Conflict."""
    import hashlib  # see lean_imports

    digest = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    left_bytes = os.fstat(fd).st_size
    # A file that grows meanwhile has no digest: nobody follows its writer to the end.
    while left_bytes >= 0 and (n_bytes := os.readv(fd, (place.buffer,))):
        left_bytes -= n_bytes
        if place.stop():
            raise Conflict("the scan was given up; repeat the request")
        digest.update(place.buffer[:n_bytes])
    return digest.digest()


def attributes_and_flags(fd: int) -> dict[bytes, bytes]:
    """Return the attributes of a file or a directory, and its flags that forbid changes. Raises
    OSError."""
    found = read_attributes(fd)
    with contextlib.suppress(OSError):  # a file system without flags
        flags: int = struct.unpack("=q", fcntl.ioctl(fd, _GET_FLAGS, bytes(8)))[0]
        if flags & _FORBIDDING_FLAGS:
            found[FLAGS] = bytes((flags & _FORBIDDING_FLAGS,))
    return found


def read_attributes(file: int | bytes | str, *, follow_symlinks: bool = True) -> dict[bytes, bytes]:
    """Return the attributes of a file that a checkpoint keeps. Values that cannot be read are
    empty. Raises OSError."""
    found: dict[bytes, bytes] = {}
    try:
        names = os.listxattr(file, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return found
    for name in names:
        if name.startswith(_ATTRIBUTES):
            try:
                value = os.getxattr(file, name, follow_symlinks=follow_symlinks)
            except PermissionError:
                value = b""
            found[os.fsencode(name)] = value
    return found


def reason_of(error: OSError) -> str:
    return error.strerror or "input/output error"
