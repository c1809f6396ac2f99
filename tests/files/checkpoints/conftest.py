"""Checkpoints of a directory, and an independent walk that judges them."""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from execd.files.checkpoints.crew import Crew
from execd.files.checkpoints.operations import Operations
from execd.files.checkpoints.shelf import Shelf
from execd.files.root import Root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from execd.files.checkpoints.entries import Checkpoint, StoredCheckpoint, TreeChange
    from execd.files.checkpoints.operations import How, Restored, Verified

NAMES = (b"a", b"b", b"c", b"new\nline", b"\xff\xfe", b"n" * 255)


class Desk:
    """The operations on checkpoints of ``base``, with a shelf in ``state``."""

    def __init__(self, base: Path, state: Path) -> None:
        self.base, self.state = base, state
        state.mkdir(exist_ok=True)
        self._state_fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
        self.shelf = Shelf(self._state_fd)
        self.threads = ThreadPoolExecutor(3)
        self.granted_bytes = 1 << 40
        self.operations = Operations(
            Root.whole_tree(str(base), str(state)),
            lambda call: call(),
            Crew(self.threads, 3),
            lambda: self.shelf,
        )
        self.stops: Callable[[], bool] = lambda: False

    def close(self) -> None:
        self.threads.shutdown()
        self.shelf.close()
        os.close(self._state_fd)

    def create(
        self, roots: Sequence[str] = (".",), watched: Sequence[str] = (), exclude: Any = ()
    ) -> Checkpoint:
        return self.operations.create(
            "x",
            roots,
            watched,
            exclude,
            lambda n_bytes: max(0, n_bytes - self.granted_bytes),
            self.stops,
        )

    @property
    def stored(self) -> StoredCheckpoint:
        return self.shelf.load("x")

    def changes(self) -> list[TreeChange]:
        return self.operations.changes(self.stored, self.stops)

    def kinds(self) -> dict[str, str]:
        top = f"{self.base}/"
        return {change.full_path.removeprefix(top): change.kind for change in self.changes()}

    def restore(self, how: How = "auto") -> Restored:
        return self.operations.restore(self.stored, how, self.stops)

    def verify(self, how: How = "auto") -> Verified:
        return self.operations.verify(self.stored, how, self.stops)

    def restore_all(self, how: How = "auto") -> Restored:
        """Restore, and require that nothing is left to say."""
        done = self.restore(how)
        assert done.troubles == []
        verified = self.verify(how)
        assert (verified.n_differences, verified.differences) == (0, [])
        return done


@pytest.fixture
def desk(base: Path, tmp_path: Path) -> Iterator[Desk]:
    before = set(os.listdir("/proc/self/fd"))
    desk = Desk(base, tmp_path / "state")
    yield desk
    desk.close()
    assert set(os.listdir("/proc/self/fd")) == before, "descriptors leaked"


def facts(top: Path) -> dict[bytes, tuple[Any, ...]]:
    """All that a restore promises of a tree, found by os.walk."""
    found: dict[bytes, tuple[Any, ...]] = {}
    firsts: dict[tuple[int, int], bytes] = {}
    raw_top = os.fsencode(top)
    paths = [raw_top]
    for folder, directories, files in os.walk(raw_top):
        paths += [os.path.join(folder, name) for name in directories + files]
    for path in sorted(paths):
        info = os.lstat(path)
        content: object = None
        if stat.S_ISREG(info.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        attributes = {}
        if not stat.S_ISLNK(info.st_mode):
            attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        is_directory = stat.S_ISDIR(info.st_mode)
        found[path[len(raw_top) :]] = (
            info.st_mode,
            info.st_uid,
            info.st_gid,
            info.st_mtime_ns,
            content,
            attributes,
            None if is_directory else info.st_nlink,
            None if is_directory else firsts.setdefault((info.st_dev, info.st_ino), path),
        )
    return found


def make_tree(base: Path) -> None:
    """A tree with files of all types."""
    (base / "src/deep/deeper").mkdir(parents=True)
    (base / "empty").mkdir()
    (base / "src/a.py").write_text("print(1)\n")
    (base / "src/deep/b.txt").write_bytes(b"b" * 5000)
    (base / "src/deep/deeper/none").write_bytes(b"")
    (base / "run.sh").write_text("#!/bin/sh\n")
    (base / "run.sh").chmod(0o4755)
    (base / "link").symlink_to("src/a.py")
    (base / "dangling").symlink_to("/nowhere")
    os.mkfifo(base / "fifo", 0o640)
    os.link(base / "src/a.py", base / "src/hard")
    os.link(base / "src/a.py", base / "src/deep/harder")
    os.setxattr(base / "run.sh", "user.note", b"kept")
    for name in NAMES[3:]:
        with open(os.fsencode(base) + b"/" + name, "wb") as file:
            file.write(name)
    os.utime(base / "src/a.py", ns=(1, 1_000_000_000_000_000_001))
    os.utime(base / "src/deep", ns=(1, 2_000_000_000_000_000_002))


def settle() -> None:
    """Let the clock of the file system go on, so that ctime vouches for all that was written."""
    import time

    from execd.files.checkpoints.scan import TICK_NS

    time.sleep(3 * TICK_NS / 1e9)
