"""Pages with their generated sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docs.generate import benchmarks, limits, routes, tables
from docs.generate.llms import llms_txt

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[1]

SECTIONS: dict[str, Callable[..., str]] = {
    "overview": routes.overview,
    "routes": routes.all_routes,
    "common-errors": routes.common_errors,
    "events": routes.events,
    "messages": routes.messages,
    "capabilities": routes.capabilities,
    "objects": routes.objects,
    "errors": tables.errors,
    "exit-reasons": tables.exit_reasons,
    "settings": tables.settings,
    "dialect-settings": tables.dialect_settings,
    "older-settings": tables.older_settings,
    "limits": limits.limits,
    "log-fields": tables.log_fields,
    "metrics": tables.metrics,
    "figures-of-readme": benchmarks.readme,
    "figures": benchmarks.published,
}
"""The functions that make the sections, by the word in the mark. The rest of the mark are the
arguments."""

SECTION = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\S+)(?P<arguments>[^>]*?) -->\n).*?"
    r"(?P<end><!-- end of generated -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Return the pages that have sections."""
    every = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [path for path in every if SECTION.search(path.read_text())]


def generated_files() -> dict[Path, str]:
    """Return the text of each file that is generated, in part or as a whole."""
    files = {path: generate(path.read_text()) for path in pages()}
    return {**files, DOCS.parent / "llms.txt": llms_txt((DOCS / "index.md").read_text())}


def generate(page: str) -> str:
    """Return the text of a page with all sections as the code has them."""
    return SECTION.sub(_section, page)


def _section(match: re.Match[str]) -> str:
    section = SECTIONS[match["name"]](*match["arguments"].split())
    return f"{match['begin']}\n{section}\n{match['end']}"
