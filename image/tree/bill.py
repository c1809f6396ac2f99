"""Write the tree's bill of materials, share/execd/sbom.cdx.json, and bring the licences of Debian's
packages.

    TREE/bin/python3 image/tree/bill.py TREE DEBIAN VERSION

DEBIAN: the folder of image/tree/fetch. VERSION: execd's. Needs image/ and cyclonedx-python-lib on
PYTHONPATH, and the packages' RECORD files in TREE.

A component names its places in the tree: a file, or a folder where all that is below is its own.
A file without a component, and a component without the text of its licence, are errors.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
import tomllib
from collections import Counter, defaultdict
from email.parser import HeaderParser
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import sbom
from cyclonedx.output.json import JsonV1Dot6

if TYPE_CHECKING:
    from collections.abc import Iterator

BILL = "share/execd/sbom.cdx.json"
OF_EXECD = (
    "bin/python",
    "lib/python3.13/sitecustomize.py",
    "app/__main__.py",
    "sha256sums",
    "share/execd/origin",
)
LAUNCHERS = ("bin/python3", "bin/execd")
STATIC = ("libc6-dev", "libzstd-dev")
"""In the launchers, and in the program of the single file."""
COMMON_LICENSES = "share/common-licenses"
COMMON_LICENSE = re.compile(rb"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])")
LICENSE_FILE = re.compile(r"(licenses/)?(LICEN[CS]E|COPYING)[^/]*")
DEBIAN_LIBRARY = re.compile(r"usr/lib/[^/]+-linux-gnu/([^/]+)")

Owned = dict[sbom.Package, set[PurePath]]


def python_packages(tree: Path) -> Iterator[tuple[sbom.Package, set[PurePath]]]:
    """Each Python package with its files, by its RECORD."""
    for metadata in sorted(tree.rglob("*.dist-info/METADATA")):
        info = metadata.parent
        folder = info.parent.relative_to(tree)
        with (info / "RECORD").open(newline="") as record:
            files: set[PurePath] = {folder / row[0] for row in csv.reader(record)}
        inside = sorted(str(path.relative_to(info)) for path in info.rglob("*") if path.is_file())
        texts = [name for name in inside if LICENSE_FILE.fullmatch(name)]
        package = sbom.python_package(HeaderParser().parsestr(metadata.read_text()), str(folder))
        name = str(folder / info.name / texts[0]) if texts else ""
        yield package._replace(license_file=name), files


def vendored_packages(tree: Path) -> Iterator[tuple[sbom.Package, set[PurePath]]]:
    """The package of npm that is part of execd."""
    for path in sorted(tree.rglob("swagger_ui/package.toml")):
        folder = path.parent.relative_to(tree)
        package = sbom.vendored_package(tomllib.loads(path.read_text()), str(folder))
        files: set[PurePath] = {file.relative_to(tree) for file in path.parent.iterdir()}
        yield package._replace(license_file=str(folder / "LICENSE")), files


def debian_packages(debian: Path) -> Iterator[tuple[sbom.Package, set[PurePath]]]:
    """Each Debian package with the places that its files would have in a tree."""
    dpkg = debian / "var/lib/dpkg"
    words = (debian / "usr/lib/os-release").read_text()
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', words, re.MULTILINE))
    for package in sbom.debian_packages((dpkg / "status").read_text(), release):
        name = package.purl.name
        copyright_file = f"share/doc/{name}/copyright"
        files = {PurePath(copyright_file)}
        for line in (dpkg / "info" / f"{name}.list").read_text().splitlines():
            path = line.removeprefix("./")
            if library := DEBIAN_LIBRARY.fullmatch(path):
                is_loader = library[1].startswith("ld-linux-")
                files.add(PurePath("lib", "ld.so" if is_loader else library[1]))
            elif path == "usr/bin/python3.13":
                files.add(PurePath("lib/python"))
            elif path.startswith(("usr/lib/python3.13/", f"usr/{COMMON_LICENSES}/")):
                files.add(PurePath(path.removeprefix("usr/")))
        if name == "libc6-dev":
            files |= set(map(PurePath, LAUNCHERS))
        yield package._replace(license_file=copyright_file), files


def source_of(path: PurePath) -> PurePath:
    """``path``, or the source file of bytecode."""
    if path.parent.name != "__pycache__":
        return path
    return path.parent.parent / f"{path.name.partition('.')[0]}.py"


def files_of(tree: Path) -> list[PurePath]:
    return sorted(
        path.relative_to(tree) for path in tree.rglob("*") if path.is_symlink() or path.is_file()
    )


def bring_licenses(tree: Path, debian: Path, packages: list[sbom.Package]) -> None:
    """Copy Debian's licence texts, and the common ones that any licence text names."""
    for package in packages:
        target = tree / package.license_file
        if package.purl.type == "deb":
            target.parent.mkdir(parents=True)
            shutil.copyfile(debian / "usr" / package.license_file, target)
        for name in COMMON_LICENSE.findall(target.read_bytes()):
            common = Path(COMMON_LICENSES, name.decode())
            (tree / common).parent.mkdir(exist_ok=True)
            shutil.copyfile(debian / "usr" / common, tree / common)


def places(mine: set[PurePath], all_files: list[PurePath]) -> tuple[str, ...]:
    """The files of a component, a folder in place of files where all files below are its own."""
    below = Counter(parent for path in all_files for parent in path.parents)
    mine_below = Counter(parent for path in mine for parent in path.parents)
    found = set()
    for path in mine:
        whole = [parent for parent in path.parents if mine_below[parent] == below[parent]]
        found.add(str(whole[-1] if whole else path))
    return tuple(sorted(found))


def owned_files(candidates: Owned, files: list[PurePath]) -> Owned:
    """The components that have files in the tree, with these files."""
    owners = defaultdict(list)
    for package, paths in candidates.items():
        for path in paths:
            owners[path].append(package)
    found: Owned = defaultdict(set)
    for file in files:
        if not owners[source_of(file)]:
            sys.exit(f"tree/bill: {file} belongs to no component")
        for package in owners[source_of(file)]:
            found[package].add(file)
    return found


def main(folder: str, debian_folder: str, version: str) -> None:
    tree, debian = Path(folder), Path(debian_folder)
    (tree / BILL).touch()
    candidates: Owned = dict(
        [*python_packages(tree), *vendored_packages(tree), *debian_packages(debian)]
    )
    for package, paths in candidates.items():
        if package.purl.name == "execd":
            paths |= set(map(PurePath, (*OF_EXECD, *LAUNCHERS, BILL)))
    present = [*owned_files(candidates, files_of(tree))]
    present += [p for p in candidates if p.purl.name in STATIC and p not in present]
    present += [p for p in candidates if p.purl.name == "base-files"]
    for package in present:
        if not package.license_file:
            sys.exit(f"tree/bill: no licence text of {package.purl.name}")
    bring_licenses(tree, debian, present)
    files = files_of(tree)
    packages = [
        package._replace(places=places(mine, files))
        for package, mine in owned_files(candidates, files).items()
    ]
    packages.sort(key=lambda package: (package.purl.to_string(), package.folder))
    bill = sbom.make_bill(packages, "execd-tree", version)
    (tree / BILL).write_text(JsonV1Dot6(bill).output_as_string(indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
