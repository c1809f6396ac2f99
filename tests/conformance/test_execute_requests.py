"""POST /execute: accepted requests, and the refusals of bad requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import checked
from .target import execute_bytes

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target

pytestmark = pytest.mark.one_shape

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


def test_reply_tells_more_to_those_who_look(client: httpx.Client) -> None:
    body = checked(client.post("/execute", json={"command": "exit 3"}))
    assert body["exit_reason"] == "exited"
    assert isinstance(body["execution_id"], str)
    assert body["execution_id"]
    assert body["duration_seconds"] >= 0


def test_each_execution_has_an_id_of_its_own(client: httpx.Client) -> None:
    ids = {
        checked(client.post("/execute", json={"command": "true"}))["execution_id"] for _ in range(5)
    }
    assert len(ids) == 5


@pytest.mark.parametrize("body", [{}, {"cmd": "true"}, {"timeout_seconds": 5}])
def test_missing_command_is_422(client: httpx.Client, body: dict[str, Any]) -> None:
    assert_is_422(client.post("/execute", json=body), "body", "command")


@pytest.mark.parametrize("command", [None, 3, 1.5, True, ["ls"], {"a": 1}])
def test_command_that_is_no_string_is_422(client: httpx.Client, command: object) -> None:
    assert_is_422(client.post("/execute", json={"command": command}), "body", "command")


@pytest.mark.parametrize("timeout", [0, -1, -0.5, "soon", [], {}, 1e999, "nan", "inf"])
def test_timeout_that_is_no_positive_finite_number_is_422(
    client: httpx.Client, timeout: object
) -> None:
    # json writes 1e999 as Infinity, as Python clients do.
    body = json.dumps({"command": "true", "timeout_seconds": timeout})
    assert_is_422(client.post("/execute", content=body, headers=JSON), "body", "timeout_seconds")


@pytest.mark.parametrize("timeout", [None, 5, 0.5, 2.25, 10**6, "5"])
def test_timeout_that_is_a_positive_number_or_null_is_accepted(
    client: httpx.Client, timeout: object
) -> None:
    body = checked(client.post("/execute", json={"command": "echo hi", "timeout_seconds": timeout}))
    assert body["stdout"] == "hi\n"


@pytest.mark.parametrize(
    "content", [b"{bad", b"", b"{'command': 'ls'}", b'{"command": "ls"', b"\xff\xfe"]
)
def test_body_that_is_no_json_is_422(client: httpx.Client, content: bytes) -> None:
    response = client.post("/execute", content=content, headers=JSON)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize("content", [b"[]", b'"ls"', b"3", b"null"])
def test_body_that_is_no_object_is_422(client: httpx.Client, content: bytes) -> None:
    assert_is_422(client.post("/execute", content=content, headers=JSON), "body")


def test_body_of_another_content_type_is_422(client: httpx.Client) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        response = client.post(
            "/execute", content=b"command=ls", headers={"Content-Type": content_type}
        )
        assert response.status_code == 422


def test_content_type_may_carry_a_charset(client: httpx.Client) -> None:
    response = client.post(
        "/execute",
        content=b'{"command": "echo hi"}',
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    assert checked(response)["stdout"] == "hi\n"


def test_fields_that_no_one_knows_are_ignored(client: httpx.Client) -> None:
    body = {"command": "echo hi", "env": {"A": "1"}, "cwd": "/", "whatever": None}
    assert checked(client.post("/execute", json=body))["stdout"] == "hi\n"


def test_body_may_come_in_chunks(client: httpx.Client) -> None:
    response = client.post(
        "/execute", content=iter([b'{"comm', b'and": "echo', b' hi"}']), headers=JSON
    )
    assert checked(response)["stdout"] == "hi\n"


def test_lone_surrogate_in_a_command_is_the_caller_s_fault(client: httpx.Client) -> None:
    response = client.post("/execute", content=b'{"command": "echo \\ud800"}', headers=JSON)
    assert response.status_code == 422


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
