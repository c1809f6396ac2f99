"""The folder of the state dir: found, opened, locked, checked, and made again when removed.

    bin/    links python and python3, for PATH; in namespaces user code sees only this directory
    checkpoints/ manifests and contents, see ``files.checkpoints.shelf``; made at the first use
    logs/   one file for each spooled stream, removed with its execution
    journal keyed and detached executions, see ``journal``; beside it journal.damaged, if a line
            of it was damaged
    lock    locked as long as the daemon lives: two daemons on one folder would delete each other's
            logs

The folder is held by a descriptor, and every file is opened relative to a descriptor. User code may
be able to rename a directory above the folder, and so decide what lies at the path.

* Moved: the daemon goes on using the moved folder, because the cover that hides the folder in the
  namespaces moved along. At the path the daemon then keeps only links and a lock. Neither is
  secret.
* Removed, and user code has no namespaces: the folder is made again at the path. Nothing is hidden
  from user code anyway.
* Removed, and user code has namespaces: a new folder would lie at the path without a cover, so
  executions keep their output in memory only until the next warden covers a new folder.

A root daemon walks to the path by the rules of ``files.resolve``, takes write permission on the
folder from all users except root, and refuses a folder of the user that commands run as.

Threads. ``ensure`` is called by the journal's thread, by the spools' threads and by the loop's
thread; a lock serialises the calls. ``dir_fd`` keeps its number when another folder takes the place
of a removed one (dup2), so a thread never holds a stale number.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from typing import TYPE_CHECKING

from execd.files.resolve import open_directory, open_own_directory
from execd.proc.namespaces import View

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping


class StateFolder:
    """Own the folder's descriptor and lock. ``close`` releases both."""

    def __init__(
        self,
        path: str,
        links: Mapping[str, str],
        is_uncovered: Callable[[], bool],
        *,
        commands_uid: int | None = None,
    ) -> None:
        """Open the folder, or make the folder. Raises OSError; BlockingIOError: locked elsewhere.

        ``links``: name in ``bin`` -> target. ``is_uncovered``: whether user code runs without
        namespaces, and can read all that lies at the path. ``commands_uid``: the user that a root
        daemon runs commands as, if not root.
        """
        self._path = path
        self._links = dict(links)
        self._is_uncovered = is_uncovered
        self._commands_uid = commands_uid
        self._ensuring = threading.Lock()
        self.dir_fd = _open_folder(path, commands_uid)
        """The folder, wherever the folder lies now."""
        self._lock = _FolderLock()
        self._lock_at_path = _FolderLock()
        """Held in the folder at the path while the folder at ``dir_fd`` lies elsewhere."""
        try:
            self._lock.hold(self.dir_fd)
            self.ensure(will_be_covered=True)
        except BaseException:
            self.close()
            raise

    @property
    def anchor(self) -> str:
        """/proc/self/fd/N: follows the folder when user code renames the folder. Only this process
        can use the path."""
        return f"/proc/self/fd/{self.dir_fd}"

    def has(self, name: str) -> bool:
        """Whether the folder has a file or folder of this name."""
        try:
            os.stat(name, dir_fd=self.dir_fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def view(self) -> View:
        """Tell the next warden which folder to cover.

        Called before each start of a warden. No user code runs at that moment, so a folder that was
        removed can be made again, and the warden covers the new folder.
        """
        with contextlib.suppress(OSError):  # the warden then fails to cover the folder, and says so
            self.ensure(will_be_covered=True)
        path = os.readlink(self.anchor)
        return View(path, os.path.join(path, "bin"), self._links, self._commands_uid)

    def ensure(self, *, will_be_covered: bool = False) -> None:
        """Make missing parts of the folder and its contents. Raises OSError.

        Also called long after the start, because user code may have removed the folder.
        """
        with self._ensuring:
            try:
                self._ensure_folder(may_replace=will_be_covered or self._is_uncovered())
            finally:
                self._ensure_path()

    def _ensure_folder(self, *, may_replace: bool) -> None:
        try:
            _make_logs(self.dir_fd)
        except FileNotFoundError:
            # On every filesystem, ENOENT from mkdir below a descriptor means that the folder itself
            # was removed. No other error has this meaning on all filesystems.
            if not may_replace:
                raise OSError(
                    errno.ENOENT,
                    "the state dir was removed, and a new one could be read by commands",
                ) from None
            self._replace_folder()
            _make_logs(self.dir_fd)
        try:
            self._lock.hold(self.dir_fd)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "the state dir was taken over by another execd") from None

    def _replace_folder(self) -> None:
        """Make a folder at the path, lock the folder, and put the folder behind ``dir_fd``."""
        folder = _open_folder(self._path, self._commands_uid)
        try:
            # The lock at the path may be on the file locked next: flock(2) of a second open file
            # refuses even the process with the lock of the first.
            self._lock_at_path.release()
            lock = _FolderLock()
            try:
                lock.hold(folder)
            except BlockingIOError:
                raise OSError(
                    errno.EBUSY, "the state dir was taken over by another execd"
                ) from None
            os.dup2(folder, self.dir_fd, inheritable=False)
            self._lock.release()
            self._lock = lock
        finally:
            os.close(folder)

    def _ensure_path(self) -> None:
        """Put the links and a lock at the path, wherever the folder lies.

        The lock keeps a second daemon away. Neither links nor lock are secret.
        """
        folder = _open_folder(self._path, self._commands_uid)
        try:
            if os.path.samestat(os.fstat(folder), os.fstat(self.dir_fd)):
                self._lock_at_path.release()
            else:
                # A second daemon may hold the lock already. The second daemon uses the folder at
                # the path, this daemon uses the moved folder.
                with contextlib.suppress(BlockingIOError):
                    self._lock_at_path.hold(folder)
            self._ensure_links(folder)
        finally:
            os.close(folder)

    def _ensure_links(self, folder: int) -> None:
        """Write the links below descriptors: the path may lead elsewhere at any moment."""
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

    def remove_logs(self, except_of: Container[str]) -> None:
        """Remove the logs of a former daemon, except those of the executions in its journal."""
        logs = open_directory(b"logs", self.dir_fd)
        try:
            for name in os.listdir(logs):
                if name.rpartition(".")[0] not in except_of:
                    os.unlink(name, dir_fd=logs)
        finally:
            os.close(logs)

    def close(self) -> None:
        """Release the locks and the descriptor."""
        assert self.dir_fd >= 0, "closed twice"
        self._lock_at_path.release()
        self._lock.release()
        os.close(self.dir_fd)
        self.dir_fd = -1


