from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from execd.files import names as names_module
from execd.files.names import few_names, next_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def directory(base: Path) -> Iterator[int]:
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def make(directory: int, names: list[bytes]) -> None:
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))


def batches(directory: int, max_bytes: int) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    after, is_last = b"", False
    while not is_last:
        names = next_names(directory, after, max_bytes)
        found.append(list(names))
        after, is_last = names.last_name, names.is_last
    return found


def test_empty_directory_has_a_last_batch_without_names(directory: int) -> None:
    assert batches(directory, 100) == [[]]
    few = few_names(directory, 0)
    assert few is not None
    assert (list(few), few.is_last) == ([], True)


def test_few_names_are_whole_and_sorted_or_none(directory: int) -> None:
    make(directory, [b"b", b"\xff", b"a\nb", b"a"])
    few = few_names(directory, 4)
    assert few is not None
    assert list(few) == [b"a", b"a\nb", b"b", b"\xff"]
    assert few_names(directory, 3) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_bytes", [1, 200, 2000, 1 << 20])
def test_batches_hold_every_name_once_in_order(
    directory: int, monkeypatch: pytest.MonkeyPatch, seed: int, max_bytes: int
) -> None:
    monkeypatch.setattr(names_module, "RUN_NAMES", 16)
    wanted = [b"%d" % number for number in random.Random(seed).sample(range(10**6), 400)]
    make(directory, wanted)
    found = batches(directory, max_bytes)
    assert [name for batch in found for name in batch] == sorted(wanted)
    # A batch may exceed the bound by a run and by the rest of the directory's last run.
    assert max(sum(map(len, batch)) + len(batch) for batch in found) <= max_bytes + 2 * 16 * 7


def test_names_removed_and_added_between_batches_are_no_error(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "RUN_NAMES", 4)
    make(directory, [b"%02d" % number for number in range(40)])
    first = next_names(directory, b"", 24)
    seen = list(first)
    assert not first.is_last
    os.unlink(b"39", dir_fd=directory)
    make(directory, [b"00a", b"38a"])
    rest = list(next_names(directory, first.last_name, 1 << 20))
    assert rest[-2:] == [b"38", b"38a"]
    assert b"00a" not in rest
    assert not set(seen) & set(rest)
