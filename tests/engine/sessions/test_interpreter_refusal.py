from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import pytest

from execd.engine.sessions import interpreter_refusal
from execd.engine.sessions.interpreter_refusal import Footprint, Refusal
from execd.proc.client import SpawnError
from execd.proc.messages import Exited

if TYPE_CHECKING:
    from pathlib import Path


def ended(wait_status: int) -> Exited:
    return Exited(1, 2, 0.0, 1.0, wait_status, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("step", "error", "cause"),
    [
        ("exec", errno.ENOENT, "not_found"),
        ("exec", errno.EACCES, "not_executable"),
        ("exec", errno.ENOEXEC, "not_a_python"),
        ("exec", errno.ENOMEM, None),
        ("exec", errno.ETXTBSY, None),
        ("fork", errno.EAGAIN, None),
        ("cwd", errno.ENOENT, None),
        ("request", 0, None),
    ],
)
def test_only_an_exec_that_the_file_makes_fail_refuses_the_interpreter(
    step: str, error: int, cause: str | None
) -> None:
    refusal = interpreter_refusal.of_spawn_error(SpawnError("the message", step, error))
    assert refusal == (None if cause is None else Refusal(cause, "the message"))


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [([2, 7, 18], True), ([3, 8, 18], True), ([3, 9, 0], False), ([3, 14, 0], False)],
)
def test_python_before_3_9_is_too_old(version: list[int], is_refused: bool) -> None:
    refusal = interpreter_refusal.of_version("/a/python", version)
    assert (refusal is not None) is is_refused
    if refusal is not None:
        assert refusal.cause == "too_old"
        assert ".".join(map(str, version)) in refusal.message


@pytest.mark.parametrize(
    ("wait_status", "has_begun", "stderr", "cause"),
    [
        (1 << 8, False, "no", "not_a_python"),
        (0, False, "", "not_a_python"),
        (1 << 8, True, "no", "crashed"),
        (signal.SIGSEGV, False, "", "crashed"),
        (signal.SIGSEGV, True, "", "crashed"),
        (signal.SIGRTMIN + 3, True, "", "crashed"),
        (signal.SIGKILL, True, "", None),
        (signal.SIGTERM, False, "", None),
        (1 << 8, True, "Traceback\nMemoryError", None),
        (127 << 8, False, "libc.so.6: failed to map segment from shared object", None),
        (1 << 8, False, "sh: Cannot allocate memory", None),
    ],
)
def test_end_before_the_zygote_is_ready_is_the_interpreters_unless_the_machine_looks_guilty(
    wait_status: int, has_begun: bool, stderr: str, cause: str | None
) -> None:
    refusal = interpreter_refusal.of_end(
        "/a/python", ended(wait_status), has_begun=has_begun, stderr=stderr
    )
    assert (None if refusal is None else refusal.cause) == cause
    if refusal is not None:
        assert "/a/python" in refusal.message
        assert stderr in refusal.message


def test_footprint_changes_with_the_file_and_with_the_folders_of_packages(tmp_path: Path) -> None:
    python, packages = tmp_path / "python", tmp_path / "packages"
    python.touch()
    packages.mkdir()
    before = [os.stat(python), os.stat(packages)]

    def take() -> Footprint:
        footprint = Footprint(str(python))
        footprint.include([str(packages), str(tmp_path / "missing"), "/no\0path"])
        assert not footprint.has_changed()
        return footprint

    footprint = take()
    (packages / "new").mkdir()
    os.utime(packages, ns=(before[1].st_atime_ns, before[1].st_mtime_ns + 1))
    assert footprint.has_changed()
    footprint = take()
    python.chmod(0o755)
    assert footprint.has_changed()
    footprint = take()
    (tmp_path / "missing").mkdir()
    assert footprint.has_changed()
    footprint = take()
    python.unlink()
    assert footprint.has_changed()
    assert not take().has_changed()
