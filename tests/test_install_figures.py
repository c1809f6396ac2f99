"""The figures of installs in the Makefile and in the pages are those of the installed packages."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
FIGURES = {
    name: (int(packages), int(mb))
    for name, packages, mb in re.findall(
        r"^(\w+)_FIGURES := (\d+) packages, (\d+) MB$",
        (REPOSITORY / "Makefile").read_text(),
        re.MULTILINE,
    )
}
WINGS = [f"execd-{path.parent.name}" for path in REPOSITORY.glob("wings/*/pyproject.toml")]
TOLERANCE = 0.15
"""New releases of packages bring or lose a package, and grow."""


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """The distributions of this environment that the requirements name, directly or not."""
    found: dict[str, Distribution] = {}
    todo = [Requirement(text) for text in requirements]
    seen = set()
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        made = found.setdefault(name, distribution(asked.name))
        for extra in {"", *asked.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in made.requires or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    todo.append(needed)
    return found


def size_bytes(made: Distribution) -> int:
    paths = [Path(str(made.locate_file(file))) for file in made.files or []]
    return sum(path.stat().st_size for path in paths if path.is_file())


@pytest.mark.parametrize(
    ("name", "requirements"),
    [
        ("DAEMON", ["execd", *WINGS, "setuptools", "pip"]),
        ("TEST", ["execd[test]", *WINGS, "execd-client[cli]", "setuptools", "pip"]),
    ],
)
def test_figure_of_the_makefile_is_what_an_install_brings(
    name: str, requirements: list[str]
) -> None:
    lent = Path(sys.prefix) / "share/execd/ipython"
    packages = closure(requirements)
    n_packages = len(packages) + len(list(lent.glob("*/*.dist-info")))
    n_bytes = sum(size_bytes(made) for made in packages.values())
    n_bytes += sum(path.stat().st_size for path in lent.rglob("*") if path.is_file())
    said_packages, said_mb = FIGURES[name]
    assert n_packages == pytest.approx(said_packages, rel=TOLERANCE), sorted(packages)
    assert n_bytes / 1e6 == pytest.approx(said_mb, rel=TOLERANCE)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_say_the_figures_of_the_makefile(page: str) -> None:
    text = " ".join((REPOSITORY / page).read_text().split())
    said = set(re.findall(r"(\d+) packages, (\d+) MB", text))
    assert said
    assert said <= {(str(packages), str(mb)) for packages, mb in FIGURES.values()}
