"""The files of the tree, and what its bill of materials says about them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path, PurePath
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.anywhere.conftest import REPOSITORY, TREE

MACHINE_BYTES = slice(18, 20)  # e_machine in the header of ELF
MACHINES = {"amd64": 62, "arm64": 183}
OLDEST_OF_GLIBC = {"2.2.5", "2.17"}  # of x86-64 and of arm64
COMMON_LICENSE = re.compile(r"/usr/(share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9])")


@pytest.fixture(scope="module")
def tree() -> Path:
    assert TREE
    return Path(TREE)


@pytest.fixture(scope="module")
def components(tree: Path) -> list[dict[str, Any]]:
    bill = (tree / "share/execd/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    found: list[dict[str, Any]] = json.loads(bill)["components"]
    return found


def licence_of(component: dict[str, Any]) -> str:
    (found,) = (
        reference["url"]
        for reference in component["externalReferences"]
        if reference["type"] == "license"
    )
    return str(found)


def test_every_file_of_the_tree_belongs_to_a_component_of_its_bill(
    tree: Path, components: list[dict[str, Any]]
) -> None:
    places = {
        PurePath(place["location"])
        for component in components
        for place in component["evidence"]["occurrences"]
    }
    assert [place for place in places if not (tree / place).exists()] == []
    files = [path.relative_to(tree) for path in tree.rglob("*") if not path.is_dir()]
    assert len(files) > 4000
    assert [path for path in files if not places & {path, *path.parents}] == []


def test_every_component_of_the_tree_has_the_text_of_its_licence_in_the_tree(
    tree: Path, components: list[dict[str, Any]]
) -> None:
    texts = [(tree / licence_of(component)).read_text() for component in components]
    assert min(map(len, texts)) > 500
    elsewhere = {path for text in texts for path in COMMON_LICENSE.findall(text)}
    assert "share/common-licenses/LGPL-2.1" in elsewhere
    assert [path for path in elsewhere if not (tree / path).stat().st_size] == []


def test_debian_packages_of_the_tree_have_their_versions_and_hashes(
    components: list[dict[str, Any]],
) -> None:
    """A version other than the lock's is there where the archive has no longer the lock's."""
    of_debian = [each for each in components if each["purl"].startswith("pkg:deb/")]
    (arch,) = {re.search(r"arch=(\w+)", each["purl"])[1] for each in of_debian}  # type: ignore[index]
    lines = (REPOSITORY / f"image/tree/debs-{arch}.lock").read_text().splitlines()
    lock = {name: rest for name, *rest in map(str.split, lines) if name != "#"}
    assert {each["name"] for each in of_debian} >= {"libc6", "libssl3t64", "python3.13-minimal"}
    for each in of_debian:
        version, sha256 = lock[each["name"]]
        (found,) = each["hashes"]
        assert found["alg"] == "SHA-256"
        assert (found["content"] == sha256) is (each["version"] == version)


def test_python_packages_of_the_tree_are_components(
    tree: Path, components: list[dict[str, Any]]
) -> None:
    named = {
        f"{each['properties'][0]['value']}/{each['name'].replace('-', '_')}-{each['version']}"
        for each in components
        if each["purl"].startswith("pkg:pypi/")
    }
    installed = {
        f"/{path.relative_to(tree)}".removesuffix(".dist-info")
        for path in tree.rglob("*.dist-info")
    }
    assert named == installed
    assert len(installed) > 40


def test_all_programs_and_libraries_of_the_tree_are_for_one_machine(tree: Path) -> None:
    heads = []
    for path in tree.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                heads.append(file.read(MACHINE_BYTES.stop))
    machines = [head[MACHINE_BYTES] for head in heads if head.startswith(b"\x7fELF")]
    assert len(machines) > 60
    assert len(set(machines)) == 1


def test_tree_names_its_architecture_and_its_commit(tree: Path) -> None:
    lines = (tree / "share/execd/origin").read_text().splitlines()
    (_, architecture), (_, revision) = (line.split("=") for line in lines)
    machine = (tree / "bin/python3").read_bytes()[MACHINE_BYTES]
    assert int.from_bytes(machine, "little") == MACHINES[architecture]
    # Empty: the tree was built of a work tree with changes.
    assert not revision or subprocess.run(
        ["git", "-C", REPOSITORY, "cat-file", "-e", revision], check=True
    )


def test_the_library_for_an_images_python_needs_no_new_glibc(tree: Path) -> None:
    (library,) = (tree / "app/execd/kernel").glob("*.so")
    symbols = subprocess.run(
        ["readelf", "--version-info", library], check=True, capture_output=True, text=True
    ).stdout
    needed = set(re.findall(r"GLIBC_([\d.]+)", symbols))
    assert needed
    assert needed <= OLDEST_OF_GLIBC
