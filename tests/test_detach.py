"""``execd serve --detach``: what the caller sees, and what is left of the caller."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests import subreaper
from tests.test_server import ROOT, TERMINATED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Caller:
    """Starts detached daemons, and ends those that live."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def detach(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Return when the caller's process has ended and nobody has its output open any more."""
        flags = [f"--base-dir={self.folder}/base", f"--state-dir={self.folder}/state"]
        return subprocess.run(
            [sys.executable, "-m", "execd", "serve", "--detach", "--port=0", *flags, *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT},
            timeout=60,
            **{"capture_output": True, "text": True, **options},
        )

    def daemons(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if f"--base-dir={self.folder}/base" in words and words[1:3] == ["-m", "execd"]:
                    found.append(process)
        return found

    def end(self) -> None:
        """Return when no daemon lives; the test is their parent by now."""
        for daemon in self.daemons():
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(20) == TERMINATED


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    made = Caller(tmp_path)
    with subreaper.restored():
        subreaper.become_subreaper(True)  # the daemon's end can then be seen
        yield made
        made.end()


def port_of(said: str) -> int:
    [port] = [line["port"] for line in map(json.loads, said.splitlines()) if "port" in line]
    assert isinstance(port, int)
    return port


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def test_detached_daemon_listens_when_its_caller_returns(caller: Caller) -> None:
    done = caller.detach()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert answers(port_of(done.stderr))


def test_detached_daemon_keeps_nothing_of_its_caller(caller: Caller) -> None:
    """``subprocess.run`` has read to the end of the output, so nobody has the pipes."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        assert caller.detach(pass_fds=[writer]).returncode == 0
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""  # None would mean that somebody has the other end
    [daemon] = caller.daemons()
    assert os.getsid(daemon.pid) == daemon.pid
    assert {os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}


def test_failed_start_gives_a_detached_daemon_s_caller_its_exit_code_and_message(
    caller: Caller,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = caller.detach("--port", str(port))
    assert done.returncode == 1
    assert f"execd: cannot listen on 127.0.0.1:{port}: " in done.stderr
    (caller.folder / "file").touch()
    done = caller.detach(f"--state-dir={caller.folder}/file")
    assert done.returncode == 2
    assert "execd: --state-dir: " in done.stderr
    assert caller.daemons() == []


def test_a_daemon_that_dies_before_it_listens_is_128_and_the_signal(caller: Caller) -> None:
    """The child of ``detach`` stands for a daemon in its start: nothing of a real daemon's start
    waits for the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START],
        cwd=caller.folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert process.wait(20) == 128 + signal.SIGKILL


SLOW_START = """
import os, signal
from execd.detach import detach
out = os.dup(1)
detach(out)
os.write(out, f"{os.getpid()}\\n".encode())
os.close(out)
signal.pause()
"""


def test_a_detached_daemon_s_log_goes_to_log_fd_alone(caller: Caller, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open(log, "wb") as file:
        done = caller.detach(f"--log-fd={file.fileno()}", pass_fds=[file.fileno()])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert answers(port_of(log.read_text()))
    caller.end()
    assert "shutting down" in log.read_text()


def test_a_detached_daemon_s_log_may_stay_on_the_caller_s_stderr(
    caller: Caller, tmp_path: Path
) -> None:
    with open(tmp_path / "log", "wb") as file:
        done = caller.detach("--log-fd=2", capture_output=False, stderr=file)
    assert done.returncode == 0
    caller.end()
    messages = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert "listening" in messages
    assert messages[-1] == "shutting down"


def test_detach_refuses_a_program_of_the_image(caller: Caller) -> None:
    done = caller.detach("--", "true")
    assert done.returncode == 2
    assert "Error: --detach: not together with `-- CMD`" in done.stderr
    assert os.listdir(caller.folder) == []