class _FolderLock:
    """A lock on the file ``lock`` of a folder, to keep a second daemon away from the folder."""

    def __init__(self) -> None:
        self._fd = -1

    def hold(self, folder: int) -> None:
        """Take the lock of ``folder``, unless held, and release the lock held before.

        Raises BlockingIOError if a second daemon holds the lock, OSError.
        """
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
        self.release()
        self._fd = fd

    def release(self) -> None:
        """Release the lock, if held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open_folder(path: str, commands_uid: int | None) -> int:
    """Open the folder at ``path``, made if missing, with mode 0711.

    Mode 0711: all users may pass through the folder (a ``--run-as`` user needs bin/) and may not
    list the folder. A root daemon takes write permission from all users except root: a user with
    the right to rename ``logs`` would choose the files that root writes and removes. Raises
    OSError; EACCES for a folder of the user that commands run as.
    """
    folder = open_own_directory(path, 0o711)
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
    """Make ``logs`` if missing.

    Stat first: on a frozen filesystem a mkdir blocks even if the directory exists.
    """
    try:
        os.stat("logs", dir_fd=folder)
    except FileNotFoundError:
        os.mkdir("logs", 0o700, dir_fd=folder)


def _link_target(name: str, folder: int) -> str | None:
    """Read a link. None: the name is missing, or names no link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None
