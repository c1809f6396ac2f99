from __future__ import annotations

import pytest

from execd.engine.executions.end_log import applied_limit, end_fields
from execd.errors import ResourceExhausted
from execd.model import Command, DiskExcess, ExitReason, Limits, Program, Result, Usage

MIB = 1 << 20
LIMITS = Limits(
    cpu_seconds=3, memory_bytes=200 * MIB, processes=4, file_size_bytes=1000, log_bytes=100
)
COMMAND = Command(
    program=Program(argv=("true",), display="true"),
    timeout_seconds=2.0,
    no_output_timeout_seconds=0.25,
    limits=LIMITS,
)
CELL = Command(program=Program(argv=(), display="1", is_code=True), limits=LIMITS)
USAGE = Usage(user_seconds=0.5)
LIMIT_REASONS = {reason for reason in ExitReason if reason.endswith(("_limit", "timeout"))}


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
    fields = end_fields("x", None, COMMAND, outcome, None)
    assert (fields["usage"], fields["duration_seconds"]) == (usage, seconds)


@pytest.mark.parametrize(
    ("reason", "logged"),
    [(ExitReason.SPAWN_FAILED, None), (ExitReason.CANCELED, ExitReason.CANCELED)],
)
def test_a_refusal_is_told_by_its_code_and_not_as_a_failed_start(
    reason: ExitReason, logged: ExitReason | None
) -> None:
    outcome = Result(exit_code=None, term_signal=None, exit_reason=reason)
    fields = end_fields("x", None, COMMAND, outcome, None, ResourceExhausted("full; wait"))
    assert (fields["exit_reason"], fields["error_code"]) == (logged, "RESOURCE_EXHAUSTED")
    fields = end_fields("x", None, COMMAND, outcome, None)
    assert (fields["exit_reason"], fields["error_code"]) == (reason, None)
