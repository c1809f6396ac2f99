"""A failing input is kept, printed, and found again by the seed."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import found

from .__main__ import fuzz
from .targets import TARGETS, Target

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def refuse_ff(data: bytes) -> None:
    assert b"\xff" not in data


def test_a_failing_input_is_kept_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(found, "FOUND", tmp_path)
    assert fuzz("a target", Target([b"seed"], refuse_ff), 1) == 1
    [path] = found.cases("fuzz/a-target")
    data = path.read_bytes()
    assert b"\xff" in data
    assert base64.b64decode(capsys.readouterr().err.splitlines()[-1]) == data


def test_a_target_that_fails_at_nothing_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "FOUND", tmp_path)
    assert fuzz("a target", Target([b"seed"], lambda _data: None), 1) == 0
    assert not list(tmp_path.iterdir())


def all_seeds() -> str:
    seeds = repr([(name, target.seeds) for name, target in TARGETS.items()])
    return hashlib.sha256(seeds.encode()).hexdigest()


def test_the_seeds_are_the_same_in_every_process() -> None:
    script = "from tests.fuzz.test_main import all_seeds; print(all_seeds())"
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert there == all_seeds()
