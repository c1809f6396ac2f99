from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from execd.warden import written_bytes
from execd.warden.written_bytes import Figures, WrittenTotal, read_written
from tests.gvisor import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.proc.messages import Written

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
    return SimpleNamespace(
        tag=tag, members=dict.fromkeys(pids, 0), is_idle=is_idle, written=WrittenTotal()
    )


def read(*jobs: Any, may_read: bool = True) -> Written:
    return read_written(1, jobs, may_read=may_read, parents_inherit=not is_gvisor())


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
    found = read(job(5, writer, os.getpid()), job(6, 2**30))
    assert found.tags == [5, 6]
    assert found.wchar_bytes[0] >= (2 if is_gvisor() else 5) * MIB
    assert found.cpu_ms[0] > 0
    assert (found.wchar_bytes[1], found.write_bytes[1]) == (0, 0)  # ended meanwhile


def test_trees_without_user_code_are_left_out() -> None:
    assert read(job(1, os.getpid(), is_idle=True)).tags == []


def test_nothing_is_read_beside_a_bomb(writer: int) -> None:
    there = job(5, writer)
    assert (read(there, may_read=False).tags, read(there, may_read=False).wchar_bytes) == ([5], [0])
    known = read(there).wchar_bytes
    assert read(there, may_read=False).wchar_bytes == known


def test_reads_and_trees_are_bounded(writer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_bytes, "MAX_READS", 1)
    monkeypatch.setattr(written_bytes, "MAX_TREES", 2)
    found = read(job(4, writer), job(5, writer), job(6, writer))
    assert found.tags == [5, 6]
    assert found.wchar_bytes[0] > 0
    assert found.wchar_bytes[1] == 0


@pytest.mark.parametrize(("parents_inherit", "total"), [(True, 80), (False, 130)])
def test_totals_keep_what_ended_processes_wrote(
    monkeypatch: pytest.MonkeyPatch, parents_inherit: bool, total: int
) -> None:
    """Linux adds the 50 bytes of the child to the figure of the parent; gVisor would not."""
    figures: dict[int, Figures] = {}
    monkeypatch.setattr(written_bytes, "_read", figures.get)
    tree = WrittenTotal()
    for parent, child in ((10, 0), (10, 50), (60, None), (80, None)):
        figures[1] = Figures(0, parent, 0)
        figures.pop(2, None)
        if child is not None:
            figures[2] = Figures(0, child, 0)
        tree.add([(1, 0), (2, 0)], parents_inherit=parents_inherit)
    assert tree.total.wchar_bytes == total
