from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions import interpreters
from execd.engine.executions.interpreters import certificates_for_tree, find, for_own_python
from tests.engine.conftest import make_config
from tests.engine.executions.test_environment import make_program

if TYPE_CHECKING:
    from pathlib import Path

OWN = "/opt/execd/bin/python3"


def found(folder: Path, path: str, own: str = OWN, **settings: str) -> list[tuple[str, str]]:
    config = make_config(folder, **settings)
    return [(python.path, python.origin) for python in find(config, path, own)]


def test_the_images_python_is_the_first_program_on_path_but_execds_own(tmp_path: Path) -> None:
    own = make_program(tmp_path / "own")
    script = make_program(tmp_path / "script", content=b"#!/bin/sh\n")
    closed = make_program(tmp_path / "closed", mode=0o644)
    real = make_program(tmp_path / "real")
    folders = ["", "/no/such", *map(os.path.dirname, (own, script, closed, real))]
    path = ":".join(folders)
    both = [(real, "image"), (own, "own")]
    assert found(tmp_path, path, own) == both
    assert found(tmp_path, path, own, python="auto") == both
    # Its variables are there, too, so the script of a version manager finds its Python.
    assert found(tmp_path, path, own, image_env="on")[0] == (script, "image")
    assert found(tmp_path, f"{os.path.dirname(own)}:/no/such", own) == [(own, "own")]


def test_setting_chooses_the_interpreters(tmp_path: Path) -> None:
    real = make_program(tmp_path / "real")
    path = os.path.dirname(real)
    assert found(tmp_path, path, python="image") == [(real, "image")]
    assert found(tmp_path, path, python="own") == [(OWN, "own")]
    assert found(tmp_path, "/no/such", python="image") == [("python3", "image")]
    assert found(tmp_path, path, python="rel/python") == [
        (os.path.abspath("rel/python"), "setting")
    ]
    assert found(tmp_path, "/no/such", sys.executable) == [(sys.executable, "own")]


@pytest.mark.parametrize("there", [0b001, 0b110, 0b100])
def test_certificates_of_the_image_are_the_first_of_the_known_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    files = [tmp_path / name for name in ("debian", "alpine", "fedora")]
    monkeypatch.setattr(interpreters, "CERTIFICATES", tuple(map(str, files)))
    assert certificates_for_tree("/opt/execd") == {}
    present = [file for position, file in enumerate(files) if there >> position & 1]
    for file in present:
        file.touch()
    assert certificates_for_tree("/opt/execd") == {"SSL_CERT_FILE": str(present[0])}
    assert certificates_for_tree(None) == {}


def test_environment_of_the_own_python_keeps_the_images_certificates_and_drops_its_home() -> None:
    certificates = {"SSL_CERT_FILE": "/found"}
    env = {"PATH": "/bin", "PYTHONHOME": "/opt/conda", "PYTHONPATH": "/app"}
    assert for_own_python(env, certificates) == {
        **certificates,
        "PATH": "/bin",
        "PYTHONPATH": "/app",
    }
    assert for_own_python({"SSL_CERT_FILE": "/set"}, certificates)["SSL_CERT_FILE"] == "/set"
