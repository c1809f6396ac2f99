"""The software bill of materials: image/sbom.py on a small root file system."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from .manifests import REPOSITORY

USER = "usr/local/lib/python3.13/site-packages"
EXECD = "opt/execd/app"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
SHA256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
Description: GNU C Library
 Second line.

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
ROOT = {
    f"{USER}/ipython-9.18.1.dist-info/METADATA": "Name: ipython\nVersion: 9.18.1\n"
    "License-Expression: BSD-3-Clause\n\nText with License: none.\n",
    f"{USER}/Jinja_2.dist-info/METADATA": "Name: Jinja_2\nVersion: 3\n"
    "Classifier: Typing :: Typed\nClassifier: License :: OSI Approved :: BSD License\n",
    f"{USER}/ipython/data.txt": "no metadata",
    f"{EXECD}/ipython-9.18.1.dist-info/METADATA": "Name: ipython\nVersion: 9.18.1\n",
    f"{EXECD}/long-1.dist-info/METADATA": f"Name: long\nVersion: 1\nLicense: {'words ' * 99}\n",
    f"{EXECD}/execd/api/docs/swagger_ui/package.toml": (
        REPOSITORY / "execd" / "api" / "docs" / "swagger_ui" / "package.toml"
    ).read_text(),
    "usr/local/include/python3.13/patchlevel.h": '#define PY_VERSION      "3.13.7"\n',
    "opt/execd/share/execd/sbom.cdx.json": json.dumps(
        {
            "components": [
                {"purl": "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13"},
                {"purl": "pkg:pypi/long@1"},
            ]
        }
    ),
    "var/lib/dpkg/status": STATUS,
    "usr/lib/os-release": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\n',
}


def run_sbom(root: dict[str, str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, text in root.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return subprocess.run(
        [sys.executable, REPOSITORY / "image" / "sbom.py", "--name", "an-image", "--version", "7"],
        input=packed.getvalue(),
        env=os.environ | variables,
        capture_output=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    done = run_sbom(ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one(bill: dict[str, Any], purl: str, folder: str = "") -> dict[str, Any]:
    (found,) = (each for each in bill["components"] if each["bom-ref"] == f"{purl}#{folder}")
    return found  # type: ignore[no-any-return]


def test_the_bill_is_valid_cyclonedx(bill: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill)) is None


def test_the_bill_is_about_the_image(bill: dict[str, Any]) -> None:
    about = bill["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", "an-image", "7")
    (of_image,) = (each for each in bill["dependencies"] if each["ref"] == about["bom-ref"])
    assert sorted(of_image["dependsOn"]) == sorted(each["bom-ref"] for each in bill["components"])


@pytest.mark.parametrize("folder", [USER, EXECD])
def test_a_package_of_both_environments_is_there_twice(bill: dict[str, Any], folder: str) -> None:
    found = one(bill, "pkg:pypi/ipython@9.18.1", f"/{folder}")
    assert found["properties"] == [{"name": "execd:folder", "value": f"/{folder}"}]


def test_licences_come_from_the_packages(bill: dict[str, Any]) -> None:
    found = one(bill, "pkg:pypi/ipython@9.18.1", f"/{USER}")
    assert found["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    older = one(bill, "pkg:pypi/jinja-2@3", f"/{USER}")
    assert older["licenses"] == [{"license": {"name": "BSD License"}}]
    assert "licenses" not in one(bill, "pkg:pypi/long@1", f"/{EXECD}")


def test_debian_packages_are_there_if_they_are_installed(bill: dict[str, Any]) -> None:
    found = one(bill, "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13")
    assert [each["alg"] for each in found["hashes"]] == ["SHA-256"]
    assert not any("removed" in each["name"] for each in bill["components"])


def test_a_python_outside_of_debians_packages_is_there(bill: dict[str, Any]) -> None:
    assert one(bill, "pkg:generic/cpython@3.13.7", "/usr/local")["type"] == "platform"


def test_packages_of_debian_in_the_tree_are_there_beside_the_images_own(
    bill: dict[str, Any],
) -> None:
    libc = "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13"
    places = [each["bom-ref"] for each in bill["components"] if each["purl"] == libc]
    assert sorted(places) == [f"{libc}#", f"{libc}#/opt/execd"]


def test_the_viewer_that_is_part_of_execd_is_there(bill: dict[str, Any]) -> None:
    (found,) = (each for each in bill["components"] if each["name"] == "swagger-ui-dist")
    assert found["purl"] == f"pkg:npm/swagger-ui-dist@{found['version']}"
    assert found["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_bills_of_one_time_and_the_same_packages_are_the_same() -> None:
    first, second = (
        run_sbom(dict(root), SOURCE_DATE_EPOCH="7", PYTHONHASHSEED=seed).stdout
        for seed, root in [("1", ROOT.items()), ("2", reversed(ROOT.items()))]
    )
    assert first == second
    assert json.loads(first)["metadata"]["timestamp"] == "1970-01-01T00:00:07+00:00"


@pytest.mark.parametrize("kind", ["pypi", "deb"])
def test_an_image_without_packages_is_a_failure_and_no_empty_bill(kind: str) -> None:
    marks = {"pypi": (".dist-info/",), "deb": ("dpkg",)}
    root = {path: text for path, text in ROOT.items() if not any(m in path for m in marks[kind])}
    done = run_sbom(root)
    assert done.returncode == 1
    assert done.stdout == b""
    assert f"no packages of the kind {kind}".encode() in done.stderr
