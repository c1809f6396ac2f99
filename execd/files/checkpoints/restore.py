"""Make a tree as in its manifest again.

Theory. The changes are those of a scan a moment ago, and user code may change the tree meanwhile.
So every step names a file by the descriptor of its directory, reached without links, and a single
name. No step follows a link, and none writes into a file that user code may have opened or linked:
a file with another content is replaced by a new one, in one step. Attributes of a file are set in
place only if the file is the scanned one, and has the same hard links as in the checkpoint.

An error concerns one file, and becomes a ``Trouble``. Nothing here says that the tree is as before:
another scan does.

The order: what was created goes first, which makes room on a full disk; then directories, files,
links between files; at last the attributes of directories, the deepest first, because a directory
may forbid its owner to write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

import msgspec

from execd.errors import Conflict, ExecdError
from execd.files.change import remove_below
from execd.files.checkpoints.compare import has_other_content, in_walk_order, link_groups
from execd.files.checkpoints.directories import Directories
from execd.files.checkpoints.entries import Manifest, TreeChange, TreeEntry, Trouble, full_path
from execd.files.checkpoints.scan import FLAGS, read_attributes, reason_of
from execd.files.checkpoints.shelf import copy_content
from execd.files.resolve import TreeChanged, held, identity, open_and_stat
from execd.files.write import TEMPORARY_PREFIX, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execd.files.checkpoints.scan import Scanning

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Restored(msgspec.Struct):
    """The outcome of a restore."""

    restored: int = 0
    removed: int = 0
    unchanged: int = 0
    troubles: list[Trouble] = []
    """What could not be restored."""
    seen: dict[str, Manifest] = {}
    """The scan of each root before the restore."""


class RootRestore:
    """The restore of one root."""

    def __init__(
        self,
        manifest: Manifest,
        top: int,
        how: Scanning,
        open_content: Callable[[bytes], int],
        holders: set[bytes],
        done: Restored,
    ) -> None:
        """``top``: the root (O_PATH). ``how``: of the scan that has found the changes.
        ``open_content``: opens the kept content with a digest; the restore closes it. ``holders``:
        the directories with excluded paths, which are never removed. ``done``: gets the
        outcome."""
        self._directories = Directories(top)
        self._done = done
        self._manifest = manifest
        self._top = top
        self._how = how
        self._open_content = open_content
        self._old = {entry.path: entry for entry in manifest.entries}
        self._groups = link_groups(manifest)
        self._holders = holders
        self._touched = set() if how.cleared is None else how.cleared.touched
        """Directories that get their attributes at the end: also those in which names changed."""

    def undo(self, changes: list[TreeChange]) -> None:
        """Undo the changes, which are in the order of a walk. Raises nothing for a single file."""
        with self._directories:
            self._remove_created(changes)
            self._make_again(changes)
            for path in sorted(self._touched & self._old.keys(), key=in_walk_order, reverse=True):
                self._try(path, self._finish_directory, self._old[path])

    def _make_again(self, changes: list[TreeChange]) -> None:
        made: dict[bytes, None] = {}
        for change in changes:
            old, new = change.old, change.new
            if old is None:
                continue
            if old.type == "directory":
                self._touched.add(old.path)
                if new is None or new.type != "directory":
                    self._try(old.path, self._make_directory, old)
                self._done.restored += 1
            elif new is not None and _is_fixable(old, new):
                self._done.restored += self._try(old.path, self._fix, new)
            else:
                made.update(dict.fromkeys(self._with_links(old.path)))
        for path in made:
            self._done.restored += self._try(path, self._replace, self._old[path])

    def _remove_created(self, changes: list[TreeChange]) -> None:
        """Remove what was created, and what has become a file of another type."""
        gone: bytes | None = None
        for change in changes:
            if change.new is None or (change.old is not None and change.kind != "type"):
                continue
            done = gone is not None and change.path.startswith(gone)
            if not done:
                done = self._try(change.path, self._remove, change.new)
                gone = change.path + b"/" if done and change.new.type == "directory" else gone
            self._done.removed += done and change.old is None

    def _with_links(self, path: bytes) -> Iterable[bytes]:
        """The names of a file, the first of the checkpoint first."""
        first = self._groups.get(path)
        if first is None:
            return (path,)
        return (name for name, its_first in self._groups.items() if its_first == first)

    def _try(self, path: bytes, act: Callable[[TreeEntry], None], entry: TreeEntry) -> bool:
        """Return whether the step was done."""
        try:
            if self._how.stop():
                raise TreeChanged
            act(entry)
            return True
        except OSError as error:
            message = reason_of(error)
        except TreeChanged:
            message = "the directory was changed meanwhile"
        except ExecdError as error:
            message = error.message
        self._done.troubles.append(Trouble(full_path(self._manifest.root, path), message))
        return False

    # Steps. Each raises OSError, TreeChanged.

    def _remove(self, entry: TreeEntry) -> None:
        parent, name = self._directories.open_parent(entry.path)
        self._touch(entry.path)
        try:
            if entry.type == "directory":
                self._check_excluded(entry)
                remove_below(parent, name, self._how.forbidden)
                self._directories.close()
            else:
                os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass

    def _check_excluded(self, entry: TreeEntry) -> None:
        """Raises Conflict if a directory holds excluded paths, or may hold some."""
        if entry.path in self._holders:
            raise Conflict("holds excluded files, which stay; remove them first")
        if entry.trouble and self._how.excludes is not None:
            raise Conflict(
                f"{entry.trouble}, and may hold excluded files; remove the directory first"
            )

    def _make_directory(self, entry: TreeEntry) -> None:
        parent, name = self._directories.open_parent(entry.path)
        os.mkdir(name, 0o700, dir_fd=parent)
        self._touch(entry.path)

    def _replace(self, entry: TreeEntry) -> None:
        """Put a new file in the place of what is there."""
        temporary = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
        first = self._groups.get(entry.path, entry.path)
        first_parent, first_name = self._directories.open_parent(first)
        with held(os.dup(first_parent)) as first_parent:
            parent, name = self._directories.open_parent(entry.path)
            self._touch(entry.path)
            try:
                if first == entry.path:
                    self._make(entry, parent, temporary)
                    self._set_attributes(parent, temporary, entry)
                else:
                    of = {"src_dir_fd": first_parent, "dst_dir_fd": parent}
                    os.link(first_name, temporary, **of, follow_symlinks=False)
                if not replace(parent, temporary, parent, name, entry.mode):
                    self._set_attributes(parent, name, entry, is_mounted=True)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def _make(self, entry: TreeEntry, parent: int, name: bytes) -> None:
        match entry.type:
            case "file":
                with (
                    held(os.open(name, _CREATE, 0o600, dir_fd=parent)) as fd,
                    held(self._open_content(entry.digest)) as content,
                ):
                    copy_content(content, fd, self._how.stop)
            case "link":
                os.symlink(entry.target, name, dir_fd=parent)
            case "fifo":
                os.mkfifo(name, 0o600, dir_fd=parent)
            case "socket":
                os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=parent)
            case _:
                raise OSError(errno.EPERM, "a device, which execd does not make")

    def _fix(self, new: TreeEntry) -> None:
        """Give the scanned file its former attributes."""
        parent, name = self._directories.open_parent(new.path)
        self._set_attributes(parent, name, self._old[new.path], new)

    def _finish_directory(self, entry: TreeEntry) -> None:
        if entry.path:
            self._set_attributes(*self._directories.open_parent(entry.path), entry)
        else:
            _set_attributes(b"/proc/self/fd/%d" % self._top, os.fstat(self._top), entry)

    def _touch(self, path: bytes) -> None:
        self._touched.add(path.rpartition(b"/")[0])

    def _set_attributes(
        self,
        parent: int,
        name: bytes,
        entry: TreeEntry,
        scanned: TreeEntry | None = None,
        *,
        is_mounted: bool = False,
    ) -> None:
        fd, info = open_and_stat(name, _ENTRY, parent)
        with held(fd):
            if stat.S_ISDIR(info.st_mode) != (entry.type == "directory"):
                raise TreeChanged
            if entry.type != "directory" and not is_mounted and info.st_nlink > 1:
                raise TreeChanged  # a link, and the other name may be outside of the root
            if scanned is not None and identity(info) != (scanned.device, scanned.inode):
                raise TreeChanged
            if entry.type == "link":
                _set_attributes(b"/proc/self/fd/%d/" % parent + name, info, entry)
            else:
                _set_attributes(b"/proc/self/fd/%d" % fd, info, entry)


def _is_fixable(old: TreeEntry, new: TreeEntry) -> bool:
    """Whether the file is as before but for its attributes. A file with several names is always
    made again."""
    return (
        old.type == new.type
        and not new.trouble
        and old.n_links == new.n_links == 1
        and not has_other_content(old, new)
        and FLAGS not in new.attributes
    )


def _set_attributes(path: bytes, info: os.stat_result, entry: TreeEntry) -> None:
    """Set owner, mode, attributes and time of a file. ``path``: by its descriptor; of a link, by
    the descriptor of its directory."""
    is_file = entry.type != "link"
    if has_other_owner := (info.st_uid, info.st_gid) != (entry.uid, entry.gid):
        os.chown(path, entry.uid, entry.gid, follow_symlinks=is_file)
    if is_file:
        # After chown(2), which clears setuid. A directory of another user has its mode, and no time
        # that this user can set (``compare``).
        if has_other_owner or stat.S_IMODE(info.st_mode) != entry.mode:
            os.chmod(path, entry.mode)
        present = read_attributes(path)
        for name in present.keys() - entry.attributes.keys():
            os.removexattr(path, name)
        for name, value in entry.attributes.items():
            if name != FLAGS and present.get(name) != value:
                os.setxattr(path, name, value)
    if entry.type != "directory" or os.geteuid() in (0, entry.uid):
        times = (info.st_atime_ns, entry.modified_ns)
        os.utime(path, ns=times, follow_symlinks=is_file)
