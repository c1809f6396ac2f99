"""Watch a directory, or a tree of directories, for changes.

Theory. inotify watches single directories and reports names. To report paths, a Watch keeps a
table: the kernel's number of a watch -> the path of the directory below the top. Five things can
make the table, or the news, wrong:

* A new directory. User code may make entries in the new directory before the watch is added. So the
  watch is added first, then the directory is listed, and the entries found are reported as created.
  An entry reported twice sums up to a single change.
* A directory may have moved on before the watch is added. The Watch keeps the name, renames the
  name with later moves, and looks again at the end of the batch.
* A moved directory keeps the watch. Inside the tree the Watch changes the paths of the directory
  and of the directories below; after a move out of the tree, the Watch removes the paths. The two
  halves of a move come next to each other; a half alone is a move out or in. An exchange of two
  names (renameat2) comes as two moves, each to the old name of the other. The Watch forgets both
  names, and looks at both as at new names.
* A full queue: the kernel has dropped events (Q_OVERFLOW). The Watch walks the tree again, so the
  table is correct again, and reports that changes are missing. A flood too large for a batch is
  reported in the same way.
* Too many directories for the bound here or for the user's limit. The Watch reports at the
  beginning, or as soon as known, that some directories are not watched.

Directories are opened below the descriptor of the top, name by name, never through a link, as
everywhere in this package. Events of the temporary files of this process's uploads are dropped.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from execd.errors import NotFound
from execd.files.paths import blame
from execd.files.resolve import TreeChanged, identity, undoing
from execd.files.root import Root, retrying
from execd.files.tree_walk import Step, walk
from execd.files.watch.changes import Batch, Change, ChangeList
from execd.files.watch.inotify import Inotify, Mask, RawEvent
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from execd.files.resolve import ResolvedPath
    from execd.files.watch.changes import LostChanges

# The default limit of watches for a user on small machines. Every watch holds an inode in the
# kernel's memory.
MAX_DIRECTORIES = 8192

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_A_NAME = (
    Mask.CREATE
    | Mask.DELETE
    | Mask.MODIFY
    | Mask.CLOSE_WRITE
    | Mask.ATTRIB
    | Mask.MOVED_FROM
    | Mask.MOVED_TO
)


class News(msgspec.Struct):
    """Changes since the last read."""

    changes: list[Change]
    missing: LostChanges | None = None
    """Why the list is incomplete; None for a complete list."""
    is_over: bool = False
    """Whether the top was removed, moved or unmounted: then no more news follow."""


class Watch:
    """Owns an inotify queue and the descriptor of the top; ``close`` ends the watch.

    Not safe for two threads at a time.
    """

    def __init__(
        self, resolved: ResolvedPath, path: str, *, recursive: bool, sums: bool = True
    ) -> None:
        """Take over ``resolved``. ``sums`` False: tell every single change. Raises OSError,
        TreeChanged."""
        assert resolved.exists
        self._path = path
        self._resolved = resolved
        self._sums = sums
        self._recursive = recursive and not resolved.names
        self._only_name = resolved.names[0] if resolved.names else None
        """The name, if a single file is watched. The watch is on the file's directory, so the watch
        survives a replacement of the file."""
        self.place = resolved.place
        self._directories: dict[int, bytes] = {}
        self._unseen: set[bytes] = set()
        """Directories that may have no watch: each has moved, or was gone when the Watch looked."""
        self._is_complete = True
        self._inotify = Inotify()
        with undoing(self._inotify.close):
            self._top = self._inotify.add(resolved.directory)
            self._directories[self._top] = b""
            self._above = self._watch_parent()
            if self._recursive:
                self._watch_below(b"", None)

    @property
    def fd(self) -> int:
        """A descriptor that is readable when there is news."""
        return self._inotify.fd

    @property
    def n_directories(self) -> int:
        return len(self._directories)

    @property
    def is_complete(self) -> bool:
        """Whether every directory is watched."""
        return self._is_complete

    def read(self) -> News:
        """Return the news so far. Blocks only on the disk. Raises ExecdError."""
        try:
            return self._read()
        except OSError as error:
            raise blame(error, repr(self._path)) from error

    def close(self) -> None:
        """Idempotent."""
        self._inotify.close()
        self._resolved.close()

    def _read(self) -> News:
        was_complete = self._is_complete
        batch: Batch | ChangeList = Batch() if self._sums else ChangeList()
        news = News([])
        events = self._inotify.read()
        arrivals = {event.cookie: event for event in events if event.mask & Mask.MOVED_TO}
        departures = {event.cookie: event for event in events if event.mask & Mask.MOVED_FROM}
        exchanges = self._exchanges(events, arrivals)
        for event in events:
            if event.mask & Mask.Q_OVERFLOW:
                news.missing = "queue"
            elif (
                event.mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT)
                and event.watch == self._top
            ):
                news.is_over = True
            elif event.watch == self._above:
                news.is_over = news.is_over or os.fstat(self._resolved.directory).st_nlink == 0
            elif event.mask & Mask.IGNORED:
                self._directories.pop(event.watch, None)
            elif event.cookie in exchanges:
                if event.mask & Mask.MOVED_TO:
                    self._report_exchanged(event, exchanges[event.cookie], batch)
            elif event.mask & _ON_A_NAME and event.watch in self._directories:
                self._apply(event, batch, arrivals, departures)
        if self._unseen:
            for path in self._unseen.difference(self._directories.values()):
                self._watch_below(path, batch)
            self._unseen.difference_update(self._directories.values())
        if news.missing == "queue" and not news.is_over:
            self._rebuild_table()
        if batch.has_overflowed:
            news.missing = "flood"
        if was_complete and not self._is_complete:
            news.missing = news.missing or "directories"
        news.changes = batch.take()
        return news

    def _exchanges(
        self, events: list[RawEvent], arrivals: dict[int, RawEvent]
    ) -> dict[int, RawEvent]:
        """Return, by the cookie of each move that is half of an exchange, the departure of the file
        that had the move's new name.

        An exchange is a move from a to b, and a later move from b to a, where b is still there or
        leaves later. Without that b the same events are a file's way there and back.
        """
        found: dict[int, RawEvent] = {}
        departures: dict[tuple[int, bytes], RawEvent] = {}
        for index, event in enumerate(events):
            there = arrivals.get(event.cookie)
            if not event.mask & Mask.MOVED_FROM or there is None:
                continue
            departures[event.watch, event.name] = event
            first = departures.get((there.watch, there.name))
            if first is None or first.cookie in found:
                continue
            name = (event.watch, event.name)
            back = arrivals[first.cookie]
            if (back.watch, back.name) == name and (
                self._may_exist(self._path_of(event))
                or any(
                    (later.watch, later.name) == name
                    and later.mask & (Mask.DELETE | Mask.MOVED_FROM)
                    for later in events[index + 1 :]
                )
            ):
                found |= {first.cookie: event, event.cookie: first}
        return found

    def _may_exist(self, path: bytes | None) -> bool:
        """Whether something is at ``path``; True if the directory above has moved on since."""
        if path is None:
            return False
        above, _, name = path.rpartition(b"/")
        try:
            directory = self._open(above)
        except OSError:
            return True
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        finally:
            os.close(directory)
        return True

    def _report_exchanged(
        self, event: RawEvent, departure: RawEvent, batch: Batch | ChangeList
    ) -> None:
        path = self._path_of(event)
        if path is None:
            return
        if departure.mask & Mask.ISDIR:
            batch.move_out(Change("deleted", path, is_directory=True))
            self._forget_below(path)
        else:
            batch.add(Change("deleted", path, is_directory=False))
        self._report_created(path, bool(event.mask & Mask.ISDIR), batch)

    def _watch_parent(self) -> int | None:
        """Watch the parent of the top for the top's removal.

        The daemon holds the top open, and inotify does not report DELETE_SELF for an open
        directory.
        """
        try:
            parent = self._resolved.open_above()
        except OSError:
            return None
        try:
            if identity(os.fstat(parent)) == identity(self._resolved.directory_stat):
                return None  # the top of the whole tree cannot be removed
            return self._inotify.add(parent, Mask.DELETE | Mask.ONLYDIR)
        except OSError:
            return None  # no permission to read the parent
        finally:
            os.close(parent)

    def _apply(
        self,
        event: RawEvent,
        batch: Batch | ChangeList,
        arrivals: dict[int, RawEvent],
        departures: dict[int, RawEvent],
    ) -> None:
        path = self._path_of(event)
        if path is None:
            return
        is_directory = bool(event.mask & Mask.ISDIR)
        if event.mask & Mask.MOVED_FROM:
            arrival = arrivals.get(event.cookie)
            if arrival is None or self._path_of(arrival) is None:
                change = Change("deleted", path, is_directory)
                if is_directory:
                    batch.move_out(change)
                    self._forget_below(path)
                else:
                    batch.add(change)
        elif event.mask & Mask.MOVED_TO:
            departure = departures.get(event.cookie)
            old_path = self._path_of(departure) if departure is not None else None
            if old_path is None:
                self._report_created(path, is_directory, batch, may_replace=True)
                return
            batch.add(Change("moved", path, is_directory, old_path))
            if is_directory:
                self._rename_below(old_path, path)
        elif event.mask & Mask.CREATE:
            self._report_created(path, is_directory, batch)
        elif event.mask & Mask.DELETE:
            self._unseen.discard(path)
            batch.add(Change("deleted", path, is_directory))
        elif event.mask & Mask.ATTRIB:
            batch.add(Change("chmod", path, is_directory))
        elif event.mask & Mask.MODIFY or self._sums:
            # Without sums the close after a write would be a second write.
            batch.add(Change("modified", path, is_directory))

    def _path_of(self, event: RawEvent) -> bytes | None:
        """Return the path of an event, or None for an event that is not reported.

        Not reported: temporary files, directories without a watch, neighbours of a single file.
        """
        directory = self._directories.get(event.watch)
        if directory is None or not event.name or event.name.startswith(TEMPORARY_PREFIX):
            return None
        if self._only_name is not None and event.name != self._only_name:
            return None
        return directory + b"/" + event.name if directory else event.name

    def _report_created(
        self,
        path: bytes,
        is_directory: bool,
        batch: Batch | ChangeList,
        *,
        may_replace: bool = False,
    ) -> None:
        batch.add(Change("created", path, is_directory, may_replace=may_replace))
        if is_directory and self._recursive:
            self._watch_below(path, batch)

    def _watch_below(self, path: bytes, batch: Batch | ChangeList | None) -> None:
        """Watch ``path`` and all directories below, and report the entries in them."""
        assert self._recursive
        try:
            top = self._open(path)
        except OSError:
            self._unseen.add(path)  # gone: the watch of a directory above reports where
            return
        has_room = True

        def add_watch(below: bytes, fd: int) -> None:
            nonlocal has_room
            has_room = has_room and self._add(fd, path + b"/" + below if path else below)

        try:
            if path and not self._add(top, path):
                return
            for visit in walk(top, self._resolved.forbidden, TEMPORARY_PREFIX, on_open=add_watch):
                if visit.step is Step.LEAVE:
                    continue
                if visit.step is Step.REFUSED:
                    self._is_complete = self._is_complete and visit.error is None
                    continue
                below = path + b"/" + visit.path if path else visit.path
                if batch is not None:
                    batch.add(Change("created", below, visit.step is Step.ENTER))
                if not has_room:
                    return
        except (TreeChanged, PermissionError):
            self._is_complete = False
        finally:
            os.close(top)

    def _add(self, fd: int, path: bytes) -> bool:
        """Add a watch. Return whether there was room."""
        assert len(self._directories) <= MAX_DIRECTORIES
        if len(self._directories) >= MAX_DIRECTORIES:
            self._is_complete = False
            return False
        try:
            self._directories[self._inotify.add(fd)] = path
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._is_complete = False
            return False
        return True

    def _open(self, path: bytes) -> int:
        """Open the watched directory at ``path``. Raises OSError."""
        fd = os.dup(self._resolved.directory)
        try:
            for name in path.split(b"/") if path else ():
                below = os.open(name, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _below(self, path: bytes) -> list[tuple[int, bytes]]:
        return [(watch, at) for watch, at in self._directories.items() if _is_in(path, at)]

    def _forget_below(self, path: bytes) -> None:
        for watch, _ in self._below(path):
            self._inotify.remove(watch)
            del self._directories[watch]
        self._unseen -= {at for at in self._unseen if _is_in(path, at)}

    def _rename_below(self, old_path: bytes, path: bytes) -> None:
        for watch, at in self._below(old_path):
            self._directories[watch] = path + at[len(old_path) :]
        if self._recursive:
            self._unseen = {
                path + at[len(old_path) :] if _is_in(old_path, at) else at for at in self._unseen
            }
            self._unseen.add(path)

    def _rebuild_table(self) -> None:
        for watch in [watch for watch in self._directories if watch != self._top]:
            self._inotify.remove(watch)
        self._directories = {self._top: b""}
        self._unseen.clear()
        self._is_complete = True
        if self._recursive:
            self._watch_below(b"", None)


def _is_in(directory: bytes, path: bytes) -> bool:
    return path == directory or path.startswith(directory + b"/")


@retrying
def watch(root: Root, path: str, *, recursive: bool = False, sums: bool = True) -> Watch:
    """Begin to watch the directory, or the single file, at ``path``; the caller closes the watch.
    ``sums`` False: tell every single change.

    Raises NotFound, PermissionDenied, ResourceExhausted (the user's inotify queues),
    InvalidArgument, Conflict.
    """
    resolved = root.resolve(path)
    with undoing(resolved.close):
        if resolved.stat is None:
            raise NotFound(f"{path!r}: no such file or directory")
        return Watch(resolved, path, recursive=recursive, sums=sums)
