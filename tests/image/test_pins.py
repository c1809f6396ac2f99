"""The image installs pinned and hashed packages that meet pyproject.toml, and the tests run with
the image's versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from execd.engine.sessions import zygote_process

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = [
    "requirements-execd.txt",
    "requirements-build.txt",
    "requirements.txt",
    "requirements-lean.txt",
    "tools-sbom.txt",
    "tools-audit.txt",
]
PYTHONS = ["3.11", "3.12", "3.13"]


def entries(name: str) -> list[str]:
    """A text for each pinned package: the requirement, and the hashes."""
    text = (REPOSITORY / "image" / name).read_text()
    joined = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace(
        "\\\n", " "
    )
    return [line for line in joined.splitlines() if line.strip()]


def pins(name: str, python: str) -> dict[str, str]:
    """Package -> version, as pip on Linux with the given Python would read the file."""
    found = {}
    for entry in entries(name):
        requirement = Requirement(entry.partition(" --hash")[0])
        here = {
            "sys_platform": "linux",
            "python_version": python,
            "python_full_version": f"{python}.1",
        }
        if requirement.marker is None or requirement.marker.evaluate(here):
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(requirement.name) not in found, "two versions for one Python"
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


LENT = ["requirements-ipython-py39.txt", "requirements-ipython-py311.txt"]


@pytest.mark.parametrize("name", [*FILES, *LENT])
def test_every_package_has_hashes(name: str) -> None:
    assert entries(name)
    for entry in entries(name):
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", entry), entry


@pytest.mark.parametrize("python", PYTHONS)
def test_what_execd_depends_on_is_pinned_within_its_bounds(python: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wings = [tomllib.loads(path.read_text()) for path in REPOSITORY.glob("wings/*/pyproject.toml")]
    assert wings
    pinned = pins("requirements-execd.txt", python)
    for text in (text for each in [project, *wings] for text in each["project"]["dependencies"]):
        requirement = Requirement(text)
        if requirement.name == "execd":
            continue
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), (
            "run image/lock"
        )
    build_pinned = pins("requirements-build.txt", python)
    for text in project["build-system"]["requires"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(build_pinned[canonicalize_name(requirement.name)]), (
            "run image/lock"
        )


@pytest.mark.parametrize("python", PYTHONS)
def test_packages_of_development_are_pinned_and_the_daemons_are_the_images(python: str) -> None:
    pinned = pins("../requirements-dev.txt", python)
    for file in ("pyproject.toml", "clients/python/pyproject.toml"):
        project = tomllib.loads((REPOSITORY / file).read_text())["project"]
        of_extras = [
            text
            for extra in ("test", "data", "contract", "lint", "docs", "cli", "mcp")
            for text in project["optional-dependencies"].get(extra, [])
        ]
        for requirement in map(Requirement, [*project["dependencies"], *of_extras]):
            if not requirement.name.startswith("execd"):
                version = pinned[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version), "run image/lock"
    assert pins("requirements-execd.txt", python).items() <= pinned.items(), "run image/lock"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_users_python_has_the_packages_of_data_work(python: str) -> None:
    assert {"ipython", "numpy", "pandas", "matplotlib", "scikit-learn", "sympy"} <= pins(
        "requirements.txt", python
    ).keys()


@pytest.mark.parametrize("python", PYTHONS)
def test_lean_is_full_with_less_in_it(python: str) -> None:
    lean, full = pins("requirements-lean.txt", python), pins("requirements.txt", python)
    assert "ipython" in lean
    assert lean.items() <= full.items()
    assert len(lean) < len(full)


@pytest.mark.parametrize("name", LENT)
def test_lent_ipython_brings_nothing_of_execds_and_has_no_markers(name: str) -> None:
    """pip would compare a marker with the Python that installs, not with the user's."""
    requirements = [Requirement(entry.partition(" --hash")[0]) for entry in entries(name)]
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    assert [str(one) for one in requirements if one.marker is not None] == []
    assert "ipython" in names
    assert {"typing-extensions", "traitlets"} <= names
    assert ("exceptiongroup" in names) is ("py39" in name), "a requirement before Python 3.11"
    of_execd = pins("requirements-execd.txt", "3.12").keys() - {"typing-extensions"}
    assert names & (of_execd | {"psutil", "numpy"}) == set()


@pytest.mark.parametrize("name", ["py39", "py311"])
def test_lent_ipython_is_its_pins_and_pure_python(name: str) -> None:
    folder = Path(zygote_process.IPYTHON_FOLDERS) / name
    installed = {
        path.name.removesuffix(".dist-info").lower().replace("_", "-")
        for path in folder.glob("*.dist-info")
    }
    pinned = {
        entry.split()[0].replace("==", "-").lower()
        for entry in entries(f"requirements-ipython-{name}.txt")
    }
    assert installed == pinned, "run make env"
    assert [*folder.rglob("*.so")] == []
