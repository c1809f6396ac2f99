"""Hunks between two texts make the new text of the old one, in time that does not explode."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.files.checkpoints import line_diff
from execd.files.checkpoints.line_diff import hunks, replaced_lines

if TYPE_CHECKING:
    from pathlib import Path

LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"\r", b"d e", b"\xff"]), max_size=30)
TEXTS = st.builds(lambda lines, has_end: b"\n".join(lines) + b"\n" * has_end, LINES, st.booleans())


def made(old: bytes, new: bytes) -> bytes:
    """The text that the replacements make of the old text."""
    before, after = old.split(b"\n"), new.split(b"\n")
    found, at = [], 0
    for a, b, c, d in replaced_lines(before, after):
        assert a >= at
        found += before[at:a] + after[c:d]
        at = b
    return b"\n".join(found + before[at:])


def patched(old: bytes, new: bytes, folder: Path) -> bytes:
    """The text that GNU patch makes of the old text."""
    (folder / "text").write_bytes(old)
    content = b"--- text\n+++ text\n" + b"".join(hunks(old, new))
    if content.count(b"\n") > 2:
        command = ["patch", "--no-backup-if-mismatch", "--fuzz=0", "--binary", "text"]
        subprocess.run(command, cwd=folder, input=content, check=True, capture_output=True)
    return (folder / "text").read_bytes() if (folder / "text").exists() else b""


@given(TEXTS, TEXTS)
def test_replacements_make_the_new_text(old: bytes, new: bytes) -> None:
    assert made(old, new) == new


@given(old=TEXTS, new=TEXTS)
def test_hunks_make_the_new_text(
    old: bytes, new: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert patched(old, new, tmp_path_factory.mktemp("patch")) == new


def test_hunks_of_a_small_edit_are_those_of_every_diff() -> None:
    old = b"".join(b"%d\n" % n for n in range(1, 21))
    new = old.replace(b"10\n", b"ten\n")
    assert b"".join(hunks(old, new)) == (b"@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n")


def hard_cases() -> dict[str, tuple[bytes, bytes]]:
    draw = random.Random(20)
    every_second = [b"%d\n" % n for n in range(100_000)]
    changed = [line if n % 2 else b"new " + line for n, line in enumerate(every_second)]
    two = [[draw.choice([b"a\n", b"b\n"]) for _ in range(100_000)] for _ in range(2)]
    shuffled = draw.sample(every_second, len(every_second))
    # Each cut leaves two pieces with one line that only the next cut sees as unique.
    nested = [b"%d\n" % (n & -n) for n in range(1, 100_000)]
    return {
        "every second line changed": (b"".join(every_second), b"".join(changed)),
        "two lines only": (b"".join(two[0]), b"".join(two[1])),
        "shuffled": (b"".join(every_second), b"".join(shuffled)),
        "nested anchors": (b"".join(nested), b"x\n".join(nested)),
    }


@pytest.mark.parametrize("case", hard_cases())
def test_hard_text_is_compared_in_a_bounded_number_of_rounds(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = hard_cases()[case]
    compared = 0
    anchors = line_diff._anchors

    def counted(before: list[bytes], after: list[bytes]) -> list[tuple[int, int]]:
        nonlocal compared
        compared += len(before) + len(after)
        return anchors(before, after)

    monkeypatch.setattr(line_diff, "_anchors", counted)
    assert patched(old, new, tmp_path) == new
    assert compared <= (line_diff.MAX_ROUNDS + 1) * (old.count(b"\n") + new.count(b"\n"))
