"""Large outputs: exact, or truncated with an honest marker. The daemon reads the pipes of commands
in the same way in both shapes, so one shape gets the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import Ran, python
from .target import ANSWER_SECONDS, LARGE, SLACK_SECONDS, execute_bytes, request_bytes

if TYPE_CHECKING:
    from .conftest import Run
    from .target import Target

MIB = 1 << 20
LINE = b"0123456789abcde\n"


def assert_honest(ran: Ran, stream: str, whole: bytes) -> None:
    """The reply holds the head and the tail of ``whole`` around a marker; the marker gives the
    exact size of the gap."""
    text = ran.body[stream].encode()
    facts = ran.truncation(stream)
    assert facts is not None
    head, omitted, total = facts["head_bytes"], facts["omitted_bytes"], facts["total_bytes"]
    tail = total - head - omitted
    assert total == len(whole)
    assert head > 0
    assert tail > 0
    assert omitted > 0
    assert text.startswith(whole[:head])
    assert text.endswith(whole[-tail:])
    marker = text[head : len(text) - tail]
    assert 0 < len(marker) < 200
    assert str(omitted).encode() in marker
    assert len(text) <= MIB + 200


def test_output_below_the_reply_limit_is_whole(run: Run) -> None:
    ran = run("yes 0123456789abcde | head -c 1000000")
    assert ran.stdout.encode() == (LINE * 62_500)
    assert ran.truncation("stdout") is None


def test_output_over_the_reply_limit_keeps_head_and_tail_and_says_what_is_missing(run: Run) -> None:
    ran = run("seq 1 700000")
    assert_honest(ran, "stdout", "".join(f"{n}\n" for n in range(1, 700_001)).encode())
    assert ran.exit_code == 0


def test_streams_are_truncated_each_on_its_own(run: Run) -> None:
    ran = run("yes 0123456789abcde | head -c 3000000 >&2; echo whole")
    assert ran.stdout == "whole\n"
    assert ran.truncation("stdout") is None
    assert_honest(ran, "stderr", LINE * 187_500)


def test_both_streams_may_flood_at_once(run: Run) -> None:
    ran = run(
        "yes 0123456789abcde | head -c 4000000 >&2 & yes 0123456789abcde | head -c 4000000; wait"
    )
    for stream in ("stdout", "stderr"):
        assert_honest(ran, stream, LINE * 250_000)


def test_cut_in_the_middle_of_a_character_makes_no_garbage(run: Run) -> None:
    ran = run.python("print('日本語🐍' * 300_000)")
    assert ran.truncation("stdout") is not None
    head, _, rest = ran.stdout.partition("\n")
    assert len(head + rest) > 100_000
    # at most the characters cut at the two edges, if they are shown at all
    assert ran.stdout.count("\ufffd") <= 4


def test_endless_output_is_ended_at_the_limit_and_truncated_honestly(target: Target) -> None:
    # A busy machine makes the silent command late as well; the flood may add nothing to the delay.
    flood, silent = target.request_at_once(
        [execute_bytes(command, timeout_seconds=10) for command in ("yes", "exec sleep 1000")]
    )
    assert flood.http_status == 200
    ran = Ran(flood.json(), flood.elapsed_seconds)
    assert ran.exit_code == 124
    assert ran.timed_out
    due_seconds = max(10, silent.elapsed_seconds)
    assert ran.elapsed_seconds < due_seconds + ANSWER_SECONDS + SLACK_SECONDS
    facts = ran.truncation("stdout")
    assert facts is not None
    assert facts["total_bytes"] > 10 * MIB
    assert facts["omitted_bytes"] > facts["total_bytes"] - 2 * MIB
    head = ran.stdout[: facts["head_bytes"]]
    assert head == "y\n" * (len(head) // 2)
    assert ran.stderr == "Command timed out after 10 seconds"


def test_flood_does_not_hold_up_others(run: Run, target: Target) -> None:
    quick = [request_bytes("GET", "/"), execute_bytes("echo hi")]
    answers = target.request_at_once([*[execute_bytes("yes", timeout_seconds=4)] * 4, *quick])
    assert [answer.http_status for answer in answers] == [200] * 6
    assert answers[4].elapsed_seconds < 1 + SLACK_SECONDS
    assert answers[5].elapsed_seconds < 2 + SLACK_SECONDS


def test_daemon_does_not_grow_with_the_output_of_its_commands(run: Run, target: Target) -> None:
    if target.pid is None:
        pytest.skip("the daemon's pid is not known here: its memory cannot be seen (EXECD_PID)")
    run("yes | head -c 50000000", timeout_seconds=60)
    before = target.resident_bytes()
    for _ in range(3):
        run("yes", timeout_seconds=2)
    assert target.resident_bytes() - before < 16 * MIB


@pytest.mark.skipif(not LARGE, reason="takes a minute: set EXECD_CONFORMANCE_LARGE=1")
def test_ten_gigabytes_are_counted_exactly(run: Run, target: Target) -> None:
    before = target.resident_bytes() if target.pid else 0
    ran = run("head -c 10000000000 /dev/zero", timeout_seconds=290)
    assert ran.exit_code == 0
    facts = ran.truncation("stdout")
    assert facts is not None
    assert facts["total_bytes"] == 10_000_000_000
    assert not target.pid or target.resident_bytes() - before < 16 * MIB


def test_many_small_writes_arrive_in_order(run: Run) -> None:
    program = "import os\nfor n in range(20000): os.write(1, b'%d\\n' % n)"
    assert run(python(program)).stdout == "".join(f"{n}\n" for n in range(20_000))
