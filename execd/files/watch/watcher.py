"""Watching a directory, or a tree of them, for changes.

Theory. inotify watches directories, each for itself, and tells names in them. To tell paths, this
object keeps a table: the kernel's number of a watch -> the path of its directory below the top.
Four things can make the table, or the news, untrue:

* A new directory: things may be made in it, and in those below it, before they are watched. Each is
  watched first, then looked at, and what is found is reported as created; what is then reported
  twice sums up to once.
* A directory that is moved keeps its watch: inside the tree its paths, and those below, are changed
  in the table; out of the tree they are removed. The two halves of a move come next to each other;
  a half without the other is a move out, or in.
* A full queue: the kernel has dropped news (Q_OVERFLOW). The tree is walked again, so that the
  table is true again, and the caller is told that something is missing, never what. The same goes
  for a flood that is too large for a batch.
* Too many directories for our bound or the user's: what is not watched is said to be so, at the
  beginning or when it happens.

Directories are opened below the descriptor of the top, name by name, never through a link, as
everywhere here. What inotify tells of the temporary files of our own uploads is passed over.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from execd.errors import NotFound
from execd.files.paths import blame
from execd.files.resolve import TreeChanged, identity
from execd.files.root import Root, retry_on_change
from execd.files.tree_walk import Step, walk
from execd.files.watch.changes import Batch, Change
from execd.files.watch.inotify import Inotify, Mask, RawEvent
from execd.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from execd.files.resolve import ResolvedPath

# A user may have 8,192 watches by default on small machines, and every watch holds an inode in the
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
    """What happened since the last time."""

    changes: list[Change]
    missing: str | None = None
    """Why there is more than is told: "queue", "flood", "directories"; None: there is not."""
    is_over: bool = False
    """The top itself was removed, moved or unmounted: there will be no more news."""


class Watch:
    """Owns an inotify queue and the descriptor of the top; ``close`` ends it. Not for two threads
    at a time."""

    def __init__(self, resolved: ResolvedPath, path: str, *, recursive: bool) -> None:
        """Take over ``resolved``. Raises OSError, TreeChanged."""
        self._path = path
        self._resolved = resolved
        self._recursive = recursive and not resolved.names
        self._only = resolved.names[0] if resolved.names else None
        """A single file is watched by way of its directory, so that it is still the same after it
        was replaced."""
        self.place = resolved.place
        self._prefix = (
            resolved.place[: -len(self._only)].rstrip(b"/")
            if self._only is not None
            else resolved.place
        )
        self._directories: dict[int, bytes] = {}
        self._is_complete = True
        self._inotify = Inotify()
        try:
            self._top = self._inotify.add(resolved.directory)
            self._directories[self._top] = b""
            self._above = self._watch_parent()
            if self._recursive:
                self._add_below(b"", None)
        except BaseException:
            self._inotify.close()
            raise

    @property
    def fd(self) -> int:
        """Readable when there is news."""
        return self._inotify.fd

    @property
    def n_directories(self) -> int:
        return len(self._directories)

    @property
    def is_complete(self) -> bool:
        """Whether every directory is watched."""
        return self._is_complete

    def read(self) -> News:
        """What has happened so far; never blocks on anything but the disk. Raises ExecdError."""
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
        batch, news = Batch(), News([])
        events = self._inotify.read()
        arrivals = {event.cookie: event for event in events if event.mask & Mask.MOVED_TO}
        departures = {event.cookie: event for event in events if event.mask & Mask.MOVED_FROM}
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
            elif event.mask & _ON_A_NAME and event.watch in self._directories:
                self._take(event, batch, arrivals, departures)
        if news.missing == "queue" and not news.is_over:
            self._start_anew()
        if batch.has_overflowed:
            news.missing = "flood"
        if was_complete and not self._is_complete:
            news.missing = news.missing or "directories"
        news.changes = batch.take()
        return news

    def _watch_parent(self) -> int | None:
        """What we hold open is not deleted in inotify's eyes, so its own watch does not tell: that
        of its parent does."""
        try:
            parent = self._resolved.open_above()
        except OSError:
            return None
        try:
            if identity(os.fstat(parent)) == identity(self._resolved.directory_stat):
                return None  # the top of the whole tree, which nobody removes
            return self._inotify.add(parent, Mask.DELETE | Mask.ONLYDIR)
        except OSError:
            return None  # not ours to read
        finally:
            os.close(parent)

    def _take(
        self,
        event: RawEvent,
        batch: Batch,
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
                self._report(batch, Change("deleted", path, is_directory))
                if is_directory:
                    self._forget_below(path)
        elif event.mask & Mask.MOVED_TO:
            departure = departures.get(event.cookie)
            old_path = self._path_of(departure) if departure is not None else None
            if old_path is None:
                self._appeared(path, is_directory, batch)
                return
            self._report(batch, Change("moved", path, is_directory, old_path))
            if is_directory:
                self._rename_below(old_path, path)
        elif event.mask & Mask.CREATE:
            self._appeared(path, is_directory, batch)
        elif event.mask & Mask.DELETE:
            self._report(batch, Change("deleted", path, is_directory))
        elif event.mask & Mask.ATTRIB:
            self._report(batch, Change("chmod", path, is_directory))
        else:
            self._report(batch, Change("modified", path, is_directory))

    def _path_of(self, event: RawEvent) -> bytes | None:
        """None for what is not ours to tell: temporaries, directories that are not watched,
        neighbours of a single file."""
        directory = self._directories.get(event.watch)
        if directory is None or not event.name or event.name.startswith(TEMPORARY_PREFIX):
            return None
        if self._only is not None and event.name != self._only:
            return None
        return directory + b"/" + event.name if directory else event.name

    def _report(self, batch: Batch, change: Change) -> None:
        def whole(path: bytes) -> bytes:
            return self._prefix + b"/" + path if self._prefix else path

        old_path = None if change.old_path is None else whole(change.old_path)
        batch.add(Change(change.kind, whole(change.path), change.is_directory, old_path))

    def _appeared(self, path: bytes, is_directory: bool, batch: Batch) -> None:
        self._report(batch, Change("created", path, is_directory))
        if is_directory and self._recursive:
            self._add_below(path, batch)

    def _add_below(self, path: bytes, batch: Batch | None) -> None:
        """Watch the directory ``path`` and all below it, and report what is in them."""
        try:
            top = self._open(path)
        except OSError:
            return  # it is gone, or no directory any more: its parent's watch tells
        is_room = True

        def begin(below: bytes, fd: int) -> None:
            nonlocal is_room
            is_room = is_room and self._add(fd, path + b"/" + below if path else below)

        try:
            if path and not self._add(top, path):
                return
            for visit in walk(top, self._resolved.forbidden, TEMPORARY_PREFIX, on_open=begin):
                if visit.step is Step.LEAVE:
                    continue
                if visit.step is Step.REFUSED:
                    self._is_complete = self._is_complete and visit.error is None
                    continue
                below = path + b"/" + visit.path if path else visit.path
                if batch is not None:
                    self._report(batch, Change("created", below, visit.step is Step.ENTER))
                if not is_room:
                    return
        except TreeChanged:
            self._is_complete = False
        finally:
            os.close(top)

    def _add(self, fd: int, path: bytes) -> bool:
        """Whether there was room for one more."""
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
        """Raises OSError."""
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
        return [
            (watch, at)
            for watch, at in self._directories.items()
            if at == path or at.startswith(path + b"/")
        ]

    def _forget_below(self, path: bytes) -> None:
        for watch, _ in self._below(path):
            self._inotify.remove(watch)
            del self._directories[watch]

    def _rename_below(self, old_path: bytes, path: bytes) -> None:
        for watch, at in self._below(old_path):
            self._directories[watch] = path + at[len(old_path) :]

    def _start_anew(self) -> None:
        for watch in [watch for watch in self._directories if watch != self._top]:
            self._inotify.remove(watch)
        self._directories = {self._top: b""}
        self._is_complete = True
        if self._recursive:
            self._add_below(b"", None)


def watch(root: Root, path: str, *, recursive: bool = False) -> Watch:
    """Begin to watch the directory, or the one file, at ``path``; the caller closes it.

    Raises NotFound, PermissionDenied, ResourceExhausted (the user's inotify queues),
    InvalidArgument, Conflict.
    """

    def attempt() -> Watch:
        resolved = root.resolve(path)
        try:
            if resolved.stat is None:
                raise NotFound(f"{path!r}: no such file or directory")
            return Watch(resolved, path, recursive=recursive)
        except BaseException:
            resolved.close()
            raise

    return retry_on_change(attempt, path)
