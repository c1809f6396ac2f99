from __future__ import annotations

import math
import signal
from typing import Any

import msgspec
import pytest

from execd.engine.executions.end_words import applied_limit, end_fields, end_message, seconds
from execd.engine.executions.execution_record import ExecutionRecord, Registration
from execd.engine.executions.state import ExecutionPhase
from execd.errors import ResourceExhausted
from execd.model import Command, DiskExcess, ExitReason, Limits, Program, Result, Usage

MIB = 1 << 20
COMMAND = Command(
    program=Program(argv=("true",), display="true"),
    timeout_seconds=2.0,
    no_output_timeout_seconds=0.25,
    limits=Limits(
        cpu_seconds=3, memory_bytes=200 * MIB, processes=4, file_size_bytes=1000, log_bytes=100
    ),
)
CELL = Command(program=Program(argv=(), display="1", is_code=True), limits=COMMAND.limits)


def message(
    reason: ExitReason,
    *,
    command: Command = COMMAND,
    excess: int | DiskExcess | None = None,
    remark: str = "",
    cpu_seconds: float | None = 0.0,
) -> str:
    result = Result(
        exit_code=None,
        term_signal=signal.SIGKILL,
        exit_reason=reason,
        message=remark,
        usage=Usage(user_seconds=cpu_seconds),
    )
    return end_message(result, command, excess, {"stdout": 5, "stderr": 2048})


@pytest.mark.parametrize(
    ("duration_seconds", "told"),
    [
        (1.2, "the limit of 3 s for waiting and running together was over"),
        (3.01, "the run time limit of 3 s was over"),
    ],
)
def test_a_wait_in_the_queue_that_counts_is_told_when_it_shortened_the_run(
    duration_seconds: float, told: str
) -> None:
    result = Result(
        exit_code=None,
        term_signal=signal.SIGKILL,
        exit_reason=ExitReason.TIMEOUT,
        duration_seconds=duration_seconds,
    )
    command = msgspec.structs.replace(COMMAND, timeout_seconds=3.0, total_seconds=3.0)
    assert end_message(result, command, None, {"stdout": 0, "stderr": 0}) == told


@pytest.mark.parametrize("reason", list(ExitReason))
@pytest.mark.parametrize("command", [COMMAND, CELL])
def test_every_reason_but_the_programs_own_end_is_told_in_one_line(
    reason: ExitReason, command: Command
) -> None:
    if command is CELL and reason is ExitReason.NO_OUTPUT_TIMEOUT:
        return  # of commands only
    told = message(reason, command=command, remark="remark")
    if reason is ExitReason.EXITED:
        assert told == ""
    else:
        assert told.endswith("remark")
        assert "\n" not in told
        assert "None" not in told
        needs_no_words = reason in (ExitReason.SPAWN_FAILED, ExitReason.WORKER_DIED)
        assert (told == "remark") is needs_no_words


@pytest.mark.parametrize(
    ("reason", "excess", "cpu_seconds", "told"),
    [
        (ExitReason.SIGNALED, None, 0.0, "SIGKILL ended the program"),
        (ExitReason.TIMEOUT, None, 0.0, "the run time limit of 2 s was over"),
        (ExitReason.NO_OUTPUT_TIMEOUT, None, 0.0, "the program was silent for 0.25 s"),
        (
            ExitReason.CPU_LIMIT,
            None,
            3.0149,
            "a process used 3.01 s of the allowed 3 s of CPU time",
        ),
        (ExitReason.CPU_LIMIT, 5, 0.1, "a process used 5.00 s of the allowed 3 s of CPU time"),
        (ExitReason.CPU_LIMIT, None, 2.9, "a process used up the allowed 3 s of CPU time"),
        (ExitReason.CPU_LIMIT, None, None, "a process used up the allowed 3 s of CPU time"),
        (
            ExitReason.MEMORY_LIMIT,
            200 * MIB + 1,
            0.0,
            "the tree used 201 MiB of the allowed 200 MiB",
        ),
        (
            ExitReason.MEMORY_LIMIT,
            150 * MIB,
            0.0,
            "the pod was out of memory, and the tree was the largest with 150 MiB",
        ),
        (
            ExitReason.PROCESS_LIMIT,
            7,
            0.0,
            "the tree had 7 processes and threads of the allowed 4",
        ),
        (ExitReason.FILE_SIZE_LIMIT, None, 0.0, "a file reached the allowed 1000 bytes"),
        (
            ExitReason.OUTPUT_LIMIT,
            None,
            0.0,
            "stderr has 2 KiB of the allowed 100 bytes",
        ),
    ],
)
def test_figures_that_are_known_are_told(
    reason: ExitReason, excess: int | None, cpu_seconds: float | None, told: str
) -> None:
    assert message(reason, excess=excess, cpu_seconds=cpu_seconds) == told


