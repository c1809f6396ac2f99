"""The promises of docs/behaviour.md and its pages, and the names of their tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def has_promises(page: Path) -> bool:
    return page.name == "behaviour.md" or page.parent.name == "behaviour"


def promises(page: str) -> list[str]:
    """The items of the page's lists, without the remark in parentheses at the end. An item may go
    on in indented lines."""
    lines = re.sub(r"\n  (?=\S)", " ", page).splitlines()
    return [re.sub(r" \(.*\)$", "", line[2:]) for line in lines if line.startswith("* ")]


def name_of_test(promise: str) -> str:
    return "test_" + re.sub(r"[^a-z0-9]+", "_", promise.lower()).strip("_")
