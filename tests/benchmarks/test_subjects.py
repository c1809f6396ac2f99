from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import pytest

from benchmarks.client import Address, Target
from benchmarks.subjects import parse_subject, peer_subjects, unpacked

if TYPE_CHECKING:
    from pathlib import Path


def test_a_url_and_a_dialect_name_a_server_that_runs_already() -> None:
    subject = parse_subject("mine=sandboxd+http://10.0.0.2:9090?probes=8080#77")
    addresses = Address("10.0.0.2", 9090), Address("10.0.0.2", 8080)
    assert (subject.name, subject.dialect, subject.pid) == ("mine", "sandboxd", 77)
    assert subject.target == Target("sandboxd", *addresses)


def test_probes_go_to_the_same_port_unless_the_url_says_otherwise() -> None:
    subject = parse_subject("a=e2b+http://localhost:49983")
    assert subject.target == Target("e2b", *[Address("localhost", 49983)] * 2)
    assert subject.pid is None


@pytest.mark.parametrize(
    "text",
    [
        *("http://a:1", "x=http://a:1", "x=e2b+https://a:1", "x=e2b+http://a"),
        *("=e2b+http://a:1", "x=smtp+http://a:1"),
    ],
)
def test_a_subject_that_says_too_little_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"DIALECT|dialect"):
        parse_subject(text)


def test_a_target_survives_the_way_to_the_probing_process() -> None:
    target = Target("e2b", Address("h", 1, 5), Address("h", 2))
    assert Target.from_json(target.to_json()) == target


def test_a_packed_peer_is_unpacked_once_and_can_be_executed(tmp_path: Path) -> None:
    script = b"#!/bin/sh\n# " + str(tmp_path).encode()
    (tmp_path / "sandboxd.xz").write_bytes(lzma.compress(script))
    first = unpacked(tmp_path, "sandboxd")
    assert first is not None
    try:
        assert first.read_bytes() == script
        assert first.stat().st_mode & 0o111
        assert unpacked(tmp_path, "sandboxd") == first
    finally:
        first.unlink()


def test_a_folder_without_peers_gives_no_subjects(tmp_path: Path) -> None:
    assert peer_subjects(tmp_path, tmp_path / "python") == []


def test_each_peer_in_the_folder_is_a_subject_by_its_own_dialect(tmp_path: Path) -> None:
    for program in ("sandboxd", "os-execd", "envd"):
        (tmp_path / program).touch()
    found = {each.name: each.dialect for each in peer_subjects(tmp_path, tmp_path / "python")}
    assert found == {"sandboxd": "sandboxd", "OpenSandbox": "opensandbox", "E2B envd": "e2b"}
