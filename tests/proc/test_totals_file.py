from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.proc import totals_file
from execd.proc.totals_file import FORM, Totals

if TYPE_CHECKING:
    from collections.abc import Iterator

TOTALS = Totals(1, 2, 3, 4, 5, 5.5)


@pytest.fixture
def fd() -> Iterator[int]:
    made = totals_file.make()
    yield made
    os.close(made)


def test_totals_are_read_as_they_were_written(fd: int) -> None:
    totals_file.write(fd, TOTALS)
    assert totals_file.read(fd) == TOTALS
    totals_file.write(fd, TOTALS._replace(processes=7))
    assert totals_file.read(fd) == TOTALS._replace(processes=7)


def test_a_file_without_totals_has_none(fd: int) -> None:
    assert totals_file.read(fd) is None
    assert totals_file.read(-1) is None


@pytest.mark.parametrize(
    "data",
    [
        FORM.pack(*TOTALS)[:-1],
        FORM.pack(1 << 63, 2, 3, 4, 5, 5.0),
        FORM.pack(1, 2, 3, 4, 5, -1.0),
        FORM.pack(1, 2, 3, 4, 5, float("nan")),
        FORM.pack(1, 2, 3, 4, 5, float("inf")),
    ],
)
def test_a_lying_writer_gives_none(fd: int, data: bytes) -> None:
    os.pwrite(fd, data, 0)
    assert totals_file.read(fd) is None


def test_a_writer_that_cuts_off_the_file_harms_nobody(fd: int) -> None:
    totals_file.write(fd, TOTALS)
    os.ftruncate(fd, 0)
    assert totals_file.read(fd) is None
