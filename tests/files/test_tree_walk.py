from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.files import names as names_module
from execd.files import tree_walk as walking
from execd.files.resolve import Forbidden, TreeChanged
from execd.files.syscalls import is_kernel_interface
from execd.files.tree_walk import Step, walk
from tests.files.conftest import unprivileged

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Forbidden(frozenset(), frozenset())


def steps(top: Path, forbidden: Forbidden = NOTHING) -> list[tuple[str, str]]:
    fd = os.open(top, os.O_PATH)
    try:
        return [
            (visit.step.name, visit.path.decode()) for visit in walk(fd, forbidden, b".skipped")
        ]
    finally:
        os.close(fd)


def test_directories_come_before_and_after_what_is_in_them(base: Path) -> None:
    (base / "a/b").mkdir(parents=True)
    (base / "a/x").touch()
    (base / "c").symlink_to("a")
    (base / ".skipped-1").mkdir()
    assert steps(base) == [
        ("ENTER", "a"),
        ("ENTER", "a/b"),
        ("LEAVE", "a/b"),
        ("LEAF", "a/x"),
        ("LEAVE", "a"),
        ("LEAF", "c"),
    ]


@pytest.mark.parametrize("depth", [1, 5, 9, 40])
def test_a_tree_deeper_than_what_is_held_is_walked_the_same(
    base: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr(walking, "MAX_HELD", 4)
    path = "/".join(f"d{number}" for number in range(depth))
    (base / path).mkdir(parents=True)
    at = base
    for number in range(depth):
        at /= f"d{number}"
        (at / "z").touch()
    seen = steps(base)
    assert len(seen) == 3 * depth
    assert seen[depth] == ("LEAF", f"{path}/z")
    assert seen[-1] == ("LEAVE", "d0")


def test_large_directories_are_walked_in_batches_of_bounded_memory(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (base / f"d{number:02}").mkdir()
        for name in ("x", "y", ".skipped"):
            (base / f"d{number:02}" / name).touch()
    whole = steps(base)
    assert len(whole) == 40 * 4
    monkeypatch.setattr(names_module, "RUN_NAMES", 1)
    monkeypatch.setattr(walking, "MAX_BATCH_BYTES", 20)
    monkeypatch.setattr(walking, "MIN_BATCH_BYTES", 2)
    assert steps(base) == whole


def test_a_directory_that_was_replaced_under_a_deep_walk_ends_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "MAX_HELD", 1)
    (base / "a/b/c/d").mkdir(parents=True)
    (base / "a/z").touch()
    fd = os.open(base, os.O_PATH)
    try:
        visits = walk(fd, NOTHING)
        while (visit := next(visits)).name != b"d" or visit.step is not Step.ENTER:
            pass
        (base / "a").rename(base / "moved")
        (base / "a/b/c").mkdir(parents=True)
        with pytest.raises(TreeChanged):
            list(visits)
    finally:
        os.close(fd)


def test_what_may_not_be_seen_is_refused_and_the_rest_goes_on(base: Path) -> None:
    (base / "a").mkdir()
    (base / "closed").mkdir(mode=0)
    (base / "state/x").mkdir(parents=True)
    info = (base / "state").stat()
    forbidden = Forbidden(frozenset(), frozenset({(info.st_dev, info.st_ino)}))
    assert unprivileged(lambda: steps(base, forbidden)) == [
        ("ENTER", "a"), ("LEAVE", "a"), ("REFUSED", "closed"), ("REFUSED", "state"),
    ]  # fmt: skip


def test_file_systems_of_the_kernel_are_known_by_their_type() -> None:
    for path, expected in (
        ("/proc", True),
        ("/proc/self/status", True),
        ("/sys", True),
        ("/", False),
        ("/etc", False),
    ):
        fd = os.open(path, os.O_PATH)
        try:
            assert is_kernel_interface(fd) is expected, path
        finally:
            os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        is_kernel_interface(-1)