@pytest.mark.parametrize(
    ("line", "is_hinted"),
    [
        ("pkill -f server.py; python server.py &", True),
        ("pkill -9 -f server.py || true", True),
        ("pkill -KILL --full 'python server'", True),
        ("cd /app && pkill -uroot -ef x", True),
        ("kill $(pgrep -f server.py)", True),
        ("pgrep -af server.py | cut -d' ' -f1 | xargs kill -9", True),
        ("ps aux | grep server.py | awk '{print $2}' | xargs kill", True),
        ("for p in $(ps -ef | awk '/server/ {print $2}'); do kill -9 $p; done", True),
        ("pkill server; tail -f log", False),
        ("pkill server | grep -f patterns", False),
        ("ps aux | grep kil; exit 3", False),
        ("kill -TERM $$", False),
    ],
)
def test_a_program_that_its_own_search_may_have_ended_gets_a_hint(
    line: str, *, is_hinted: bool
) -> None:
    program = Program(argv=("/bin/sh", "-c", line), display=line)
    told = message(ExitReason.SIGNALED, command=Command(program=program))
    assert told.startswith("SIGKILL ended the program")
    assert ("pkill -f '[s]erver.py'" in told) is is_hinted
    long = Program(argv=("/bin/sh", "-c", ". /proc/self/fd/3"), display=line, script=line)
    told = message(ExitReason.SIGNALED, command=Command(program=long))
    assert ("pkill -f '[s]erver.py'" in told) is is_hinted


@pytest.mark.parametrize(
    ("excess", "told"),
    [
        (
            DiskExcess("base_dir_bytes", "/app", 812 * MIB, 1024 * MIB, False),
            "the base dir held 812 MiB of the allowed 1,024 MiB, and this program wrote the most "
            "of late",
        ),
        (
            DiskExcess("tmp_dir_bytes", "/tmp", 2000 * MIB, 1024 * MIB, True),
            "/tmp held 2,000 MiB of the allowed 1,024 MiB, and this program probably wrote the "
            "last of them: a guess, because the kernel does not tell who wrote to the disk",
        ),
    ],
)
def test_full_directory_is_told_with_its_figures_and_a_guess_is_called_a_guess(
    excess: DiskExcess, told: str
) -> None:
    assert message(ExitReason.DISK_LIMIT, excess=excess) == told
    # An end for another reason, just before.
    assert message(ExitReason.TIMEOUT, excess=excess) == "the run time limit of 2 s was over"


def test_signal_without_a_name_has_its_number() -> None:
    result = Result(exit_code=None, term_signal=40, exit_reason=ExitReason.SIGNALED)
    assert end_message(result, COMMAND, None, {}) == "signal 40 ended the program"


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(300.0, "300 s"), (0.25, "0.25 s"), (1e7, "10000000 s"), (math.pi, "3.141593 s")],
)
def test_seconds_are_told_to_the_microsecond(figure: float, shown: str) -> None:
    assert seconds(figure) == shown


USAGE = Usage(user_seconds=0.5)
LIMIT_REASONS = {reason for reason in ExitReason if reason.endswith(("_limit", "timeout"))}


