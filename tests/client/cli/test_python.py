"""Python by ``execctl py``, and sessions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pexpect
import pytest

from tests.client.cli.conftest import EXECCTL, TIMEOUT_SECONDS, ended
from tests.client.conftest import AT_ONCE
from tests.conformance.target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from execd_client import Execd

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Spawn = Callable[..., "pexpect.spawn[str]"]


def test_code_files_and_input_run(execctl: Run, tmp_path: Path) -> None:
    assert execctl("py", "-c", "print('out'); 40 + 2").stdout == "out\n42\n"
    (tmp_path / "program.py").write_text("import sys; print('err', file=sys.stderr)")
    done = execctl("py", "program.py")
    assert (done.stderr, done.returncode) == ("err\n", 0)
    assert execctl("py", input="6 * 7").stdout == "42\n"
    failed = execctl("py", "-c", "1 / 0")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    found = json.loads(execctl("py", "--json", "-c", "40 + 2").stdout)
    assert (found["text"], found["error"]) == ("42", None)


def test_a_named_session_stays_and_forks(execctl: Run) -> None:
    execctl("py", "--session", "kept", "-c", "x = 41")
    (branch, other) = execctl("fork", "kept", "-n", "2").stdout.split()
    assert execctl("py", "--session", branch, "-c", "x + 1").stdout == "42\n"
    assert {"kept", branch, other} <= set(execctl("sessions").stdout.split())
    execctl("sessions", "--delete", "kept", "--delete", branch, "--delete", other)
    assert "kept" not in execctl("sessions").stdout


@pytest.mark.third_party
def test_images_are_saved(execctl: Run, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt; plt.plot([1, 4, 9]);"
    for number in (1, 2):
        assert execctl("py", "-c", code).stdout == f"saved image-{number}.png\n"
    assert (tmp_path / "image-2.png").read_bytes().startswith(b"\x89PNG")


@AT_ONCE
def test_the_repl_keeps_state_interrupts_and_ends(terminal: Spawn) -> None:
    child = terminal("py")
    child.expect(">>>")
    child.send("for n in (40, 41):\r")
    child.expect(r"\.\.\.")
    child.send("    m = n + 1\r")
    child.expect(r"\.\.\.")
    child.send("\r")
    child.expect(">>>")
    child.send("'is', m\r")
    child.expect(r"\('is', 42\)")
    child.expect(">>>")
    child.send("import time; print('slee' + 'ping', flush=True); time.sleep(600)\r")
    child.expect("sleeping")
    child.sendintr()
    child.expect("KeyboardInterrupt")
    child.expect(">>>")
    child.sendeof()
    assert ended(child) == 0


@AT_ONCE
@pytest.mark.parametrize("key", ["interrupt", "end"])
def test_a_question_of_the_repl_ends_by_ctrl_c_and_by_ctrl_d(terminal: Spawn, key: str) -> None:
    child = terminal("py")
    child.expect(">>>")
    child.send("name = input('na' + 'me? ')\r")
    child.expect(r"name\? ")
    press = child.sendintr if key == "interrupt" else child.sendeof
    press()
    # Just before its read(2) Python takes the signal and reads on: people press the key again.
    while child.expect(["KeyboardInterrupt", pexpect.TIMEOUT], timeout=10):
        press()
    child.expect(">>>")
    child.send("name = input('na' + 'me? ')\r")
    child.expect(r"name\? ")
    child.send("Ada\r")
    child.expect(">>>")
    child.send("'my name is ' + name\r")
    child.expect("'my name is Ada'")
    child.expect(">>>")
    child.sendeof()
    assert ended(child) == 0


@AT_ONCE
def test_the_repl_goes_on_after_an_error_of_execd(terminal: Spawn, sandbox: Execd) -> None:
    name = str(uuid.uuid4())
    child = terminal("py", "--session", name)
    child.expect(">>>")
    sandbox.sessions.get(name).delete()
    child.send("1 + 1\r")
    child.expect("execctl: .*\r")
    assert "Traceback" not in child.before
    child.expect(">>>")
    child.sendeof()
    assert ended(child) == 0


@AT_ONCE
def test_sigterm_ends_the_repl_and_its_session(terminal: Spawn, sandbox: Execd) -> None:
    before = {session.id for session in sandbox.sessions.list()}
    child = terminal("py")
    child.expect(">>>")
    assert {session.id for session in sandbox.sessions.list()} > before
    child.kill(signal.SIGTERM)
    assert ended(child) == 143
    assert {session.id for session in sandbox.sessions.list()} == before


ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


# The start of the cell's thread returns when a signal waits.
SLOW_START = """
import signal, threading, time
start = threading.Thread.start

