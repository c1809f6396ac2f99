"""The judges of a daemon, on daemons with planted faults: each fault is found.

aftermath.py judges a daemon that the suite started; .ci/await, .ci/daemon.sh and the other half of
aftermath.py judge a daemon elsewhere. A fault is planted in the daemon's own process, by a program
that changes execd and then calls the command line. conftest.py leaves these tests out where the
daemon runs elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from ..free_port import free_port
from . import aftermath
from .target import READ_SECONDS, REPOSITORY, Target, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_SECONDS = 0.5
"""A planted fault stays, so the judges need not wait long."""

PROGRAM = """
import sys
{fault}
from execd.cli import main
sys.argv = ["execd", *sys.argv[sys.argv.index("serve"):]]
main()
"""
REPLACED = """
import dataclasses
probes.ROUTES = tuple(
    dataclasses.replace(route, handler=metadata) if route.name == "get_metadata" else route
    for route in probes.ROUTES
)
"""
HANDLER_FAILS = (
    """
from execd.api.probes import probes
async def metadata(request):
    raise RuntimeError("planted")
"""
    + REPLACED
)
HANDLER_LEAKS = (
    """
import os
from execd.api.probes import probes
original = probes.get_metadata
async def metadata(request):
    os.open("/dev/full", os.O_WRONLY)
    return await original(request)
"""
    + REPLACED
)
WRONG_EXIT_CODE = """
import os
leave = os._exit
os._exit = lambda exit_code: leave(3)
"""
NO_WARDEN = """
from execd.engine import assembly
assembly.WARDEN_MODULE = "no.such.module"
"""


def begin(folder: Path, fault: str = "", *flags: str) -> Target:
    """A daemon with the fault. The caller ends the daemon."""
    return start(folder, *flags, below=(sys.executable, "-c", PROGRAM.format(fault=fault)))


def get(target: Target, path: str) -> int:
    return httpx.get(target.url + path, timeout=READ_SECONDS, trust_env=False).status_code


def expect(http_status: int, target: Target, path: str) -> None:
    assert get(target, path) == http_status


def run_code(target: Target, session_id: str) -> None:
    code = {"code": "1", "session_id": session_id}
    reply = httpx.post(f"{target.url}/v1/code", json=code, timeout=READ_SECONDS, trust_env=False)
    assert reply.json()["status"] == "success", reply.text


def execute(target: Target, command: str) -> None:
    body = {"command": command}
    reply = httpx.post(f"{target.url}/execute", json=body, timeout=READ_SECONDS, trust_env=False)
    assert reply.json()["exit_code"] == 0, reply.text


@pytest.mark.parametrize("shape", ["--namespaces=require", "--namespaces=off"])
def test_daemon_without_a_fault_passes(tmp_path: Path, shape: str) -> None:
    with aftermath.judged(begin(tmp_path, "", shape)) as target:
        expect(200, target, "/v1/metadata")
        execute(target, "sleep 0.2 > /dev/null 2>&1 &")
        run_code(target, "forgotten")
        aftermath.end_sessions(target)
        aftermath.no_process_is_left_elsewhere(target)


def complaint(target: Target, use: Callable[[], None]) -> str:
    """The words of the judges after this use of a daemon."""
    try:
        with aftermath.judged(target, PATIENCE_SECONDS):
            use()
    except AssertionError as error:
        return str(error)
    return "passed"


def test_exception_of_a_handler_is_found_in_the_log(tmp_path: Path) -> None:
    target = begin(tmp_path, HANDLER_FAILS)
    said = complaint(target, lambda: expect(500, target, "/v1/metadata"))
    assert "RuntimeError: planted" in said


def test_single_descriptor_that_a_request_leaks_is_found(tmp_path: Path) -> None:
    target = begin(tmp_path, HANDLER_LEAKS)
    said = complaint(target, lambda: expect(200, target, "/v1/metadata"))
    assert "no more descriptors than before the tests: {'daemon: /dev/full': 1}" in said


def test_wrong_exit_code_at_sigterm_is_found(tmp_path: Path) -> None:
    said = complaint(begin(tmp_path, WRONG_EXIT_CODE), lambda: None)
    assert said.startswith("exit code 3 at SIGTERM")


@pytest.mark.parametrize("shape", ["--namespaces=require", "--namespaces=off"])
def test_left_process_of_a_command_is_found(tmp_path: Path, shape: str) -> None:
    target = begin(tmp_path, "", shape)
    said = complaint(target, lambda: execute(target, "setsid sleep 3600 > /dev/null 2>&1 &"))
    assert "no process of user code is left" in said
    assert " sleep 3600'" in said


def test_left_process_of_a_command_is_found_by_a_command(tmp_path: Path) -> None:
    target = begin(tmp_path)
    try:
        execute(target, "setsid sleep 3600 > /dev/null 2>&1 &")
        with pytest.raises(AssertionError, match=r"no process of user code is left.* sleep 3600'"):
            aftermath.no_process_is_left_elsewhere(target, PATIENCE_SECONDS)
    finally:
        target.stop()


def test_left_process_with_the_command_line_of_the_zygote_is_found(tmp_path: Path) -> None:
    """A session's interpreter has this command line, so the judges count."""
    target = begin(tmp_path)
    try:
        run_code(target, "left")
        wait_until(
            lambda: aftermath.processes_below(target)["zygote or worker"] == 3,
            READ_SECONDS,
            "the pool is full again",
        )
        for judge in (aftermath.no_process_is_left, aftermath.no_process_is_left_elsewhere):
            with pytest.raises(AssertionError, match="'zygote or worker': 3"):
                judge(target, PATIENCE_SECONDS)
    finally:
        target.stop()


