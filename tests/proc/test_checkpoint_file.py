"""The file that tells of restores, with a FIFO in its place. The real file: tests/checkpoint."""

from __future__ import annotations

import os
import select
import threading
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
    assert stage.file.was_restored(True)
    assert not stage.called.acquire(blocking=False)


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