def start_slowly(thread):
    is_cell = getattr(thread._target, "__name__", "") == "_work"
    start(thread)
    deadline = time.monotonic() + 120
    while is_cell and not signal.sigpending() and time.monotonic() < deadline:
        time.sleep(0.01)

threading.Thread.start = start_slowly
from execd_client.cli import main
main()
"""


@pytest.mark.parametrize(("number", "exit_code"), ENDS)
def test_a_signal_before_the_cells_thread_has_started_interrupts_the_cell(
    url: str, sandbox: Execd, number: int, exit_code: int
) -> None:
    name, marker = str(uuid.uuid4()), str(uuid.uuid4())
    code = f"import time; open({marker!r}, 'w').close(); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_START, "--url", url, "py", "--session", name, "-c", code],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: sandbox.files.exists(marker), TIMEOUT_SECONDS, "the cell runs")
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == exit_code
    (cell,) = [item for item in sandbox.list() if item.session_id == name]
    result = sandbox.handle(cell.id).wait(TIMEOUT_SECONDS)
    assert result.exit_reason == "interrupted"
    sandbox.sessions.get(name).delete()


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(("number", "exit_code"), ENDS)
def test_signals_interrupt_the_cell_and_delete_only_a_session_without_a_name(
    url: str, sandbox: Execd, number: int, exit_code: int, is_named: bool
) -> None:
    before = {session.id for session in sandbox.sessions.list()}
    name, marker = str(uuid.uuid4()), str(uuid.uuid4())
    code = f"import os, time; open({marker!r}, 'w').close(); time.sleep(600)"
    options = ["--session", name] if is_named else []
    with subprocess.Popen(
        [EXECCTL, "--url", url, "py", *options, "-c", code],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: sandbox.files.exists(marker), TIMEOUT_SECONDS, "the cell runs")
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == exit_code
    left = {session.id for session in sandbox.sessions.list()} - before
    assert left == ({name} if is_named else set())
    if is_named:
        session = sandbox.sessions.get(name)
        wait_until(lambda: session.info().state == "IDLE", TIMEOUT_SECONDS, "the cell has ended")
        session.delete()


def test_ctrl_c_leaves_the_cell_of_another_caller_alone(url: str, sandbox: Execd) -> None:
    session = sandbox.sessions.create()
    other = session.start("input()", allow_input=True)
    wait_until(lambda: session.info().state == "WAITING_INPUT", TIMEOUT_SECONDS, "another cell")
    with subprocess.Popen(
        [EXECCTL, "--url", url, "py", "--session", session.id, "-c", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(
            lambda: [item for item in sandbox.list("QUEUED") if item.session_id == session.id],
            TIMEOUT_SECONDS,
            "the cell waits",
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
    assert other.result().state == "RUNNING"
    session.delete()


@AT_ONCE
def test_py_tells_lost_output_at_the_end(url: str, sandbox: Execd) -> None:
    session = sandbox.sessions.create(log_bytes=300_000)
    code = "for n in range(40): print('x' * 999_999)"
    with subprocess.Popen(
        [EXECCTL, "--url", url, "py", "--session", session.id, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"x"
        # Until then nobody reads: execctl, and so the stream, wait.
        wait_until(lambda: session.info().state == "IDLE", TIMEOUT_SECONDS, "the cell has ended")
        n_bytes = 1 + len(process.stdout.read())
        said = process.stderr.read().decode()
        assert process.wait(TIMEOUT_SECONDS) == 0
    session.delete()
    lost_bytes = 40_000_000 - n_bytes
    assert lost_bytes > 0
    assert said.startswith(f"execctl: {lost_bytes} bytes of stdout are lost")


def test_fork_tells_what_the_branches_do_not_have(execctl: Run, sandbox: Execd) -> None:
    session = sandbox.sessions.create()
    session.run(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    done = execctl("fork", session.id)
    assert done.returncode == 0
    assert done.stderr.startswith("execctl: ")
    assert "thread" in done.stderr
