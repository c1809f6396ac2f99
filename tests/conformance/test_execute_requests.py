"""POST /execute: accepted requests, and the refusals of bad requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .conftest import checked
from .target import execute_bytes

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target

JSON = {"Content-Type": "application/json"}


def assert_is_422(response: httpx.Response, *where: str | int) -> None:
    """The shape known from FastAPI: a list of faults, each with a place in the request."""
    assert response.status_code == 422, response.text
    faults = response.json()["detail"]
    assert isinstance(faults, list)
    for fault in faults:
        assert isinstance(fault["msg"], str)
        assert isinstance(fault["type"], str)
        assert fault["msg"]
        assert fault["type"]
        assert "input" in fault
    assert [*where] in [fault["loc"] for fault in faults]


def test_command_runs_and_its_reply_has_the_known_fields(client: httpx.Client) -> None:
    response = client.post(
        "/execute", json={"command": "echo hi | tr a-z A-Z; echo no >&2; exit 3"}
    )
    body = checked(response)
    assert (body["stdout"], body["stderr"], body["exit_code"], body["timed_out"]) == (
        "HI\n",
        "no\n",
        3,
        False,
    )


def test_each_execution_has_an_id_of_its_own(client: httpx.Client) -> None:
    ids = {
        checked(client.post("/execute", json={"command": "true"}))["execution_id"] for _ in range(5)
    }
    assert len(ids) == 5


@pytest.mark.parametrize("body", [{}, {"cmd": "true"}, {"timeout_seconds": 5}])
def test_missing_command_is_422(client: httpx.Client, body: dict[str, Any]) -> None:
    assert_is_422(client.post("/execute", json=body), "body", "command")


def test_body_may_come_in_chunks(client: httpx.Client) -> None:
    response = client.post(
        "/execute", content=iter([b'{"comm', b'and": "echo', b' hi"}']), headers=JSON
    )
    assert checked(response)["stdout"] == "hi\n"


def test_nul_in_a_command_is_a_failed_command(run: Run) -> None:
    ran = run("echo a\0b")
    assert ran.exit_code != 0
    assert ran.stderr.startswith("Failed to execute command: ")
    assert ran.stdout == ""


def test_body_over_16_mib_is_413(client: httpx.Client) -> None:
    response = client.post("/execute", content=b" " * (17 << 20), headers=JSON)
    assert response.status_code == 413


def test_request_id_that_repeats_while_its_command_runs_joins_it(
    target: Target, run: Run, folder: str
) -> None:
    command = f"echo ran >> {folder}/runs; sleep 3; wc -l < {folder}/runs"
    retry = execute_bytes(command, X_Request_ID="feedfacefeedface")
    first, second = target.request_at_once([retry, retry])
    assert (first.http_status, second.http_status) == (200, 200)
    assert first.json()["execution_id"] == second.json()["execution_id"]
    assert run.out(f"cat {folder}/runs") == "ran\n"


def test_request_id_that_repeats_after_its_reply_arrived_runs_again(run: Run, folder: str) -> None:
    for _ in range(2):
        run(f"echo ran >> {folder}/runs", headers={"X-Request-ID": "feedfacecafebeef"})
    assert run.out(f"cat {folder}/runs") == "ran\nran\n"


def test_request_id_with_another_command_runs_it(target: Target) -> None:
    answers = target.request_at_once(
        [
            execute_bytes(f"sleep 0.5; echo {word}", X_Request_ID="deadbeefdeadbeef")
            for word in ("one", "two")
        ]
    )
    assert [answer.json()["stdout"] for answer in answers] == ["one\n", "two\n"]
