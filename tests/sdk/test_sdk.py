"""The behaviour of execd towards the SDK's users, in each version in the field, sync and async,
with and without a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ..conformance.target import ANSWER_SECONDS, SLACK_SECONDS
from .conftest import drive

if TYPE_CHECKING:
    from pathlib import Path

    from ..conformance.target import Target

both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
both_connections = pytest.mark.parametrize("connection", ["direct", "in-cluster"])


def assert_programs_ran(found: dict[str, Any]) -> None:
    fib, aggregation = found["compute_fib.py"], found["json_aggregation.py"]
    assert (fib["stdout"], fib["stderr"], fib["exit_code"]) == ("fib(20) = 6765\n", "", 0)
    assert (aggregation["stdout"], aggregation["exit_code"]) == ('{"mean": 11.0, "max": 25}\n', 0)


@both_kinds
def test_programs_of_the_kuberay_driver_run(interpreter: Path, target: Target, kind: str) -> None:
    assert_programs_ran(drive(interpreter, target, "driver", kind, "in-cluster"))


@both_kinds
@both_connections
def test_commands_run(interpreter: Path, target: Target, kind: str, connection: str) -> None:
    found = drive(interpreter, target, "commands", kind, connection)
    assert [(r["stdout"], r["exit_code"]) for r in found.values()] == [
        ("HI\n", 0),
        ("out\n", 7),
        ("a\r\n\ufffd", 0),
        ("", 127),
    ]
    assert [r["stderr"] for r in found.values()][1] == "err\n"


@both_kinds
def test_files_are_written_read_listed_and_found(
    interpreter: Path, target: Target, version: str, kind: str
) -> None:
    if version == "0.4.6":
        assert drive(interpreter, target, "basenames", kind) == {"flat": "flat", "nested": False}
        return
    assert drive(interpreter, target, "files", kind) == {
        "nested": True,
        "text": "second, naïve",
        "seen by a command": "second, naïvenested\ntext.txt\n",
        "list": [
            ["nested", "directory", pytest.approx(4096, abs=1 << 20)],
            ["text.txt", "file", 14],
        ],
        "exists": [True, True, False, True],
    }


@both_kinds
def test_names_survive_the_way_there_and_back(interpreter: Path, target: Target, kind: str) -> None:
    seen = drive(interpreter, target, "names", kind)
    assert seen["found"] == {name: [True, name] for name in seen["names"]}
    assert seen["listed"] == sorted(seen["names"])


@both_kinds
@both_connections
def test_base_dir_is_listed_and_exists(
    interpreter: Path, target: Target, kind: str, connection: str
) -> None:
    seen = drive(interpreter, target, "base_dir", kind, connection)
    for names in seen["list"].values():
        assert "in-base.txt" in names
    assert seen["exists"] == {".": True, "": True, "/": True}


@both_kinds
def test_missing_file_is_404_at_once_and_not_tried_again(
    interpreter: Path, target: Target, kind: str
) -> None:
    for http_status, elapsed_seconds in drive(interpreter, target, "missing", kind).values():
        assert http_status == 404
        assert elapsed_seconds < 2 + SLACK_SECONDS


@both_kinds
def test_next_step_is_served_after_a_program_deleted_everything(
    interpreter: Path, target: Target, kind: str
) -> None:
    seen = drive(interpreter, target, "wiped", kind)
    assert seen["destroyed"]["exit_code"] == 1
    assert (seen["next"]["stdout"], seen["next"]["exit_code"]) == ("55\n", 0)


@both_kinds
def test_failing_command_runs_once(interpreter: Path, target: Target, kind: str) -> None:
    assert drive(interpreter, target, "once", kind) == {"runs": "4"}


@both_kinds
def test_command_timeout_of_the_sdk_ends_the_command_and_keeps_its_output(
    newest: Path, target: Target, kind: str
) -> None:
    seen = drive(newest, target, "timeouts", kind)
    assert (seen["exit_code"], seen["timed_out"], seen["stdout"]) == (124, True, "partial\n")
    assert seen["stderr"] == "Command timed out after 1 seconds"
    assert 1 <= seen["elapsed_seconds"] < 1 + 2 * ANSWER_SECONDS + SLACK_SECONDS


@both_kinds
def test_command_whose_caller_gave_up_does_not_run_on(
    newest: Path, target: Target, kind: str
) -> None:
    assert drive(newest, target, "abandoned", kind, "in-cluster") == {
        "raised": True,
        "state": "gone",
    }


@both_kinds
def test_file_objects_are_streamed_both_ways(newest: Path, target: Target, kind: str) -> None:
    seen = drive(newest, target, "streams", kind)
    assert seen["same"]
    assert seen["size"] == seen["wanted"]


@both_kinds
def test_files_of_the_sandboxd_mode(newest: Path, target: Target, kind: str) -> None:
    names = [
        "plain.txt",
        "with space.txt",
        "naïve-日本.txt",
        "it's.txt",
        'say "hi".txt',
        "100%.txt",
        "100%25.txt",
        "a;b=c&d.txt",
    ]
    assert drive(newest, target, "sandboxd_files", kind, "sandboxd") == {
        "nested": True,
        "text": "second, naïve",
        "size": 256_000,
        "streamed": True,
        "list": [
            ["nested", "directory", pytest.approx(4096, abs=1 << 20), "0755"],
            ["streamed.bin", "file", 256_000, "0644"],
            ["text.txt", "file", 14, "0644"],
        ],
        "exists": [True, True, False, True],
        "root": [True, True],
        "names": {name: name for name in names},
        "listed": True,
        "refused": {"read": 404, "outside": 403, "delete": 404, "not empty": 409},
        "deleted": True,
        "all deleted": True,
    }
