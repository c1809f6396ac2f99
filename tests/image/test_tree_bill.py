"""The tree's bill of materials: image/tree/bill.py on a small tree. tests/anywhere/test_tree.py
judges the bill of a whole tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from .manifests import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = "/usr/share/common-licenses/GPL-2."
TREE = {
    "bin/python3": "launcher",
    "lib/libz.so.1": "stripped",
    "app/execd/__init__.py": "",
    "app/execd/__pycache__/__init__.cpython-313.pyc": "",
    "app/execd-1.dist-info/METADATA": "Name: execd\nVersion: 1\n",
    "app/execd-1.dist-info/RECORD": "execd/__init__.py,,\nexecd-1.dist-info/METADATA,,\n"
    "execd-1.dist-info/RECORD,,\nexecd-1.dist-info/licenses/LICENSE,,\n",
    "app/execd-1.dist-info/licenses/LICENSE": "Apache",
    "share/execd/.empty": "",
}

PACKAGES = {
    "zlib1g": ["usr/lib/x86_64-linux-gnu/libz.so.1"],
    "libc6-dev": [],
    "libzstd-dev": [],
    "base-files": ["usr/share/common-licenses/GPL-2"],
    "unused": ["usr/lib/x86_64-linux-gnu/libunused.so"],
}


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def run_bill(folder: Path, tree: dict[str, str]) -> subprocess.CompletedProcess[str]:
    debian = {
        "usr/lib/os-release": 'ID=debian\nVERSION_ID="13"\n',
        "usr/share/common-licenses/GPL-2": "the text of the GPL",
        "var/lib/dpkg/status": "\n".join(
            f"Package: {name}\nVersion: 1\nArchitecture: amd64\nStatus: install ok installed\n"
            for name in PACKAGES
        ),
    }
    for name, paths in PACKAGES.items():
        debian[f"usr/share/doc/{name}/copyright"] = f"of {name}: see {ELSEWHERE}"
        debian[f"var/lib/dpkg/info/{name}.list"] = "\n".join(f"./{path}" for path in paths)
    write(folder / "debian", debian)
    write(folder / "tree", tree)
    (folder / "tree/share/execd/.empty").unlink()
    return subprocess.run(
        [
            sys.executable,
            REPOSITORY / "image/tree/bill.py",
            folder / "tree",
            folder / "debian",
            "1",
        ],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "image")},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def places(tmp_path: Path) -> dict[str, list[str]]:
    done = run_bill(tmp_path, TREE)
    assert done.returncode == 0, done.stderr
    bill: dict[str, Any] = json.loads((tmp_path / "tree/share/execd/sbom.cdx.json").read_text())
    return {
        each["name"]: [place["location"] for place in each["evidence"]["occurrences"]]
        for each in bill["components"]
    }


def test_components_name_their_files_and_the_folders_that_are_theirs(
    places: dict[str, list[str]],
) -> None:
    assert places["execd"] == ["app", "bin", "share/execd"]
    assert places["zlib1g"] == ["lib", "share/doc/zlib1g"]
    assert places["libc6-dev"] == ["bin", "share/doc/libc6-dev"], "static in the launchers"


def test_packages_without_a_file_in_the_tree_are_no_components(
    places: dict[str, list[str]],
) -> None:
    assert set(places) == {"execd", *PACKAGES} - {"unused"}


@pytest.mark.usefixtures("places")
def test_licences_come_along_with_the_common_texts_that_they_name(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    assert (tree / "share/doc/zlib1g/copyright").read_text() == f"of zlib1g: see {ELSEWHERE}"
    assert (tree / "share/common-licenses/GPL-2").read_text() == "the text of the GPL"


@pytest.mark.parametrize("path", ["lib/libx.so", "app/x.py", "app/execd/x", "share/doc/x"])
def test_a_file_without_a_component_fails_the_build(tmp_path: Path, path: str) -> None:
    done = run_bill(tmp_path, {**TREE, path: ""})
    assert (done.returncode, done.stderr) == (1, f"tree/bill: {path} belongs to no component\n")


def test_a_component_without_a_licence_fails_the_build(tmp_path: Path) -> None:
    tree = {path: text for path, text in TREE.items() if "licenses" not in path}
    done = run_bill(tmp_path, tree)
    assert (done.returncode, done.stderr) == (1, "tree/bill: no licence text of execd\n")
