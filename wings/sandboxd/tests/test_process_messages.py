from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.output.log import Excerpt
from execd.errors import InvalidArgument, NotFound, PermissionDenied
from execd.model import NO_ORIGIN, ExitReason, Result, TerminalSize, Truncation
from execd_sandboxd import process_messages, process_pb2


def result(exit_reason: ExitReason = ExitReason.EXITED, **fields: object) -> Result:
    known = {"exit_code": None, "term_signal": None} | fields
    return Result(exit_reason=exit_reason, **known)  # type: ignore[arg-type]


def test_command_has_the_words_and_the_variables_of_the_request() -> None:
    config = process_pb2.ProcessConfig(command=["echo", "a b"], env_vars={"X": "1"})
    command = process_messages.to_command(config, "sub", NO_ORIGIN, None)
    assert command.program.argv == ("echo", "a b")
    assert (command.cwd, command.env) == ("sub", {"X": "1"})
    assert (command.timeout_seconds, command.total_seconds) == (math.inf, None)


def test_deadline_bounds_the_run_and_the_wait_for_a_place() -> None:
    config = process_pb2.ProcessConfig(command=["true"])
    command = process_messages.to_command(config, None, NO_ORIGIN, 2.5)
    assert (command.timeout_seconds, command.total_seconds) == (2.5, 2.5)


def test_command_without_words_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"config\.command"):
        process_messages.to_command(process_pb2.ProcessConfig(), None, NO_ORIGIN, None)


def test_terminal_without_a_size_has_80_columns_and_24_rows() -> None:
    assert process_messages.terminal_size(0, 0) == TerminalSize(cols=80, rows=24)
    assert process_messages.terminal_size(100, 30) == TerminalSize(cols=100, rows=30)


@pytest.mark.parametrize(("cols", "rows", "field"), [(65536, 1, "cols"), (1, 65536, "rows")])
def test_terminal_larger_than_the_kernel_knows_is_refused(cols: int, rows: int, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        process_messages.terminal_size(cols, rows)


@pytest.mark.parametrize("number", [2, 9, 15])
def test_signals_of_the_contract_have_their_numbers(number: int) -> None:
    assert process_messages.signal_number(process_pb2.Signal.Name(number) and number) == number


@pytest.mark.parametrize("number", [0, 1, 64])
def test_other_signals_are_refused(number: int) -> None:
    with pytest.raises(InvalidArgument, match="signal"):
        process_messages.signal_number(number)  # type: ignore[arg-type]


def test_exit_code_is_the_program_s_or_minus_one() -> None:
    assert process_messages.exit_code(result(exit_code=7)) == 7
    assert process_messages.exit_code(result(ExitReason.SIGNALED, term_signal=9)) == -1
    assert process_messages.exit_code(result(ExitReason.CANCELED)) == -1


@pytest.mark.parametrize(
    ("code", "kind"), [(127, NotFound), (126, PermissionDenied), (125, InvalidArgument)]
)
def test_program_that_cannot_be_started_is_an_error(code: int, kind: type[Exception]) -> None:
    failed = result(ExitReason.SPAWN_FAILED, stand_in_exit_code=code, message="why")
    error = process_messages.failed_start(failed)
    assert isinstance(error, kind)
    assert str(error) == "why"
    assert process_messages.failed_start(result(exit_code=127)) is None


def test_end_by_execd_is_a_line_and_an_end_of_the_program_s_own_is_none() -> None:
    assert process_messages.end_line(result(exit_code=1)) == b""
    assert process_messages.end_line(result(ExitReason.SIGNALED, term_signal=9)) == b""
    timeout = result(ExitReason.TIMEOUT, term_signal=15, message="over")
    assert process_messages.end_line(timeout) == b"[execd: timeout (over)]\n"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_streams_share_the_room_of_a_reply_and_waste_none(stdout: int, stderr: int) -> None:
    limits = process_messages.output_limits(stdout, stderr)
    total = process_messages.MAX_OUTPUT_BYTES
    assert sum(limits) <= total
    for limit_bytes, size_bytes in zip(limits, (stdout, stderr), strict=True):
        assert limit_bytes >= min(size_bytes, total // 2)
    if stdout + stderr <= total:
        assert limits == (stdout, stderr)


def test_output_with_a_gap_says_how_many_bytes_are_omitted() -> None:
    cut = Truncation(total_bytes=100, head_bytes=2, omitted_bytes=96)
    text = process_messages.output_bytes(Excerpt(b"ab", b"yz", cut))
    assert text == b"ab\n[execd: 96 bytes omitted]\nyz"
    assert process_messages.output_bytes(Excerpt(b"\xff\0", b"", None)) == b"\xff\0"
