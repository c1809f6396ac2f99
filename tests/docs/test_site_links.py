"""The check of the built site finds broken links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docs.generate.site_links import broken_links

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "index.html").write_text('<a href="docs/guide.html#run">x</a><a href="docs">x</a>')
    (tmp_path / "docs" / "index.html").write_text('<img src="data:image/png;base64,AA==">')
    (tmp_path / "docs" / "guide.html").write_text(
        '<h2 id="run"><a href="#run">x</a></h2><a href="../index.html">x</a>'
        '<a href="https://example.org/">elsewhere</a>'
    )
    (tmp_path / "docs" / "guide.md").write_text("[a](../llms.txt) [b](#run) [c](https://x.org/y)")
    (tmp_path / "llms.txt").write_text("- [Guide](docs/guide.md): a guide")
    return tmp_path


def test_a_site_whose_links_have_targets_is_clean(site: Path) -> None:
    assert broken_links(site) == []


@pytest.mark.parametrize(
    ("file", "text", "broken"),
    [
        ("index.html", '<a href="no.html">x</a>', "no.html"),
        ("index.html", '<a href="docs/guide.html#no">x</a>', "docs/guide.html#no"),
        ("docs/guide.html", '<a href="#no">x</a>', "#no"),
        ("docs/guide.html", '<a href="../images">x</a>', "../images"),
        ("docs/guide.html", '<img src="no.png">', "no.png"),
        ("index.html", '<script src="https://cdn.example.org/x.js">', None),
        ("index.html", '<link rel="stylesheet" href="//fonts.example.org/x.css">', None),
        ("docs/guide.md", "[a](no.md#x)", "no.md#x"),
        ("llms.txt", "- [Guide](guide.md): a guide", "guide.md"),
    ],
)
def test_a_broken_link_is_found(site: Path, file: str, text: str, broken: str | None) -> None:
    (site / file).write_text((site / file).read_text() + text)
    [found] = broken_links(site)
    assert found.startswith(f"{file}: ")
    assert found == f"{file}: {broken}" or (broken is None and ": loads " in found)
