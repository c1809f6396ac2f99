"""Deadlines: the answer, the time of the answer, and the processes left alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..patience import IN_SANDBOX, patience
from .conftest import python
from .target import ANSWER_SECONDS, STORM, execute_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Ran, Run
    from .target import Target

pytestmark = pytest.mark.both_shapes

DOUBLE_FORK = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{marker}"])
    os._exit(0)
os.wait()
{then}
"""
"""Leaves a descendant in a new session, without a living parent; the descendant holds both
pipes."""


def assert_timed_out(ran: Ran, limit_seconds: float) -> None:
    assert ran.timed_out
    assert ran.exit_code == 124
    assert ran.exit_reason == "timeout"
    assert ran.stderr.splitlines()[-1] == f"Command timed out after {limit_seconds:g} seconds"
    assert limit_seconds <= ran.elapsed_seconds < patience(limit_seconds + ANSWER_SECONDS)


@pytest.mark.timed
@pytest.mark.parametrize("limit_seconds", [1, 0.5, 1.25])
def test_command_over_its_limit_is_ended_in_time(
    run: Run, marker: str, limit_seconds: float, timed: Callable[[float, float], None]
) -> None:
    ran = run(f"sleep {marker}", timeout_seconds=limit_seconds)
    assert_timed_out(ran, limit_seconds)
    assert ran.stdout == ""
    assert ran.stderr == f"Command timed out after {limit_seconds:g} seconds"
    timed(ran.elapsed_seconds, limit_seconds + ANSWER_SECONDS)
    wait_until(lambda: run.count_alive(marker) == 0, 20, "no process is left")


def test_output_before_the_limit_is_kept(run: Run, marker: str) -> None:
    ran = run(f"echo partial; echo trouble >&2; sleep {marker}", timeout_seconds=3)
    assert_timed_out(ran, 3)
    assert ran.stdout == "partial\n"
    assert ran.stderr == "trouble\nCommand timed out after 3 seconds"


def test_message_gets_a_line_of_its_own(run: Run, marker: str) -> None:
    ran = run(f"printf unfinished >&2; sleep {marker}", timeout_seconds=3)
    assert ran.stderr == "unfinished\nCommand timed out after 3 seconds"


def test_program_is_asked_to_end_first_and_may_say_goodbye(run: Run, marker: str) -> None:
    for _ in range(5):  # on a machine that stands still the grace may be over before the trap
        ran = run(f"trap 'echo bye; exit 0' TERM; sleep {marker} & wait", timeout_seconds=1)
        assert_timed_out(ran, 1)
        if ran.stdout == "bye\n":
            break
    assert ran.stdout == "bye\n"
    wait_until(lambda: run.count_alive(marker) == 0, 20, "the sleeper is gone")


def test_tree_that_ignores_the_request_is_killed(run: Run, marker: str) -> None:
    ignore = f"trap '' TERM INT HUP; sleep {marker}"
    ran = run(
        f'trap \'\' TERM; sh -c "{ignore}" & setsid sh -c "{ignore}" & echo started; wait',
        timeout_seconds=3,
    )
    assert_timed_out(ran, 3)
    assert ran.stdout == "started\n"
    wait_until(lambda: run.count_alive(marker) == 0, 20, "no process that ignored SIGTERM is left")


def test_escaped_descendant_that_holds_the_pipes_delays_nothing_and_dies(
    run: Run, marker: str
) -> None:
    program = DOUBLE_FORK.format(
        marker=marker, then="print('parent waits', flush=True); time.sleep(100)"
    )
    ran = run.python(program, timeout_seconds=3.0)
    assert_timed_out(ran, 3.0)
    assert ran.stdout == "parent waits\n"
    wait_until(lambda: run.count_alive(marker) == 0, 20, "no descendant is left")


def test_descendant_that_changed_its_environment_and_session_dies_too(
    run: Run, marker: str
) -> None:
    ran = run(
        f"(setsid env -i /bin/sh -c 'sleep {marker} & sleep {marker}' &) ; sleep {marker}",
        timeout_seconds=1,
    )
    assert_timed_out(ran, 1)
    wait_until(lambda: run.count_alive(marker) == 0, 20, "no descendant is left")


def test_stopped_process_is_ended_too(run: Run, marker: str) -> None:
    ran = run(f"sh -c 'kill -STOP $$; sleep {marker}'", timeout_seconds=1)
    assert_timed_out(ran, 1)
    wait_until(lambda: run.count_alive(marker) == 0, 2, "the stopped process is gone")


def test_busy_program_is_ended_too(run: Run) -> None:
    ran = run("while :; do :; done", timeout_seconds=1)
    assert_timed_out(ran, 1)


def test_program_that_ends_just_in_time_is_no_timeout(run: Run) -> None:
    ran = run("sleep 0.2; echo done", timeout_seconds=30)
    assert (ran.stdout, ran.exit_code, ran.timed_out) == ("done\n", 0, False)
    assert ran.elapsed_seconds < patience(10)


def test_limit_may_be_larger_than_any_clock(run: Run) -> None:
    assert run("echo hi", timeout_seconds=1e12).stdout == "hi\n"


def test_sandbox_works_on_after_a_timeout(run: Run, marker: str) -> None:
    run(f"sleep {marker}", timeout_seconds=0.5)
    assert run("echo hi").stdout == "hi\n"


def warden_troubles(target: Target) -> tuple[int, int]:
    """Restarts, and unanswered pings. Inside gVisor a crowd may take more than the 2 s of a
    ping."""
    found = target.capabilities(afresh=True)
    return found["warden_restarts"], 0 if IN_SANDBOX else found["warden_missed_pings"]


@pytest.mark.timed
def test_crowd_that_times_out_in_the_same_second_is_answered_in_time(
    run: Run, target: Target, marker: str, timed: Callable[[float, float], None]
) -> None:
    limit_seconds, descendants = 5.0, 10
    before = warden_troubles(target)
    command = (
        f"i=0; while [ $i -lt {descendants} ]; do sleep {marker} & i=$((i+1)); done; echo all; wait"
    )
    answers = target.request_at_once(
        [execute_bytes(command, timeout_seconds=limit_seconds)] * STORM
    )
    # On the wire the clock starts before the command's own clock: the last of the crowd waits
    # until the rest are spawned. Beside the crowd's own forks a fork costs 1 ms natively, 20 to
    # 30 ms in gVisor.
    spawn_seconds = STORM * descendants * (0.04 if IN_SANDBOX else 0.01)
    # In gVisor the end of the crowd takes as long.
    end_seconds = spawn_seconds if IN_SANDBOX else 0.0
    for answer in answers:
        body = answer.json()
        assert answer.http_status == 200
        assert (body["exit_code"], body["exit_reason"], body["stdout"]) == (124, "timeout", "all\n")
        # Two processes read the clock, so the last digits may differ.
        assert limit_seconds - 0.001 <= body["duration_seconds"]
    wait_until(lambda: run.count_alive(marker) == 0, 5, "none of the descendants is left")
    assert warden_troubles(target) == before
    due_seconds = limit_seconds + ANSWER_SECONDS + end_seconds
    timed(max(answer.json()["duration_seconds"] for answer in answers), due_seconds)
    timed(max(answer.elapsed_seconds for answer in answers), due_seconds + spawn_seconds)


def test_python_program_in_the_middle_of_its_imports_is_ended_too(run: Run) -> None:
    for limit_seconds in (0.01, 0.02, 0.05, 0.1):
        ran = run(
            python("import json, decimal, http.client, time; time.sleep(100)"),
            timeout_seconds=limit_seconds,
        )
        assert_timed_out(ran, limit_seconds)
