"""The site of the pages: `make docs`. Sphinx reads this file.

The source folder is the repository, so a link of a page has the same target on the site as in the
repository.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
INDEX = "docs/index"
BENCHMARKS = "docs/benchmarks"
PLOTS = "build/plots"
LINK = re.compile(r"^\* \[[^\]]+\]\(([^)]+)\.md\)", re.MULTILINE)
FILE = re.compile(r"\]\(([^)\s:#]+)\)")
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)

project = "execd"
[version] = re.findall(r'^__version__ = "(.*)"', (ROOT / "execd/__init__.py").read_text(), re.M)
release = version
html_title = f"execd {version}"
html_theme = "furo"
html_copy_source = False  # each page is there as Markdown
html_show_copyright = False
extensions = ["myst_parser"]
root_doc = INDEX
include_patterns = ["*.md", "docs/**.md", "wings/*/README.md"]
exclude_patterns = [".*", "build", "**/__pycache__"]
myst_heading_anchors = 4  # the anchors of GitHub
nitpicky = True
highlight_language = "none"  # indented blocks are commands, trees and drawings


def _add_navigation(_: Sphinx, docname: str, source: list[str]) -> None:
    """Make the lists of the index the navigation of all pages. The index itself stays plain
    Markdown."""
    if docname != INDEX:
        return
    for section in source[0].split("\n## ")[1:]:
        title = section.partition("\n")[0]
        pages = "\n".join(LINK.findall(section))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def _add_plots(_: Sphinx, docname: str, source: list[str]) -> None:
    """Draw the plots of the published runs, and show them below the tables. The repository has no
    plots, only the figures."""
    if docname != BENCHMARKS:
        return
    for file in sorted((ROOT / "docs/benchmarks").glob("*.json")):
        run = report.Report.read(file)
        source[0] += f"\n## Plots: {run.place}, {run.date}\n"
        for name, title in report.draw(run, ROOT / PLOTS).items():
            source[0] += f"\n![{title}](/{PLOTS}/{name})\n"


def _write_more(app: Sphinx, error: Exception | None) -> None:
    """Write each page as Markdown beside the HTML, the files that the Markdown links, llms.txt, and
    the entrance."""
    if error is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    copied = {ROOT / "llms.txt"}
    for docname in app.env.found_docs:
        source = ROOT / f"{docname}.md"
        page = COMMENT.sub("", source.read_text())
        (site / f"{docname}.md").write_text(page)
        targets = {(source.parent / path).resolve() for path in FILE.findall(page)}
        copied |= {target for target in targets if target.is_file() and target.suffix != ".md"}
    for file in copied:
        copy = site / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    (site / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>execd</title>'
        f'<meta http-equiv="refresh" content="0; url={INDEX}.html">'
    )


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_navigation)
    app.connect("source-read", _add_plots)
    app.connect("build-finished", _write_more)
