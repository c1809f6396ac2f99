from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from execd.warden import written_bytes
from execd.warden.written_bytes import read_written

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
WRITE = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'wb').write(bytes(3 << 20))",
                sys.argv[1]])
open(sys.argv[2], "wb").write(bytes(2 << 20))
print("written", flush=True)
sys.stdin.read()
"""


def job(tag: int, *pids: int, is_idle: bool = False) -> Any:
    members = dict.fromkeys(pids, 0)
    return SimpleNamespace(tag=tag, members=members, is_idle=is_idle, spawned_at=12.5)


@pytest.fixture
def writer(tmp_path: Any) -> Iterator[int]:
    """A program that has written 2 MiB, and whose child has written 3 MiB."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITE, tmp_path / "a", tmp_path / "b"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        yield process.pid


def test_written_bytes_of_a_tree_are_those_of_its_processes_and_their_children(
    writer: int,
) -> None:
    found = read_written(1, [job(5, writer, os.getpid()), job(6, 2**30)], may_read=True)
    assert (found.tags, found.began_ms) == ([5, 6], [12500, 12500])
    assert found.wchar_bytes[0] >= 5 * MIB
    assert (found.wchar_bytes[1], found.write_bytes[1]) == (0, 0)  # ended meanwhile


def test_trees_without_user_code_are_left_out() -> None:
    assert read_written(1, [job(1, os.getpid(), is_idle=True)], may_read=True).tags == []


def test_nothing_is_read_beside_a_bomb(writer: int) -> None:
    found = read_written(1, [job(5, writer)], may_read=False)
    assert (found.tags, found.wchar_bytes) == ([5], [0])


def test_reads_and_trees_are_bounded(writer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_bytes, "MAX_READS", 1)
    monkeypatch.setattr(written_bytes, "MAX_TREES", 2)
    found = read_written(1, [job(4, writer), job(5, writer), job(6, writer)], may_read=True)
    assert found.tags == [5, 6]
    assert found.wchar_bytes[0] > 0
    assert found.wchar_bytes[1] == 0
