"""The hunks of a unified diff between two texts, in time that grows with their size.

difflib takes quadratic time for a file whose every second line has changed: minutes for 10,000
lines. Here lines that both texts have once are anchors (a "patience diff"): the longest
common order of the anchors cuts both texts into pairs of pieces, and each pair is cut again. A pair
without anchors is replaced as a whole. The result can be longer than the shortest diff, and is
always right.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT_LINES = 3
MAX_COMPARED_LINES = 100_000
"""Of each text, between the first and the last difference. More lines are replaced as a whole:
each line in a list takes about 50 bytes of memory more than its text."""
MAX_ROUNDS = 50
"""How often a line may be compared, on average, before the rest is replaced as a whole."""

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_NO_NEWLINE = b"\n\\ No newline at end of file\n"

Replaced = tuple[int, int, int, int]
"""The lines [a, b) of the old text became the lines [c, d) of the new text."""


def hunks(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield the hunks between two texts, line by line."""
    start, old_end, new_end = _differing_part(old, new)
    line_offset = old.count(b"\n", 0, start)
    old_part, new_part = old[start:old_end], new[start:new_end]
    n_old, n_new = _n_lines(old_part), _n_lines(new_part)
    old_lines = (match[0] for match in _LINE.finditer(old_part))
    new_lines = (match[0] for match in _LINE.finditer(new_part))
    if max(n_old, n_new) > MAX_COMPARED_LINES:
        replaced = [_as_a_whole(old_part, new_part, n_old, n_new)]
    else:
        replaced = replaced_lines(_LINE.findall(old_part), _LINE.findall(new_part))
    old_at = 0
    for group in _groups(replaced):
        old_from = max(0, group[0][0] - CONTEXT_LINES)
        old_to = min(n_old, group[-1][1] + CONTEXT_LINES)
        new_from = group[0][2] - (group[0][0] - old_from)
        new_to = group[-1][3] + (old_to - group[-1][1])
        yield b"@@ -%b +%b @@\n" % (
            _range(line_offset + old_from, old_to - old_from),
            _range(line_offset + new_from, new_to - new_from),
        )
        # The lines before the hunk are equal in both texts.
        _skip(old_lines, old_from - old_at)
        _skip(new_lines, old_from - old_at)
        old_at = old_from
        for old_first, old_last, new_first, new_last in group:
            yield from _marked(b" ", old_lines, old_first - old_at)
            _skip(new_lines, old_first - old_at)
            yield from _marked(b"-", old_lines, old_last - old_first)
            yield from _marked(b"+", new_lines, new_last - new_first)
            old_at = old_last
        yield from _marked(b" ", old_lines, old_to - old_at)
        _skip(new_lines, old_to - old_at)
        old_at = old_to


def _marked(mark: bytes, lines: Iterator[bytes], count: int) -> Iterator[bytes]:
    for line in islice(lines, count):
        yield mark + (line if line.endswith(b"\n") else line + _NO_NEWLINE)


def _skip(lines: Iterator[bytes], count: int) -> None:
    for _ in islice(lines, count):
        pass


def _range(start: int, count: int) -> bytes:
    """The place of a hunk in one text. Lines count from 1; an empty range names the line before."""
    return b"%d,%d" % (start + 1 if count else start, count)


def _n_lines(text: bytes) -> int:
    return text.count(b"\n") + (not text.endswith(b"\n") and text != b"")


def _differing_part(old: bytes, new: bytes) -> tuple[int, int, int]:
    """Where the difference with its context starts, in both texts, and where it ends in the old and
    in the new text. All four are at the start of a line, or at the end of the text."""
    head = start = _equal_bytes(old, new)
    for _ in range(CONTEXT_LINES + 1):
        start = old.rfind(b"\n", 0, start) if start >= 0 else -1
    start += 1
    tail = _equal_bytes(old[head:], new[head:], from_end=True)
    end = len(old) - tail
    # The equal tail may begin in the middle of a line, whose beginning differs.
    for _ in range(CONTEXT_LINES + 1):
        end = old.find(b"\n", end) + 1 or len(old)
    return start, end, len(new) - (len(old) - end)


def _equal_bytes(old: bytes, new: bytes, *, from_end: bool = False) -> int:
    """The length of the common beginning, or of the common end, by bisection."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if from_end:
            is_equal = old[-middle : len(old) - low] == new[-middle : len(new) - low]
        else:
            is_equal = old[low:middle] == new[low:middle]
        low, high = (middle, high) if is_equal else (low, middle - 1)
    return low


def _as_a_whole(old: bytes, new: bytes, n_old: int, n_new: int) -> Replaced:
    """All lines but the context at both ends."""
    firsts = list(
        zip(islice(_LINE.finditer(old), CONTEXT_LINES), _LINE.finditer(new), strict=False)
    )
    head = next((at for at, (a, b) in enumerate(firsts) if a[0] != b[0]), len(firsts))
    tail = 0
    old_end, new_end = len(old), len(new)
    while tail < CONTEXT_LINES and min(n_old, n_new) - head > tail:
        old_start = old.rfind(b"\n", 0, old_end - 1) + 1
        new_start = new.rfind(b"\n", 0, new_end - 1) + 1
        if old[old_start:old_end] != new[new_start:new_end]:
            break
        old_end, new_end, tail = old_start, new_start, tail + 1
    return head, n_old - tail, head, n_new - tail


def replaced_lines(old: list[bytes], new: list[bytes]) -> list[Replaced]:
    """The differences, in order. The lines between two differences are equal."""
    found: list[Replaced] = []
    todo: list[Replaced] = [(0, len(old), 0, len(new))]
    budget = MAX_ROUNDS * (len(old) + len(new))
    while todo:
        a, b, c, d = todo.pop()
        budget -= b - a + d - c
        while a < b and c < d and old[a] == new[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and old[b - 1] == new[d - 1]:
            b, d = b - 1, d - 1
        if a == b and c == d:
            continue
        anchors = _anchors(old[a:b], new[c:d]) if a < b and c < d and budget > 0 else []
        if not anchors:
            found.append((a, b, c, d))
            continue
        # Each piece but the first begins with an anchor. The first piece is done first.
        starts = [(a, c), *((a + in_old, c + in_new) for in_old, in_new in anchors)]
        ends = [*starts[1:], (b, d)]
        pieces = [(i, k, j, m) for (i, j), (k, m) in zip(starts, ends, strict=True)]
        todo += reversed(pieces)
    return found


def _anchors(old: list[bytes], new: list[bytes]) -> list[tuple[int, int]]:
    """The places of lines that both pieces have once, in the longest order that both share."""
    n_old, n_new = Counter(old), Counter(new)
    places = {line: at for at, line in enumerate(new) if n_new[line] == 1}
    pairs = [
        (at, places[line]) for at, line in enumerate(old) if n_old[line] == 1 and line in places
    ]
    # The longest increasing subsequence: ``ends[n]`` is the smallest place in ``new`` at which a
    # chain of n + 1 anchors can end, and ``chains[n]`` is its last pair's index.
    ends: list[int] = []
    chains: list[int] = []
    before: list[int] = []
    for index, (_, in_new) in enumerate(pairs):
        length = bisect_left(ends, in_new)
        before.append(chains[length - 1] if length else -1)
        ends[length : length + 1] = [in_new]
        chains[length : length + 1] = [index]
    found = []
    index = chains[-1] if chains else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _groups(replaced: list[Replaced]) -> Iterator[list[Replaced]]:
    """Differences whose contexts touch share a hunk."""
    group: list[Replaced] = []
    for each in replaced:
        if group and each[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(each)
    if group:
        yield group
