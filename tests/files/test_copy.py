from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from execd.errors import Conflict, PermissionDenied
from execd.files import copy
from tests.files.conftest import unprivileged

if TYPE_CHECKING:
    from pathlib import Path

    from execd.files.root import Root

DEADLINE_SECONDS = 30.0


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_file_that_was_replaced_after_the_walk_saw_the_file_is_not_copied(
    root: Root, base: Path, kind: str
) -> None:
    (base / "d").mkdir()
    (base / "d/x").write_bytes(b"seen")
    if kind == "fifo":
        os.mkfifo(base / "other")
    else:
        (base / "other").write_bytes(b"never seen")

    def replace() -> bool:
        if (base / "other").exists():
            (base / "other").rename(base / "d/x")
        return False

    refused: list[Conflict] = []

    def run() -> None:
        try:
            copy.copy(root, "d", "e", stop=replace)
        except Conflict as conflict:
            refused.append(conflict)

    copying = threading.Thread(target=run)
    copying.start()
    copying.join(DEADLINE_SECONDS)
    is_waiting = copying.is_alive()
    if is_waiting:  # for a writer of the FIFO
        os.close(os.open(base / "d/x", os.O_RDWR))
        copying.join()
    assert not is_waiting
    assert [conflict.message for conflict in refused] == [
        "what is to be copied was moved meanwhile; repeat the request"
    ]
    assert os.listdir(base / "e") == []


def test_a_tree_is_copied_whole(root: Root, base: Path) -> None:
    (base / "d/in/deeper").mkdir(parents=True)
    (base / "d/beside").mkdir()
    for name in ("d/x", "d/in/x", "d/in/deeper/x", "d/beside/x"):
        (base / name).write_text(name)
    copy.copy(root, "d", "e")
    copied = {str(p.relative_to(base / "e")): p.read_text() for p in (base / "e").rglob("x")}
    assert copied == {
        "x": "d/x",
        "in/x": "d/in/x",
        "in/deeper/x": "d/in/deeper/x",
        "beside/x": "d/beside/x",
    }


@pytest.mark.linux_only("gVisor reports no holes: neither st_blocks nor SEEK_DATA tells")
@pytest.mark.parametrize("in_a_tree", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        {0: b"begin", 8 << 20: b"middle", 20 << 20: b"end"},
        {5 << 20: b"x" * (3 << 20)},
        {},
    ],
)
def test_a_copy_keeps_the_holes_of_a_file(
    root: Root, base: Path, parts: dict[int, bytes], in_a_tree: bool
) -> None:
    (base / "d").mkdir()
    with (base / "d/x").open("wb") as file:
        for offset, data in parts.items():
            file.seek(offset)
            file.write(data)
        file.truncate(30 << 20)
    done = copy.copy(root, "d", "e") if in_a_tree else copy.copy(root, "d/x", "e/x")
    assert done.n_bytes == 30 << 20
    assert (base / "e/x").read_bytes() == (base / "d/x").read_bytes()
    assert (base / "e/x").stat().st_blocks <= (base / "d/x").stat().st_blocks + 8


def test_the_error_of_a_copy_names_the_entry(root: Root, base: Path) -> None:
    (base / "d/in").mkdir(parents=True)
    (base / "d/in/x").touch(mode=0)
    with pytest.raises(PermissionDenied, match="'d/in/x'"):
        unprivileged(lambda: copy.copy(root, "d", "e"))
