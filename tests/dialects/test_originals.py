"""The originals answer the suite's questions as the suite expects of execd's dialects: what the
speakers say of a dialect is true of the program that the dialect imitates.

EXECD_PEERS names a folder with the programs ``sandboxd`` and ``os-execd``. envd of E2B is not among
them: envd opens a forwarder for each port of its network, so it needs a network of its own, which
this suite could not reach.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from ..conformance.target import START_SECONDS, wait_until
from ..free_port import free_port
from . import speakers
from .test_dialects import test_exit_code_is_the_program_s_own as test_exit_code
from .test_dialects import (
    test_killed_program_has_the_exit_code_of_a_signal_in_the_dialect as test_killed,
)
from .test_dialects import test_program_that_does_not_exist_is_127_of_its_shell as test_missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .speakers import Speaker

__all__ = ["test_exit_code", "test_killed", "test_missing"]

LARGE_BYTES = 20_000_000
PEERS = os.environ.get("EXECD_PEERS", "")
CHILD_SECONDS = 3
pytestmark = pytest.mark.skipif(not PEERS, reason="set EXECD_PEERS to the originals' folder")


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the clients keep their connections."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("originals")


@pytest.fixture(scope="module", params=["sandboxd", "os-execd"])
def speaker(request: pytest.FixtureRequest, folder: Path) -> Iterator[Speaker]:
    port, second = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    if request.param == "sandboxd":
        flags = [f"--rest-port={port}", f"--grpc-port={second}", f"--root-dir={folder}"]
        command = [f"{PEERS}/sandboxd", "--listen-host=127.0.0.1", *flags]
        health = "/health"
    else:
        command, health = [f"{PEERS}/os-execd", "-port", str(port)], "/ping"
    # Without the variable os-execd sleeps for a second after each command.
    environment = {**os.environ, "EXECD_API_GRACE_SHUTDOWN": "0"}

    def answers() -> bool:
        try:
            return httpx.get(url + health, trust_env=False).status_code < 500
        except httpx.TransportError:
            return False

    with (folder / f"{request.param}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
    try:
        wait_until(answers, START_SECONDS, f"{request.param} answers")
        made: Speaker
        if request.param == "sandboxd":
            made = speakers.SandboxdGrpc(url, "no token", second)
            made.resets_late_calls = True
        else:
            made = speakers.OpenSandbox(url, "no token")
        yield made
        made.close()
    finally:
        process.kill()
        process.wait()


def lines(speaker: Speaker, *written: bytes) -> bytes:
    """What a program's lines look like. os-execd sends lines without their ends: execd keeps the
    ends unless ``--opensandbox-line-ends`` says otherwise."""
    end = b"" if speaker.name == "opensandbox" else b"\n"
    return b"".join(line + end for line in written)


def test_output_is_the_programs(speaker: Speaker) -> None:
    ran = speaker.run(r"echo hello; printf 'a\377\200b\n'; echo naïve-日本")
    replaced = "a\ufffd\ufffdb".encode() if speaker.is_text else b"a\xff\x80b"
    assert ran.stdout == lines(speaker, b"hello", replaced, "naïve-日本".encode())
    assert (ran.exit_code, ran.timed_out, ran.is_cut) == (0, False, False)


def test_timeout_keeps_the_output(speaker: Speaker) -> None:
    ran = speaker.run("echo partial; exec sleep 1001", timeout_seconds=3.0)
    assert ran.timed_out
    assert ran.stdout == lines(speaker, b"partial")


def test_kill_ends_the_program_with_the_exit_code_of_a_signal(speaker: Speaker) -> None:
    assert speaker.start("echo up; exec sleep 1003").kill().exit_code == speaker.signal_exit_code


def test_large_output_is_whole(speaker: Speaker) -> None:
    ran = speaker.run(f"head -c {LARGE_BYTES} /dev/zero | tr '\\0' x; echo; echo end")
    assert ran.exit_code == 0
    assert ran.stdout == lines(speaker, b"x" * LARGE_BYTES, b"end")


def test_file_arrives_and_comes_back_byte_for_byte(speaker: Speaker, folder: Path) -> None:
    name, content = "näme with 100%.bin", random.Random(1).randbytes(1 << 20)
    path = f"{folder}/{name}" if speaker.sees_whole_tree else name
    speaker.upload(path, content)
    assert (folder / name).read_bytes() == content
    assert speaker.download(path) == content


def test_child_in_the_background_delays_the_end_of_sandboxd_alone(speaker: Speaker) -> None:
    """What execd does otherwise: its commands end with their program."""
    began = time.monotonic()
    ran = speaker.run(f"sleep {CHILD_SECONDS} & echo up")
    assert (ran.stdout, ran.exit_code) == (lines(speaker, b"up"), 0)
    assert (time.monotonic() - began >= CHILD_SECONDS) == (speaker.name == "sandboxd_grpc")