def ended(result: Result | None) -> ExecutionRecord:
    output: Any = None
    record = ExecutionRecord(Registration("x"), COMMAND, output, ExecutionPhase.EXITED)
    record.result = result
    return record


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        (ExitReason.TIMEOUT, {"timeout_seconds": 2.0}),
        (ExitReason.NO_OUTPUT_TIMEOUT, {"no_output_timeout_seconds": 0.25}),
        (ExitReason.CPU_LIMIT, {"cpu_seconds": 3}),
        (ExitReason.PROCESS_LIMIT, {"processes": 4}),
        (ExitReason.FILE_SIZE_LIMIT, {"file_size_bytes": 1000}),
        (ExitReason.OUTPUT_LIMIT, {"log_bytes": 100}),
    ],
)
def test_limit_that_applied_is_told_by_its_name(
    reason: ExitReason, limit: dict[str, float]
) -> None:
    assert applied_limit(reason, COMMAND, None) == limit


@pytest.mark.parametrize(
    ("excess", "limit"),
    [
        (201 * MIB, {"memory_bytes": 200 * MIB}),
        (None, {"memory_bytes": 200 * MIB}),
        (150 * MIB, {"pod_memory_bytes": None}),
    ],
)
def test_memory_of_the_pod_is_told_from_the_memory_of_a_tree(
    excess: int | None, limit: dict[str, int | None]
) -> None:
    assert applied_limit(ExitReason.MEMORY_LIMIT, COMMAND, excess) == limit


def test_limit_of_a_full_directory_is_told_by_its_setting() -> None:
    excess = DiskExcess("tmp_dir_bytes", "/tmp", 60 * MIB, 64 * MIB, False)
    assert applied_limit(ExitReason.DISK_LIMIT, COMMAND, excess) == {"tmp_dir_bytes": 64 * MIB}
    assert applied_limit(ExitReason.PROCESS_LIMIT, COMMAND, excess) == {"processes": 4}


def test_displays_of_a_cell_have_a_limit_of_their_own() -> None:
    assert applied_limit(ExitReason.OUTPUT_LIMIT, CELL, None) == {"displays": None}


@pytest.mark.parametrize("reason", [None, *ExitReason])
def test_only_a_reason_that_is_a_limit_has_a_limit(reason: ExitReason | None) -> None:
    assert (applied_limit(reason, COMMAND, None) is not None) is (reason in LIMIT_REASONS)


@pytest.mark.parametrize(
    ("reason", "usage", "seconds"),
    [
        (ExitReason.EXITED, USAGE, 1.5),
        (ExitReason.DAEMON_RESTARTED, None, None),
        (None, None, None),
    ],
)
def test_an_end_that_nobody_saw_has_no_usage_and_no_duration(
    reason: ExitReason | None, usage: Usage | None, seconds: float | None
) -> None:
    outcome = reason and Result(
        exit_code=0, term_signal=None, exit_reason=reason, usage=USAGE, duration_seconds=1.5
    )
    fields = end_fields(ended(outcome))
    assert (fields["usage"], fields["duration_seconds"]) == (usage, seconds)


@pytest.mark.parametrize(
    ("reason", "logged"),
    [(ExitReason.SPAWN_FAILED, None), (ExitReason.CANCELED, ExitReason.CANCELED)],
)
def test_a_refusal_is_told_by_its_code_and_not_as_a_failed_start(
    reason: ExitReason, logged: ExitReason | None
) -> None:
    outcome = Result(exit_code=None, term_signal=None, exit_reason=reason)
    record = ended(outcome)
    record.error = ResourceExhausted("full; wait")
    record.cause = None if reason is ExitReason.SPAWN_FAILED else reason
    fields = end_fields(record)
    assert (fields["exit_reason"], fields["error_code"]) == (logged, "RESOURCE_EXHAUSTED")
    fields = end_fields(ended(outcome))
    assert (fields["exit_reason"], fields["error_code"]) == (reason, None)