def test_zombie_is_found(tmp_path: Path) -> None:
    """The child of a process that does not wait for the child."""
    target = begin(tmp_path)
    program = "import os, time; os.fork() or os._exit(0); time.sleep(3600)"

    def use() -> None:
        execute(target, f"setsid python3 -c '{program}' > /dev/null 2>&1 &")
        wait_until(
            lambda: any("zombie" in kind for kind in aftermath.processes_below(target)),
            READ_SECONDS,
            "the child is a zombie",
        )

    assert "'zombie " in complaint(target, use)


def test_warden_that_does_not_start_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the daemon ended at start"):
        begin(tmp_path, NO_WARDEN)


# --- the scripts of CI, for a daemon elsewhere

AWAIT = """
source .ci/daemon.sh
begin_daemon "$@"
.ci/await "$url" "$daemon_pid" "$(date +%s.%N)"
"""
END = """
source .ci/daemon.sh
begin_daemon "$@"
python3 - "$url" <<'WAIT'
import sys, time, urllib.request
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
while True:
    try:
        ask(sys.argv[1]).close()
        break
    except OSError:
        time.sleep(0.05)
WAIT
end_daemon
"""


@pytest.mark.parametrize(
    ("script", "fault", "exit_code", "words"),
    [
        (AWAIT, NO_WARDEN, 1, "the daemon ended before it answered"),
        (END, WRONG_EXIT_CODE, 1, "the daemon answered SIGTERM with exit code 3"),
        (END, "", 0, ""),
    ],
    ids=["no warden", "exit code", "no fault"],
)
def test_scripts_of_ci_find_a_daemon_that_starts_or_ends_wrongly(
    tmp_path: Path, script: str, fault: str, exit_code: int, words: str
) -> None:
    port = free_port()
    done = subprocess.run(
        [
            *("bash", "-c", "set -euo pipefail; " + script, "bash"),
            *(sys.executable, "-c", PROGRAM.format(fault=fault), "serve"),
            *("--host=127.0.0.1", f"--port={port}"),
            *(f"--base-dir={tmp_path / 'base'}", f"--state-dir={tmp_path / 'state'}"),
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "url": f"http://127.0.0.1:{port}",
            "EXECD_CI_RECORDS": str(tmp_path / "records"),
        },
        capture_output=True,
        text=True,
        timeout=2 * READ_SECONDS,
    )
    assert (done.returncode, words in done.stderr) == (exit_code, True), done.stderr
