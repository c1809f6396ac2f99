"""The comparison of lists of children. A file stands in for the list of gVisor: each test writes
what the kernel would tell. ``test_starts`` asks the real list in gVisor."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest

from execd.proc import spawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_CHILDREN = 1024


class Known(ctypes.Structure):
    """``struct children`` of the C."""

    _fields_ = (("count", ctypes.c_int32), ("ids", ctypes.c_int32 * MAX_CHILDREN))


class Children:
    """The list, and what the warden knows of the list."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC)
        self._known = Known()
        self._library = spawn.load_library()

    def write(self, *ids: int) -> None:
        self._path.write_text("".join(f"{each} " for each in ids))

    def note(self, *ids: int) -> bool:
        self.write(*ids)
        return bool(self._library.execd_note_children(self.fd, ctypes.byref(self._known)))

    def add(self, pid: int) -> bool:
        add = self._library.execd_add_child
        return bool(add(ctypes.byref(self._known), ctypes.c_int64(pid)))

    def has_no_new(self, *ids: int, in_flight: tuple[int, ...] = ()) -> bool:
        self.write(*ids)
        programs = (ctypes.c_int64 * 8)(*in_flight)
        return bool(
            self._library.execd_has_no_new_child(
                self.fd, ctypes.byref(self._known), programs, len(in_flight)
            )
        )


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path / "children")
    yield made
    os.close(made.fd)


def test_a_program_that_was_in_flight_is_known_afterwards(children: Children) -> None:
    assert children.note(3)
    assert not children.has_no_new(3, 7, 8, in_flight=(8,))
    assert children.add(7)
    assert children.has_no_new(3, 7, 8, in_flight=(8,))


def test_no_program_is_added_to_a_full_list(children: Children) -> None:
    assert children.note(*range(1, MAX_CHILDREN))
    assert children.add(MAX_CHILDREN)
    assert not children.add(MAX_CHILDREN + 1)


def test_programs_in_flight_beside_known_children_are_nothing_new(children: Children) -> None:
    assert children.note(2, 3, 7)
    assert children.has_no_new(2, 3, 7, 8, 9, in_flight=(8, 9))
    assert children.has_no_new(2, 3, 7, 9, 12, in_flight=(9, 12))


def test_a_child_that_is_neither_known_nor_in_flight_is_new(children: Children) -> None:
    assert children.note(2, 3)
    assert not children.has_no_new(2, 3, 8, 9, in_flight=(8,))
    assert not children.has_no_new(2, 3, 9, in_flight=())


def test_a_known_child_that_is_gone_makes_no_room_for_a_new_child(children: Children) -> None:
    assert children.note(2, 3, 4)
    assert not children.has_no_new(2, 3, 8, 9, in_flight=(8,))


def test_a_known_child_that_is_gone_is_known_no_longer(children: Children) -> None:
    assert children.note(2, 3, 4)
    assert children.has_no_new(2, 4, 8, in_flight=(8,))
    assert children.has_no_new(2, 4, 8, in_flight=(8,))
    assert not children.has_no_new(2, 3, 4, 8, in_flight=(8,))


def test_a_program_in_flight_that_the_list_lacks_proves_nothing(children: Children) -> None:
    assert children.note(2)
    assert not children.has_no_new(2, in_flight=(8,))


def test_a_failed_comparison_changes_nothing(children: Children) -> None:
    assert children.note(2, 3)
    assert not children.has_no_new(2, 9)
    assert children.has_no_new(2, 3)


def test_without_known_children_every_child_is_new(children: Children) -> None:
    assert children.note()
    assert children.has_no_new(8, in_flight=(8,))
    assert not children.has_no_new(8, 9, in_flight=(8,))


def test_children_are_found_in_any_order(children: Children) -> None:
    assert children.note(*range(100, 200))
    assert children.has_no_new(*range(199, 99, -1), 300, in_flight=(300,))
    assert children.has_no_new(300, *range(150, 200), *range(100, 150), in_flight=(300,))


def test_more_children_than_fit_are_unknown(children: Children) -> None:
    fitting = range(4_000_000, 4_000_000 + MAX_CHILDREN)
    assert children.note(*fitting)
    assert children.has_no_new(*fitting)
    assert not children.has_no_new(*fitting, 8, in_flight=(8,))
    assert not children.note(*fitting, 8)
    assert not children.note(*range(2_000_000_000, 2_000_000_000 + 2 * MAX_CHILDREN))


def test_a_list_that_cannot_be_read_is_unknown(children: Children) -> None:
    assert children.note(2)
    library = spawn.load_library()
    assert not library.execd_note_children(-1, ctypes.byref(Known()))
    assert not library.execd_has_no_new_child(-1, ctypes.byref(Known()), None, 0)
