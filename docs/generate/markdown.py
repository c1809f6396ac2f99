"""Pieces of Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A column without any text is left out."""
    cells = [[_cell(text) for text in row] for row in rows]
    assert cells, f"a table without rows: {head}"
    assert all(len(row) == len(head) for row in cells)
    used = [n for n in range(len(head)) if any(row[n] for row in cells)]
    lines = [
        [head[n] for n in used],
        ["---"] * len(used),
        *([row[n] for n in used] for row in cells),
    ]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("| --- ", "|---") + "\n"
    )


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`"


def codes(texts: Iterable[object], joint: str = ", ") -> str:
    return joint.join(map(code, texts))


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MyST make for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def paragraphs(docstring: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each in one line, without reStructuredText's double
    backticks."""
    parts = re.split(r"\n\s*\n", (docstring or "").strip())
    return [re.sub(r"\s+", " ", part).strip().replace("``", "`") for part in parts]
