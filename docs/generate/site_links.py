"""Check the links of the built site: each link within the site has a target, and the pages load
nothing from elsewhere.

    python -m docs.generate.site_links build/docs
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href")}
"""Attributes whose targets a browser loads with the page."""


class Link(NamedTuple):
    target: str
    is_loaded: bool


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(Link(value, (tag, name) in LOADING))


def broken_links(site: Path) -> list[str]:
    """Return each broken link as ``PAGE: TARGET``."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link.target).netloc or urlsplit(link.target).scheme:
                if link.is_loaded and not link.target.startswith("data:"):
                    found.append(f"{path.relative_to(site)}: loads {link.target}")
            elif not _has_target(link.target, path, pages):
                found.append(f"{path.relative_to(site)}: {link.target}")
    for path in (*sorted(site.rglob("*.md")), site / "llms.txt"):
        for target in MARKDOWN_LINK.findall(path.read_text()):
            parts = urlsplit(target)
            if not parts.scheme and not (path.parent / unquote(parts.path)).exists():
                found.append(f"{path.relative_to(site)}: {target}")
    return found


def _has_target(target: str, path: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(target)
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if file.is_dir():
        file /= "index.html"
    if not file.is_file():
        return False
    is_anchor_known = file in pages and unquote(parts.fragment) in pages[file].anchors
    return not parts.fragment or is_anchor_known


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    broken = broken_links(site)
    if broken:
        sys.exit("\n".join(["broken links:", *broken]))


if __name__ == "__main__":
    main()
