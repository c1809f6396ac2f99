"""The file that tells of restores, with a FIFO in its place. The real file: tests/checkpoint."""

from __future__ import annotations

import errno
import io
import os
import select
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from execd.proc.checkpoint_file import CheckpointFile
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_SECONDS = 20.0


class Stage:
    """A FIFO, and the file that reads the FIFO."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fifo = os.open(path, os.O_RDWR)
        self.called = threading.Semaphore(0)
        self.file = CheckpointFile(self.called.release, str(path))
        self.file.start()

    def tell(self, word: bytes) -> None:
        wait_until(lambda: not select.select([self._fifo], [], [], 0)[0], PATIENCE_SECONDS)
        os.write(self._fifo, word)

    def close(self) -> None:
        self.file.close()
        os.close(self._fifo)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "checkpoint")
    yield made
    made.close()


def test_each_restore_is_told_once(stage: Stage) -> None:
    for _ in range(3):
        stage.tell(b"restore\n")
        assert stage.called.acquire(timeout=PATIENCE_SECONDS)
        assert stage.file.was_restored(False)
        assert not stage.file.was_restored(False)


@pytest.mark.parametrize("word", [b"resume\n", b"error\n"])
def test_a_checkpoint_is_no_restore(stage: Stage, word: bytes) -> None:
    stage.tell(word)
    stage.tell(b"restore\n")
    assert stage.called.acquire(timeout=PATIENCE_SECONDS)
    assert stage.file.was_restored(False)
    assert not stage.called.acquire(blocking=False)


def test_a_file_that_no_descriptor_is_left_for_is_opened_once_there_is_one(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("execd.proc.checkpoint_file.RETRY_SECONDS", 0.01)
    refused = threading.Semaphore(0)

    class Refused(io.FileIO):
        def __init__(self, path: str) -> None:
            refused.release()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr("execd.proc.checkpoint_file.io", SimpleNamespace(FileIO=Refused))
        stage.tell(b"restore\n")
        for _ in range(3):
            assert refused.acquire(timeout=PATIENCE_SECONDS)
        assert stage.file.was_restored(False)
    stage.tell(b"restore\n")
    for _ in range(2):
        assert stage.called.acquire(timeout=PATIENCE_SECONDS)
    assert stage.file.was_restored(False)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["cannot hear of restores for now"]


def test_a_file_that_cannot_be_opened_again_is_closed_all_the_same(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").unlink()
    stage.tell(b"restore\n")
    assert stage.called.acquire(timeout=PATIENCE_SECONDS)
    stage.close()
    assert "checkpoint-file" not in [thread.name for thread in threading.enumerate()]


def test_without_room_for_the_end_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[io.FileIO] = []

    class Noted(io.FileIO):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            opened.append(self)

    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("execd.proc.checkpoint_file.io", SimpleNamespace(FileIO=Noted))
    monkeypatch.setattr(os, "eventfd", refuse)
    (tmp_path / "checkpoint").write_bytes(b"")
    with pytest.raises(OSError, match="Too many open files"):
        CheckpointFile(lambda: None, str(tmp_path / "checkpoint"))
    assert [file.closed for file in opened] == [True]


def test_an_expected_word_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("execd.proc.checkpoint_file.TELL_SECONDS", PATIENCE_SECONDS)
    timer = threading.Timer(0.2, stage.tell, (b"restore\n",))
    timer.start()
    assert not stage.file.was_restored(False)
    assert stage.file.was_restored(True)
    timer.join()


def test_a_kernel_without_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CheckpointFile(lambda: None, str(tmp_path / "missing"))
    assert "checkpoint-file" not in [thread.name for thread in threading.enumerate()]
