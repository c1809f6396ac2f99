#!/usr/bin/env python3
"""Write the software bill of materials of an image: CycloneDX 1.6, JSON.

    podman export CONTAINER | image/sbom.py --name NAME --version VERSION >FILE

stdin is a tar of the image's root file system; no code of the image runs. The bill lists the Python
packages of each environment (the user's and execd's), the Debian packages, a CPython that no Debian
package brings, as in python:slim, the package of npm that is part of execd, and the Debian packages
of execd's tree, by the tree's own bill. Files that belong to no package are not in the bill.
`image/build` calls this script with cyclonedx-python-lib (image/tools-sbom.txt), and
image/tree/bill.py makes the tree's bill of the same parts.

Where SOURCE_DATE_EPOCH is set, it is the bill's time, and the same packages make the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tarfile
import tomllib
import uuid
from datetime import UTC, datetime
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

METADATA = re.compile(r"(.+)/[^/]+\.dist-info/METADATA")
VENDORED = re.compile(r"(.+/execd/api/docs/swagger_ui)/package\.toml")
DPKG_STATUS = "var/lib/dpkg/status"
OS_RELEASE = "usr/lib/os-release"
TREES_BILL = re.compile(r"(.+)/share/execd/sbom\.cdx\.json")
PATCH_LEVEL = re.compile(r"(usr/local)/include/python3\.\d+/patchlevel\.h")
TREE = "/opt/execd"
LONGEST_LICENSE = 100
"""Older packages have the whole text of their licence in the field."""


class Package(NamedTuple):
    """A package of the image. ``folder``: the place of a Python environment; else empty.

    ``places``: its files and folders, and ``license_file``: the text of its licence, where a bill
    tells them."""

    purl: PackageURL
    license: str | None = None
    folder: str = ""
    kind: ComponentType = ComponentType.LIBRARY
    sha256: str = ""
    places: tuple[str, ...] = ()
    license_file: str = ""


def read_packages(stream: BinaryIO) -> list[Package]:
    """The packages of a root file system, sorted. ``stream`` is a tar that is read once."""
    found: list[Package] = []
    status, release = "", {"ID": "debian"}
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            content = tar.extractfile(member) if member.isfile() and _is_read(path) else None
            if content is None:
                continue
            text = content.read().decode(errors="replace")
            if path == DPKG_STATUS:
                status = text
            elif path == OS_RELEASE:
                release |= dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
            elif place := METADATA.fullmatch(path):
                found.append(python_package(HeaderParser().parsestr(text), place[1]))
            elif place := PATCH_LEVEL.fullmatch(path):
                found.append(_interpreter(text, place[1]))
            elif place := VENDORED.fullmatch(path):
                found.append(vendored_package(tomllib.loads(text), place[1]))
            elif place := TREES_BILL.fullmatch(path):
                found += _debian_packages_of_tree(json.loads(text), place[1])
    found += debian_packages(status, release)
    return sorted(found, key=lambda package: (package.purl.to_string(), package.folder))


def _is_read(path: str) -> bool:
    kinds = METADATA, PATCH_LEVEL, VENDORED, TREES_BILL
    return path in (DPKG_STATUS, OS_RELEASE) or any(kind.fullmatch(path) for kind in kinds)


def _debian_packages_of_tree(bill: dict[str, Any], folder: str) -> Iterator[Package]:
    """The tree's packages of Debian, which dpkg of the image does not know. Its Python packages are
    found by their METADATA."""
    for component in bill["components"]:
        purl = PackageURL.from_string(component["purl"])
        if purl.type == "deb":
            yield Package(purl, folder=f"/{folder}")


def python_package(metadata: Message, folder: str) -> Package:
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    return Package(
        PackageURL("pypi", name=name, version=metadata["Version"]),
        _python_license(metadata),
        f"/{folder}",
    )


def _python_license(metadata: Message) -> str | None:
    """The SPDX expression, else the older field, else the last word of a classifier."""
    classifiers = [
        value.rpartition(" :: ")[2]
        for value in metadata.get_all("Classifier", [])
        if value.startswith("License :: ")
    ]
    older = (metadata["License"] or "").strip()
    if "\n" in older or len(older) > LONGEST_LICENSE:
        older = ""
    return metadata["License-Expression"] or older or (classifiers[0] if classifiers else None)


def vendored_package(package: dict[str, Any], folder: str) -> Package:
    purl = PackageURL("npm", name=package["name"], version=package["version"])
    return Package(purl, package["license"], f"/{folder}")


def _interpreter(patch_level: str, folder: str) -> Package:
    version = re.search(r'^#define PY_VERSION\s+"([^"]+)"', patch_level, re.MULTILINE)
    assert version, "patchlevel.h of CPython has the version"
    return Package(
        PackageURL("generic", name="cpython", version=version[1]),
        "PSF-2.0",
        f"/{folder}",
        ComponentType.PLATFORM,
    )


def debian_packages(status: str, release: dict[str, str]) -> Iterator[Package]:
    """The installed packages of dpkg's database. Debian has the licences in files of free text
    (/usr/share/doc/*/copyright), so none is named here."""
    system = release["ID"]
    distro = f"{system}-{release['VERSION_ID']}" if "VERSION_ID" in release else system
    for paragraph in filter(str.strip, status.split("\n\n")):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            purl = PackageURL(
                "deb",
                system,
                fields["Package"],
                fields["Version"],
                {"arch": fields["Architecture"], "distro": distro},
            )
            yield Package(purl, sha256=fields.get("SHA256", ""))  # image/tree/fetch adds the field


def make_bill(packages: list[Package], name: str, version: str) -> Bom:
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref="the-image")
    bill = Bom()
    bill.metadata.component = image
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        bill.metadata.timestamp = datetime.fromtimestamp(int(epoch), UTC)
        bill.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, repr((name, version, packages)))
    for package in packages:
        component = _component(package)
        bill.components.add(component)
        bill.register_dependency(image, [component])
    return bill


def _component(package: Package) -> Component:
    licenses = LicenseFactory()
    return Component(
        name=package.purl.name,
        version=package.purl.version,
        type=package.kind,
        purl=package.purl,
        # The two environments have packages in common.
        bom_ref=f"{package.purl.to_string()}#{package.folder}",
        licenses=[licenses.make_from_string(package.license)] if package.license else (),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)]
        if package.sha256
        else (),
        properties=[Property(name="execd:folder", value=package.folder)] if package.folder else (),
        evidence=ComponentEvidence(
            # Without a name of its own, a place is written at random among the others.
            occurrences=[
                Occurrence(location=place, bom_ref=f"{package.purl.name} {place}")
                for place in package.places
            ]
        )
        if package.places
        else None,
        external_references=[
            ExternalReference(type=ExternalReferenceType.LICENSE, url=XsUri(package.license_file))
        ]
        if package.license_file
        else (),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    wanted = parser.parse_args()
    packages = read_packages(sys.stdin.buffer)
    for kind in ("pypi", "deb"):
        # Not in the tree alone: a system's packages that were not found must not look like none.
        if not any(p.purl.type == kind and p.folder != TREE for p in packages):
            sys.exit(f"image/sbom.py: stdin has no packages of the kind {kind}")
    bill = make_bill(packages, wanted.name, wanted.version)
    print(JsonV1Dot6(bill).output_as_string(indent=2))


if __name__ == "__main__":
    main()
