"""Limits and usage of the cells of ``/v1/sessions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .sessions import ENOUGH_SECONDS, Session
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_limits_of_a_session_hold(new_session: Callable[..., Session]) -> None:
    session = new_session(limits={"open_files": 64})
    assert (
        session.value("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)") == "(64, 64)"
    )


FOR_A_WHILE = (
    "import time\nuntil = time.process_time() + 0.6\nwhile time.process_time() < until: pass"
)


def cpu_seconds(done: dict[str, Any]) -> float:
    """The CPU time of a cell; 0 for a cell that was too short to be counted."""
    usage = done["usage"]
    return (usage["user_seconds"] or 0.0) + (usage["system_seconds"] or 0.0)


def test_cpu_time_of_a_cell_is_its_own_and_that_of_its_children(session: Session) -> None:
    assert 0.5 < cpu_seconds(session.run(FOR_A_WHILE)) < 3
    assert 0 <= cpu_seconds(session.run("1")) < 0.3
    child = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {FOR_A_WHILE!r}], check=True)"
    )
    assert 0.5 < cpu_seconds(session.run(child)) < 3
    ended = session.run(f"import os\n{FOR_A_WHILE}\nos._exit(3)")
    assert (ended["exit_reason"], ended["exit_code"]) == ("worker_died", 3)
    assert 0.5 < cpu_seconds(ended) < 3


def test_usage_of_a_cell_too_short_to_be_counted_is_null(session: Session) -> None:
    cells = (session.run("print(1)") for _ in range(200))
    # Half of the time from which on a cell is counted.
    short = next(cell for cell in cells if cell["duration_seconds"] < 0.005)
    assert {name for name, value in short["usage"].items() if value is not None} == {"output_bytes"}


def test_memory_of_a_cell_is_told(session: Session) -> None:
    usage = session.run(f"kept = b'x' * (100 << 20)\n{FOR_A_WHILE}")["usage"]
    assert usage["peak_tree_bytes"] >= usage["max_rss_bytes"] > 100 << 20
    assert usage["processes"] == 1


def test_cell_over_its_cpu_limit_is_interrupted_and_keeps_its_state(
    new_session: Callable[..., Session],
) -> None:
    session = new_session(limits={"cpu_seconds": 1})
    session.run("x = 1")
    for code in "while True: pass", "!while :; do :; done":
        done = session.run(code, timeout_seconds=60)
        assert (done["status"], done["exit_reason"], done["timed_out"]) == (
            "error",
            "cpu_limit",
            False,
        ), done
        assert cpu_seconds(done) > 0.9
    after = session.run("x")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        1,
        False,
        "1",
    )


@pytest.mark.both_shapes
def test_cell_that_goes_on_past_its_cpu_limit_loses_its_state(
    new_session: Callable[..., Session],
) -> None:
    session = new_session(limits={"cpu_seconds": 1})
    code = (
        "while True:\n"
        "    try:\n"
        "        while True: sum(range(1000))\n"
        "    except BaseException: print('no', flush=True)"
    )
    done = session.run(code, timeout_seconds=60)
    assert (done["status"], done["exit_reason"], done["signal"]) == (
        "error",
        "cpu_limit",
        "SIGKILL",
    )
    assert "no" in done["stdout"]
    assert cpu_seconds(done) > 0.9
    after = session.run("1 + 1")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        2,
        True,
        "2",
    )


def test_cpu_limit_of_a_session_is_that_of_each_cell(new_session: Callable[..., Session]) -> None:
    session = new_session(limits={"cpu_seconds": 1})
    for _ in range(4):
        assert session.run(FOR_A_WHILE)["exit_reason"] == "exited"
    [branch] = (
        Session(session.client, shown["id"]) for shown in session.post("fork").json()["sessions"]
    )
    try:
        assert branch.run(FOR_A_WHILE)["exit_reason"] == "exited"
        assert branch.run("while True: pass", timeout_seconds=60)["exit_reason"] == "cpu_limit"
    finally:
        session.client.delete(branch.path)


@pytest.mark.both_shapes
def test_program_left_behind_by_a_cell_ends_at_the_cpu_limit(
    new_session: Callable[..., Session], run: Any
) -> None:
    session = new_session(limits={"cpu_seconds": 1})
    session.run(
        "import subprocess\nleft = subprocess.Popen(['sh', '-c', 'while :; do :; done'])\nx = 1"
    )
    pid = session.value("left.pid")
    # A zombie then, until the session reaps the process.
    wait_until(
        lambda: run(f"cut -d' ' -f3 /proc/{pid}/stat").stdout.strip() == "Z",
        ENOUGH_SECONDS,
        "it has ended",
    )
    after = session.run("left.wait(), x")
    assert (after["generation"], after["result"]["data"]["text/plain"]) == (1, "(-9, 1)")


@pytest.mark.both_shapes
def test_session_over_its_process_limit_is_ended(new_session: Callable[..., Session]) -> None:
    session = new_session(limits={"processes": 10})
    done = session.run(
        "import subprocess, time\n"
        "kept = [subprocess.Popen(['sleep', '60']) for _ in range(30)]\n"
        "time.sleep(60)",
        timeout_seconds=30,
    )
    assert done["exit_reason"] == "process_limit"
    assert session.run("1")["state_lost"] is True


FILL = "held = bytearray(b'x') * (250 << 20)\nimport time\ntime.sleep(20)"


@pytest.mark.both_shapes
def test_session_over_its_memory_limit_is_ended(new_session: Callable[..., Session]) -> None:
    """Each session's worker is freshly forked. Meanwhile the warden watches no further worker
    with a limit."""
    for _ in range(8):
        session = new_session(limits={"memory_bytes": 100 << 20})
        done = session.run(FILL)
        assert (done["exit_reason"], done["stdout"]) == ("memory_limit", ""), done
        assert session.run("1")["state_lost"] is True
        assert session.client.delete(session.path).status_code == 204


@pytest.mark.both_shapes
def test_branch_of_a_session_has_its_memory_limit(new_session: Callable[..., Session]) -> None:
    session = new_session(limits={"memory_bytes": 100 << 20})
    session.run("x = 1")
    [shown] = session.post("fork").json()["sessions"]
    branch = Session(session.client, shown["id"])
    assert session.client.delete(session.path).status_code == 204
    assert branch.run(FILL)["exit_reason"] == "memory_limit"
    assert session.client.delete(branch.path).status_code == 204
