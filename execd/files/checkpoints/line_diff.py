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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT_LINES = 3
MAX_ROUNDS = 50
"""How often a line may be compared, on average, before the rest is replaced as a whole."""

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_NO_NEWLINE = b"\n\\ No newline at end of file\n"

Replaced = tuple[int, int, int, int]
"""The lines [a, b) of the old text became the lines [c, d) of the new text."""


def hunks(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yield the hunks between two texts, line by line."""
    before, after = _LINE.findall(old), _LINE.findall(new)
    for group in _groups(replaced_lines(before, after)):
        first, last = group[0], group[-1]
        start = max(0, first[0] - CONTEXT_LINES)
        end = min(len(before), last[1] + CONTEXT_LINES)
        new_start, new_end = first[2] - (first[0] - start), last[3] + (end - last[1])
        yield b"@@ -%b +%b @@\n" % (_range(start, end), _range(new_start, new_end))
        for a, b, c, d in group:
            yield from _marked(b" ", before[start:a])
            yield from _marked(b"-", before[a:b])
            yield from _marked(b"+", after[c:d])
            start = b
        yield from _marked(b" ", before[start:end])


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + (line if line.endswith(b"\n") else line + _NO_NEWLINE)


def _range(start: int, end: int) -> bytes:
    """The place of a hunk in one text. Lines count from 1; an empty range names the line before."""
    return b"%d,%d" % (start + (end > start), end - start)


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
