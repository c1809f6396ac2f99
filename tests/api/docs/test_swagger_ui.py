"""Swagger UI is what its makers published, with the licences."""

from __future__ import annotations

import gzip
import hashlib
import tomllib
from pathlib import Path

import pytest

import execd.api.docs

FOLDER = Path(execd.api.docs.__file__).parent
VENDORED = FOLDER / "swagger_ui"
PACKAGE = tomllib.loads((VENDORED / "package.toml").read_text())


def content_of(name: str) -> bytes:
    """Return the content of a file of the package on npm."""
    path = VENDORED / name
    return (
        path.read_bytes()
        if path.exists()
        else gzip.decompress((VENDORED / f"{name}.gz").read_bytes())
    )


@pytest.mark.parametrize("name", PACKAGE["sha256"])
def test_a_file_of_swagger_ui_is_as_published(name: str) -> None:
    assert hashlib.sha256(content_of(name)).hexdigest() == PACKAGE["sha256"][name]


def test_the_list_names_every_file_and_each_file_is_stored_once() -> None:
    found = sorted(path.name.removesuffix(".gz") for path in VENDORED.iterdir())
    assert found == sorted([*PACKAGE["sha256"], "package.toml"])


def test_the_licences_of_swagger_ui_and_of_its_parts_are_kept() -> None:
    assert PACKAGE["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in content_of("LICENSE").decode()
    assert "SmartBear" in content_of("NOTICE").decode()
    bundle = content_of("swagger-ui-bundle.js").decode()
    assert bundle.startswith("/*! For license information please see swagger-ui-bundle.js.LICENSE")


def test_swagger_ui_is_stored_without_a_time_and_a_name() -> None:
    """The same content gives the same file (RFC 1952: the flags, then the time)."""
    for path in VENDORED.glob("*.gz"):
        assert path.read_bytes()[3:8] == bytes(5), path
