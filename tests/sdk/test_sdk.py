"""The behaviour of execd towards the SDK's users, in each version in the field, sync and async,
with and without a router."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ..conformance.target import ANSWER_SECONDS, REPOSITORY
from ..patience import patience
from .conftest import DRIVER, KINDS, drive, ports_of_sandboxd

if TYPE_CHECKING:
    from pathlib import Path

    from ..conformance.target import Target

DRIVERS = DRIVER.parent

both_kinds = pytest.mark.parametrize("kind", KINDS)
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
        assert elapsed_seconds < patience(2)


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
    assert 1 <= seen["elapsed_seconds"] < patience(1 + 2 * ANSWER_SECONDS)


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


@both_kinds
def test_commands_of_the_sandboxd_mode(newest: Path, target: Target, kind: str) -> None:
    seen = drive(newest, target, "sandboxd_commands", kind, "sandboxd")
    exit_code, timed_out, elapsed_seconds = seen.pop("late")
    assert (exit_code, timed_out) == (124, True)
    assert 1 <= elapsed_seconds < patience(1 + 2 * ANSWER_SECONDS)
    assert [(r["stdout"], r["stderr"], r["exit_code"]) for r in seen.pop("commands").values()][
        :3
    ] == [("HI\n", "", 0), ("out\n", "err\n", 7), ("a\r\n\ufffd", "", 0)]
    assert 4_000_000 < seen.pop("large") < 4 << 20
    env_and_cwd = seen.pop("env and cwd")
    assert (env_and_cwd["stdout"], env_and_cwd["exit_code"]) == ("1\nsdk-grpc\n", 0)
    assert seen == {
        "signal": -1,
        "background": "up\n",
        "size": "8388608\n",
        "refused": {
            "outside": "PERMISSION_DENIED",
            "missing": "NOT_FOUND",
            "deadline": "DEADLINE_EXCEEDED",
        },
        "left": "0\n",
    }


def test_example_of_the_page_on_dialects_runs(newest: Path, target: Target) -> None:
    page = (REPOSITORY / "wings" / "sandboxd" / "README.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    rest_port, grpc_port = ports_of_sandboxd(target)
    program = (
        "import k8s_agent_sandbox.sandbox_client as client_module\n"
        "from kubernetes_stand_in import Kubernetes\n"
        "client_module.K8sHelper = Kubernetes\n"
        + example.replace("8080", str(rest_port)).replace("9090", str(grpc_port))
    )
    ended = subprocess.run(
        [newest, "-c", program],
        cwd=DRIVERS,
        env={"PYTHONPATH": str(DRIVERS)},
        capture_output=True,
        text=True,
        timeout=patience.seconds(90),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "hello\n\nwritten by REST\n"
