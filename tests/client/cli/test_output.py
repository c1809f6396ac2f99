"""What execctl says of lost output, and how execctl ends where output or input cannot go on."""

from __future__ import annotations

import os
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.client.cli.conftest import EXECCTL, TIMEOUT_SECONDS
from tests.client.conftest import AT_ONCE
from tests.conformance.target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from execd_client import Execd

    Run = Callable[..., subprocess.CompletedProcess[str]]

LOG_BYTES = 300_000
LINES = "for n in $(seq 100000); do printf '%07d\\n' $n; done"
TOTAL_BYTES = 800_000


@pytest.fixture
def holed(sandbox: Execd) -> str:
    """The id of a program that has written more than execd keeps."""
    handle = sandbox.start(LINES, log_bytes=LOG_BYTES)
    assert handle.wait().exit_code == 0
    return handle.id


def test_logs_prints_the_head_the_tail_and_the_size_of_the_hole(execctl: Run, holed: str) -> None:
    done = execctl("logs", holed)
    assert done.returncode == 0
    assert done.stdout.startswith("0000001\n0000002\n")
    assert done.stdout.endswith("0099999\n0100000\n")
    lost_bytes = TOTAL_BYTES - len(done.stdout)
    assert done.stderr == (
        f"execctl: here {lost_bytes} bytes of stdout are lost: execd did not keep them "
        "(log_bytes)\n"
    )


def test_following_a_log_with_a_hole_ends_with_one_line_about_the_hole(
    execctl: Run, holed: str
) -> None:
    done = execctl("logs", "-f", holed)
    assert done.returncode == 0
    assert done.stdout.endswith("0099999\n0100000\n")
    assert done.stderr.splitlines() == [lost_line(TOTAL_BYTES - len(done.stdout))]


def lost_line(size_bytes: int) -> str:
    return (
        f"execctl: {size_bytes} bytes of stdout are lost: execd keeps the beginning and the end of "
        "a long output (log_bytes)"
    )


@AT_ONCE
def test_run_tells_lost_output_in_one_line(url: str, sandbox: Execd) -> None:
    name, total_bytes = str(uuid.uuid4()), 90_000_000
    command = [EXECCTL, "--url", url, "run", "--id", name, "--"]
    command += ["head", "-c", str(total_bytes), "/dev/zero"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"\0"
        # Until then nobody reads: execctl, and so the stream, wait.
        wait_until(
            lambda: sandbox.handle(name).result().state == "EXITED", TIMEOUT_SECONDS, "it ended"
        )
        n_bytes = 1
        while data := process.stdout.read(1 << 20):
            n_bytes += len(data)
        said = process.stderr.read().decode().splitlines()
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert said == [lost_line(total_bytes - n_bytes)]


def test_logs_says_why_a_program_ended(execctl: Run, sandbox: Execd) -> None:
    handle = sandbox.start("echo begun; exec sleep 600", timeout_seconds=3.0)
    ended = handle.wait()
    assert ended.exit_reason == "timeout"
    for arguments, exit_code in (([], 0), (["-f"], ended.exit_code)):
        done = execctl("logs", *arguments, handle.id)
        assert (done.stdout, done.returncode) == ("begun\n", exit_code)
        assert "time limit" in done.stderr


NO_SPACE = "execctl: No space left on device\n"
SHELL_CASES = [
    ('"$EXECCTL" run -- cat <&-', "", 0),
    ('"$EXECCTL" run -- echo hi >&-', "", 0),
    ("\"$EXECCTL\" run -- sh -c 'echo hi >&2; exit 3' 2>&-", "", 3),
    ('"$EXECCTL" run -- echo hi </dev/null >/dev/full', NO_SPACE, 125),
]


@pytest.mark.parametrize(("line", "said", "exit_code"), SHELL_CASES)
def test_closed_and_full_descriptors_end_without_a_traceback(
    url: str, line: str, said: str, exit_code: int
) -> None:
    done = shell(url, line)
    assert (done.stderr, done.returncode) == (said, exit_code)


def shell(url: str, line: str) -> subprocess.CompletedProcess[str]:
    """A line of sh, in which ``$EXECCTL`` is the program."""
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, "EXECD_URL": url, "EXECCTL": str(EXECCTL)},
        stdin=subprocess.DEVNULL,
    )


WRITERS = ["run -- cat {file}", "cat {file}", "logs {id}", "logs -f {id}", "py -c {code}"]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_reader_that_has_gone_is_141_without_a_message(
    url: str, sandbox: Execd, writer: str
) -> None:
    sandbox.files.write("many-lines", "line\n" * 200_000)
    handle = sandbox.start("cat many-lines")
    handle.wait()
    code = "\"print('line\\n' * 200_000)\""
    line = '"$EXECCTL" ' + writer.format(file="many-lines", id=handle.id, code=code)
    done = shell(url, "{ " + line + "; echo $? >&2; } | head -1")
    assert (done.stdout, done.stderr) == ("line\n", "141\n")


NOT_TEXT = b"\xff"
PICTURE = "from IPython.display import Image; display(Image(b'-', format='png'))"
BAD_CALLS = [
    ["run", "--", "printf", NOT_TEXT],
    ["run", "-e", b"A=\xff", "--", "env"],
    ["py", "-c", NOT_TEXT],
    ["py", "not-utf8.py"],
    ["cp", ":source", "file/x"],
    ["cp", ":folder", "file"],
    ["py", "--images", "/nonexistent", "-c", PICTURE],
]


@pytest.mark.parametrize("arguments", BAD_CALLS)
def test_failures_on_this_side_are_a_message_and_125(
    url: str, tmp_path: Path, sandbox: Execd, arguments: list[str | bytes]
) -> None:
    sandbox.files.write("source", "source")
    sandbox.files.write("folder/x", "x")
    (tmp_path / "file").write_text("file")
    (tmp_path / "not-utf8.py").write_bytes(b"'\xff'\n")
    done = subprocess.run(
        [EXECCTL, "--url", url, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 125
    assert done.stderr.startswith("execctl: ")
    assert "Traceback" not in done.stderr


BAD_SETTINGS = [
    ["--token", "ä"],
    ["--token", "blank at the end "],
    ["--header", "X-A: ä"],
    ["--header", "X A: b"],
]


@pytest.mark.parametrize("arguments", BAD_SETTINGS)
def test_a_token_and_a_header_that_cannot_be_sent_are_mistakes(
    execctl: Run, arguments: list[str]
) -> None:
    done = execctl(*arguments, "ps")
    assert done.returncode == 2
    assert "ASCII" in done.stderr or "is not NAME:VALUE" in done.stderr
