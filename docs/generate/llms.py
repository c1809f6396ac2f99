"""llms.txt: the list of all pages for programs that read Markdown, made from docs/index.md."""

from __future__ import annotations

import posixpath
import re

ITEM = re.compile(
    r"^\* \[(?P<title>[^\]]+)\]\((?P<path>[^)]+)\): (?P<summary>.+(?:\n  .+)*)$", re.MULTILINE
)


def llms_txt(index: str) -> str:
    """Return the text of llms.txt, which is in the folder above the index."""
    introduction, *sections = index.split("\n## ")
    summary = re.sub(r"\s+", " ", introduction.split("\n\n")[1])
    parts = ["# execd\n", f"> {summary}\n"]
    for section in sections:
        parts.append(f"## {section.partition(chr(10))[0]}\n")
        items = ITEM.finditer(section)
        parts.append("".join(map(_item, items)))
    return "\n".join(parts)


def _item(match: re.Match[str]) -> str:
    path = posixpath.normpath(f"docs/{match['path']}")
    summary = re.sub(r"\s+", " ", match["summary"])
    return f"- [{match['title']}]({path}): {summary}\n"
