"""The project as others take it: its licence, its version, its papers, and the labels of its
image."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import execd

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WINGS = sorted(ROOT.glob("wings/*/pyproject.toml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILD = (ROOT / "image" / "build").read_text()


def test_the_licence_is_apache_2_with_its_whole_text() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    metadata = importlib.metadata.metadata("execd")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_the_file_of_the_version_imports_nothing() -> None:
    """The warden and the zygote load the file without execd's packages."""
    tree = ast.parse((ROOT / "execd" / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("path", WINGS, ids=lambda path: path.parent.name)
def test_a_wing_has_execd_s_version_and_needs_it(path: Path) -> None:
    """A wing is built alone, so it cannot read execd/__init__.py."""
    project = tomllib.loads(path.read_text())["project"]
    assert project["version"] == execd.__version__
    needed = [each for each in project["dependencies"] if re.match(r"execd\b", each)]
    assert needed == [f"execd=={execd.__version__}"]


def test_execd_reads_its_version_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "execd.__version__"}
    assert execd.__version__ not in DOCKERFILE + BUILD
    pattern = re.search(r"s/(\^__version__.*?)/\\1/p", BUILD)
    assert pattern, "image/build reads the version from execd/__init__.py"
    regex = pattern[1].replace(r"\(", "(").replace(r"\)", ")")
    source = (ROOT / "execd" / "__init__.py").read_text()
    assert re.findall(regex, source, re.MULTILINE) == [execd.__version__]


def test_the_manifest_and_the_changelog_follow_the_version() -> None:
    """A user changes the image's name in the manifest; the tag is a proposal."""
    manifest = (ROOT / "image" / "sandbox-template.yaml").read_text()
    assert re.findall(r"image: \S+:(\S+)", manifest) == [execd.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\d\S+)", changelog, re.MULTILINE)[0] == execd.__version__


def test_the_image_has_the_labels_of_oci_and_none_that_nobody_knows() -> None:
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    [block] = re.findall(r"^LABEL ((?:.*\\\n)*.*)$", last_stage, re.MULTILINE)
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', block))
    assert labels["title"] == PROJECT["project"]["name"]
    assert labels["licenses"] == PROJECT["project"]["license"]
    arguments = set(re.findall(r"^ARG (\w+)", last_stage, re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)\}", block))
    assert used == {"EXECD_VERSION", "EXECD_REVISION", "BASE_IMAGE"}
    assert used <= arguments, "ARG of an earlier stage has no value here"
    assert not {"source", "url", "vendor", "authors"} & set(labels)
    for name in ("EXECD_VERSION", "EXECD_REVISION"):
        assert f'--build-arg "{name}=' in BUILD


def test_every_file_that_the_image_is_built_from_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert copied
    for source in " ".join(copied).split():
        assert any(Path(source).match(pattern) for pattern in allowed), source
    # podman mounts ignored files too; BuildKit does not.
    assert "image/requirements*.txt" in allowed
    assert "/opt/requirements/${pins}" in DOCKERFILE


def test_the_wheel_has_every_folder_of_the_package() -> None:
    """The tests run from an editable install, which has every folder anyhow."""
    folders = {path.parent for path in (ROOT / "execd").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_the_wheel_has_every_file_of_the_packages() -> None:
    package_data = PROJECT["tool"]["setuptools"]["package-data"]
    packed = {
        path
        for package, patterns in package_data.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    found = {path for path in (ROOT / "execd").rglob("*") if path.is_file()}
    code = {path for path in found if path.suffix in (".py", ".pyc", ".c", ".h", ".so")}
    assert packed
    assert packed == found - code
