"""The state dir: execd's own folder. Links to the user's Python, and the part of large outputs that
memory does not hold.

    bin/    python and python3, for PATH; in namespaces user code sees this and nothing else of the
            folder
    logs/   one file per spooled stream, gone with its execution
    journal keyed and detached executions, see ``journal``
    lock    held for life: two daemons on one state dir would delete each other's logs

The folder is held by a descriptor, and everything is opened relative to a descriptor. User code may
be able to rename a directory above the folder, and so decide what lies at the path. The folder that
was moved goes on being used: the cover that hides it in the namespaces moved with it. At the path
there are then only links and a lock, and nothing to hide. A root daemon goes to the path as
``own_paths`` says, lets nobody else write to the folder, and refuses a folder of the user that
commands run as.

A folder that was removed is made again at the path where user code has no namespaces, for there
nothing is hidden anyway. Where it has, the new folder would lie there without a cover: executions
go on in memory only, until another warden gets another cover.

All disk work is done in threads of the store's own, so that a hung disk can stop logs but not the
loop. The journal has one thread for itself: its records stay in order, and no log delays them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import logging
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from execd.engine.store.journal import Journal
from execd.engine.store.own_paths import open_directory
from execd.files.resolve import open_directory as open_without_links
from execd.proc.namespaces import View

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from execd.engine.store.journal import Record

logger = logging.getLogger(__name__)

SPOOL_THREADS = 4
# Longer than a disk with trouble takes, shorter than a caller's patience.
DISK_SECONDS = 2.0

NO_SPACE = os.strerror(errno.ENOSPC)

T = TypeVar("T")


class StateDirError(Exception):
    """The state dir cannot be used; the message says why and names it."""


class StateDir:
    """Owns the folder, its lock, the threads and the disk budget. ``close`` gives all of it
    back."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        links: Mapping[str, str],
        is_uncovered: Callable[[], bool] = lambda: True,
        *,
        commands_uid: int | None = None,
    ) -> None:
        """``is_uncovered``: whether user code runs without namespaces, and finds all that lies at
        the path.

        ``commands_uid``: whom a root daemon runs commands as, if it is not root.
        """
        self.path = path
        self.bin_dir = os.path.join(path, "bin")
        self.logs_dir = os.path.join(path, "logs")
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self._links = dict(links)
        self._is_uncovered = is_uncovered
        self._commands_uid = commands_uid
        self._ensuring = threading.Lock()
        self._complaint: str | None = None
        self._hung: asyncio.Future[str | None] | None = None
        """Work of the journal's thread that was given up, and is under way still."""
        with contextlib.ExitStack() as undo:
            try:
                self.dir_fd = _open_folder(path, commands_uid)
                """The folder, wherever it lies: the number stays, even when another folder takes
                its place."""
                undo.callback(os.close, self.dir_fd)
                self._lock = _Lock()
                self._lock_at_path = _Lock()
                undo.callback(self._lock.close)
                undo.callback(self._lock_at_path.close)
                self._lock.hold(self.dir_fd)
                self.ensure(will_be_covered=True)
                self.journal = Journal("journal", self.dir_fd)
                undo.callback(self.journal.close)
                self.past = self.journal.load()
                self._remove_logs(except_of=self.past)
            except BlockingIOError:
                raise StateDirError(f"--state-dir: {path} is in use by another execd") from None
            except OSError as error:
                where = "" if error.filename in (None, path) else f" ({error.filename})"
                raise StateDirError(f"--state-dir: {path}: {error.strerror}{where}") from error
            undo.pop_all()
        self.threads = ThreadPoolExecutor(SPOOL_THREADS, thread_name_prefix="spool")
        self._journal_thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    @property
    def anchor(self) -> str:
        """A path of the folder, wherever it lies, for this process alone."""
        return f"/proc/self/fd/{self.dir_fd}"

    def view(self) -> View:
        """What the next warden is to cover. Called before each start of one: no user code runs
        then, and a folder that was removed can be made again and covered."""
        with contextlib.suppress(OSError):  # then the cover fails, and says so
            self.ensure(will_be_covered=True)
        path = os.readlink(self.anchor)
        return View(path, os.path.join(path, "bin"), self._links)

    def ensure(self, *, will_be_covered: bool = False) -> None:
        """Make what is missing: also called later, since somebody may remove the folder. Raises
        OSError."""
        with self._ensuring:
            try:
                self._ensure_folder(may_replace=will_be_covered or self._is_uncovered())
            finally:
                self._ensure_path()

    def _ensure_folder(self, *, may_replace: bool) -> None:
        try:
            _make_logs(self.dir_fd)
        except FileNotFoundError:
            # Of all errors only this one says on every filesystem that the folder itself is gone.
            if not may_replace:
                raise OSError(
                    errno.ENOENT,
                    "the state dir was removed, and a new one could be read by commands",
                ) from None
            self._replace()
            _make_logs(self.dir_fd)
        try:
            self._lock.hold(self.dir_fd)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "the state dir was taken over by another execd") from None

    def _replace(self) -> None:
        folder = _open_folder(self.path, self._commands_uid)
        try:
            self._lock_at_path.close()  # it may be on the same file, and would be in our own way
            lock = _Lock()
            try:
                lock.hold(folder)
            except BlockingIOError:
                raise OSError(
                    errno.EBUSY, "the state dir was taken over by another execd"
                ) from None
            os.dup2(folder, self.dir_fd, inheritable=False)
            self._lock.close()
            self._lock = lock
        finally:
            os.close(folder)

    def _ensure_path(self) -> None:
        """What must be at the path, whatever lies there: the links, and a lock against a second
        daemon. Neither is secret."""
        folder = _open_folder(self.path, self._commands_uid)
        try:
            if os.path.samestat(os.fstat(folder), os.fstat(self.dir_fd)):
                self._lock_at_path.close()
            else:
                # a second daemon was faster: it has another folder than we
                with contextlib.suppress(BlockingIOError):
                    self._lock_at_path.hold(folder)
            self._ensure_links(folder)
        finally:
            os.close(folder)

    def _ensure_links(self, folder: int) -> None:
        """By descriptors: the path may come to lead elsewhere at any moment."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            bin_dir = os.open("bin", flags, dir_fd=folder)
        except FileNotFoundError:
            os.mkdir("bin", 0o755, dir_fd=folder)
            bin_dir = os.open("bin", flags, dir_fd=folder)
        try:
            for name, target in self._links.items():
                if _link_target(name, bin_dir) != target:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=bin_dir)
                    os.symlink(target, name, dir_fd=bin_dir)
        finally:
            os.close(bin_dir)

    def _remove_logs(self, except_of: Container[str]) -> None:
        """What a former daemon left behind, and its journal does not name, belongs to nobody any
        more."""
        logs = open_without_links(b"logs", self.dir_fd)
        try:
            for name in os.listdir(logs):
                if name.rpartition(".")[0] not in except_of:
                    os.unlink(name, dir_fd=logs)
        finally:
            os.close(logs)

    async def write_journal(self, record: Record) -> str | None:
        """None, or why the memory of this may not survive a restart. A disk that hangs is waited
        for once, until it answers again."""
        return await self._in_journal_thread(functools.partial(self._append, record))

    async def repair(self) -> str | None:
        """Make again what somebody removed, and write what could not be written. Why that failed,
        if it did."""
        why = None if self._hung is not None else await self._in_journal_thread(self._repair)
        if self._hung is None and why is None:
            self._complaint = None
        return why

    @property
    def is_hung(self) -> bool:
        """The disk was asked for something, and has not answered."""
        return self._hung is not None

    def _append(self, record: Record) -> None:
        try:
            self.journal.append(record)
        except OSError:
            if self.journal.is_in_place:
                raise
        # asked afterwards: the journal has noted the record, and takes it along
        if not self.journal.is_in_place:
            self._repair()

    def _repair(self) -> None:
        self.ensure()
        self.journal.repair()

    async def _in_journal_thread(self, work: Callable[[], None]) -> str | None:
        """Why it was not done, as far as is known now. It is done in its turn even if nobody waits
        for it."""
        doing = asyncio.get_running_loop().run_in_executor(self._journal_thread, _failure_of, work)
        if self._hung is None:
            await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if doing.done():
            why = doing.result()
        else:
            why = f"the disk did not answer for {DISK_SECONDS:g} s"
            if self._hung is None:
                self._hung = doing
                doing.add_done_callback(self._on_answer)
        if why is not None and why != self._complaint:
            self._complaint = why
            logger.error("the state dir cannot be used", extra={"path": self.path, "error": why})
        return why

    def _on_answer(self, _: asyncio.Future[str | None]) -> None:
        self._hung = None

    def spool(self, name: str, max_bytes: int) -> Spool:
        return Spool(self, os.path.join("logs", name), max_bytes)

    def reserve(self, wanted_bytes: int) -> int:
        """Take up to so much of the budget; how much there was."""
        granted = max(0, min(wanted_bytes, self.max_bytes - self.used_bytes))
        self.used_bytes += granted
        return granted

    def release(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes

    def close(self, within_seconds: float = DISK_SECONDS) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        # behind what is still to be written
        closing = self._journal_thread.submit(self.journal.close)
        self._journal_thread.shutdown(wait=False)
        if not self.is_hung:
            concurrent.futures.wait((closing,), min(DISK_SECONDS, within_seconds))
        self._lock_at_path.close()
        self._lock.close()
        os.close(self.dir_fd)


class _Lock:
    """A lock on the file ``lock`` of a folder, which keeps other daemons out of it."""

    def __init__(self) -> None:
        self._fd = -1

    def hold(self, folder: int) -> None:
        """Take it, if this is not the one that is held. Raises BlockingIOError if another daemon
        holds it, OSError."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(
                    os.stat("lock", dir_fd=folder, follow_symlinks=False), os.fstat(self._fd)
                ):
                    return
        fd = os.open(
            "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Spool:
    """The first bytes of one stream on disk, at most ``max_bytes``. Write in order, one write at a
    time; then ``finish``."""

    def __init__(self, state_dir: StateDir, path: str, max_bytes: int) -> None:
        self.size_bytes = 0
        self.failure: str | None = None
        """Why it holds less than it might: the disk, or the budget of all logs together."""
        self._state_dir = state_dir
        self._path = path
        self.max_bytes = max_bytes
        self._fd: int | None = None
        self._fd_turn = threading.Lock()
        """Held to take a copy of ``_fd`` or to close it, and by nobody who waits for a disk."""
        self._reserved_bytes = 0
        self._is_finished = False
        self._is_hung = False

    def adopt(self) -> None:
        """Take over the file that a former daemon wrote, if it is there."""
        with contextlib.suppress(OSError):
            size_bytes = os.stat(self._path, dir_fd=self._state_dir.dir_fd).st_size
            self._reserved_bytes = self.size_bytes = self._state_dir.reserve(size_bytes)

    @property
    def accepts(self) -> bool:
        return self.failure is None and self.size_bytes < self.max_bytes

    async def write(self, data: bytes) -> None:
        """Append as much as fits. Never raises for the disk's sake: it notes the failure and
        accepts no more."""
        wanted = min(len(data), self.max_bytes - self.size_bytes)
        granted = self._state_dir.reserve(wanted)
        self._reserved_bytes += granted
        if granted < wanted:
            self.failure = "the logs' share of the disk is used up"
        if granted:
            await self._in_thread(functools.partial(self._write, data[:granted]))
        if self.failure is not None:
            logger.warning(
                "a log goes on in memory only", extra={"path": self._path, "error": self.failure}
            )

    def _write(self, data: bytes) -> None:
        try:
            if self._fd is None and not self._is_finished:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
                try:
                    self._fd = os.open(self._path, flags, 0o600, dir_fd=self._state_dir.dir_fd)
                except FileNotFoundError:
                    self._state_dir.ensure()  # somebody removed the state dir: it is made again
                    self._fd = os.open(self._path, flags, 0o600, dir_fd=self._state_dir.dir_fd)
            fd = self._copy()
            try:
                view = memoryview(data)
                while view and fd >= 0:
                    written = os.pwrite(fd, view, self.size_bytes)
                    self.size_bytes += written
                    view = view[written:]
            finally:
                if fd >= 0:
                    os.close(fd)
        except OSError as error:
            self.failure = error.strerror or "input/output error"

    def _copy(self) -> int:
        """Of our descriptor, or -1. ``finish`` may close the original meanwhile, and its number
        come to mean another file."""
        with self._fd_turn:
            return -1 if self._fd is None else os.dup(self._fd)

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """What it returns, or None when the disk does not answer: then it is given up, so that no
        answer waits for it."""
        if self._is_hung:
            return None
        doing = asyncio.get_running_loop().run_in_executor(self._state_dir.threads, work)
        done, _ = await asyncio.wait((doing,), timeout=DISK_SECONDS)
        if not done:
            self._is_hung = True
            self.failure = f"the disk did not answer for {DISK_SECONDS:g} s"
            return None
        return doing.result()

    async def read(self, offset: int, end: int) -> bytes | None:
        """The bytes [offset, end), or None if the file is gone or shorter."""
        if end > self.size_bytes:
            return None
        return await self._in_thread(functools.partial(self._read, offset, end))

    def _read(self, offset: int, end: int) -> bytes | None:
        try:
            fd = self._open()
        except OSError:
            return None
        try:
            data = os.pread(fd, end - offset, offset)
            return data if len(data) == end - offset else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def _open(self) -> int:
        fd = self._copy()
        return (
            fd
            if fd >= 0
            else os.open(
                self._path,
                os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW,
                dir_fd=self._state_dir.dir_fd,
            )
        )

    async def look(self) -> None:
        """Notice if somebody removed the file or cut it short: ``size_bytes`` then says what is
        left.

        Of a finished log only: that of a running one grows while we look, and is held by a
        descriptor.
        """
        size_bytes = await self._in_thread(self._present_bytes) if self._is_finished else None
        if size_bytes is not None and size_bytes < self.size_bytes:
            self.size_bytes = size_bytes
            self.failure = "the log's file was removed or cut short"

    def _present_bytes(self) -> int | None:
        try:
            fd = self._open()
        except FileNotFoundError:
            return 0
        except OSError:
            return None
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def finish(self) -> None:
        """No more writes: a finished log costs no descriptor, later reads open it again."""
        with self._fd_turn:
            self._is_finished = True
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def remove(self) -> None:
        self.finish()
        self._state_dir.threads.submit(_unlink, self._path, self._state_dir.dir_fd)
        self._state_dir.release(self._reserved_bytes)
        self._reserved_bytes = self.size_bytes = 0


def _failure_of(work: Callable[[], None]) -> str | None:
    try:
        work()
    except OSError as error:
        return error.strerror or "input/output error"
    return None


def _open_folder(path: str, commands_uid: int | None) -> int:
    """Made if need be. Others may pass through (a ``--run-as`` user needs bin/), nobody else may
    list it.

    A root daemon takes write permission from all others: who can rename ``logs`` chooses what root
    writes and removes. Raises OSError, EACCES for a folder of the user that commands run as.
    """
    folder = open_directory(path, 0o711)
    try:
        info = os.fstat(folder)
        if os.geteuid() == 0:
            if info.st_uid == commands_uid != 0:
                raise PermissionError(
                    errno.EACCES, f"it belongs to uid {commands_uid}, which commands run as", path
                )
            if info.st_uid == 0 and info.st_mode & 0o022:
                os.chmod(f"/proc/self/fd/{folder}", stat.S_IMODE(info.st_mode) & ~0o022)
        return folder
    except BaseException:
        os.close(folder)
        raise


def _make_logs(folder: int) -> None:
    """Looks first: even a mkdir that finds all in place waits for a frozen disk."""
    try:
        os.stat("logs", dir_fd=folder)
    except FileNotFoundError:
        os.mkdir("logs", 0o700, dir_fd=folder)


def _link_target(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None  # missing, or no link


def _unlink(path: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path, dir_fd=folder)
