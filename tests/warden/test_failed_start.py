from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from execd.proc import spawn
from execd.proc.program_block import pack
from execd.warden.failed_start import judge
from tests.proc import spawning


def start(argv: list[str], cwd: Path, env: dict[str, str]) -> str:
    """Start a program that cannot be started. Return the message."""
    program = pack(argv, env, str(cwd))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with pytest.raises(spawn.StepFailed) as caught:
            spawning.spawn(program=program, fds=[null] * 3)
    finally:
        os.close(null)
    error = caught.value
    if error.pid is not None:
        os.waitpid(error.pid, 0)
    assert error.errno is not None
    return judge(error.step, error.errno, program)[1]


def executable(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def test_missing_directory_is_named(tmp_path: Path) -> None:
    message = start(["/bin/true"], tmp_path / "none", {})
    assert message.startswith(f"cwd: '{tmp_path}/none': No such file or directory; ")


def test_program_that_is_in_no_directory_of_path_is_named_with_path(tmp_path: Path) -> None:
    message = start(["no-such-program"], tmp_path, {"PATH": "/bin:/usr/bin"})
    assert "program: 'no-such-program'" in message
    assert "PATH (/bin:/usr/bin)" in message


def test_missing_path_of_a_program_is_named(tmp_path: Path) -> None:
    message = start(["./none"], tmp_path, {})
    assert message.startswith("program: './none': No such file or directory; ")


@pytest.mark.parametrize("argv", [["./script"], ["script"]])
def test_missing_interpreter_of_a_script_is_named(tmp_path: Path, argv: list[str]) -> None:
    executable(tmp_path / "script", b"#! /no/such/interpreter -x\necho\n")
    message = start(argv, tmp_path, {"PATH": str(tmp_path)})
    assert "script'" in message
    assert "its interpreter '/no/such/interpreter'" in message


def test_first_line_that_ends_in_cr_lf_is_told(tmp_path: Path) -> None:
    executable(tmp_path / "script", b"#!/bin/sh\r\necho\r\n")
    assert "not in CR LF" in start(["./script"], tmp_path, {})


def test_file_that_is_not_executable_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"#!/bin/sh\n")
    message = start(["./data"], tmp_path, {})
    assert message.startswith("program: './data': Permission denied; ")
    assert "chmod +x" in message


def test_file_in_no_known_format_is_told(tmp_path: Path) -> None:
    executable(tmp_path / "data", b"no program\n")
    assert "begins with #!" in start(["./data"], tmp_path, {})


def test_arguments_that_are_too_long_are_told(tmp_path: Path) -> None:
    assert start(["/bin/true", "x" * (1 << 20)], tmp_path, {}).startswith("argv, env: ")


def test_binary_without_its_loader_is_told(tmp_path: Path) -> None:
    shell = Path("/bin/sh").read_bytes()
    assert shell.count(b"/lib64/ld-linux") == 1
    executable(tmp_path / "binary", shell.replace(b"/lib64/ld-linux", b"/lib64/no-linux"))
    assert "dynamic loader" in start(["./binary"], tmp_path, {})


def test_a_fifo_in_place_of_the_program_keeps_nobody_waiting(tmp_path: Path) -> None:
    """User code may put anything there after the failure."""
    subprocess.run(["mkfifo", tmp_path / "fifo"], check=True)
    message = judge("exec", errno.ENOENT, pack(["./fifo"], {}, str(tmp_path)))[1]
    assert message.startswith("program: './fifo': No such file")


def test_other_steps_are_named() -> None:
    assert (
        judge("limits", errno.EPERM, pack(["true"], {}, "/"))[1]
        == "limits: Operation not permitted"
    )
