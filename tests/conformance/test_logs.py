"""The daemon's log: one line for the end of each execution, and nothing that callers keep to
themselves."""

from __future__ import annotations

import json
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from .target import REPOSITORY, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .target import Target

FOREVER = "sleep 600"
LOG_SECONDS = 20.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
PAGE = (REPOSITORY / "docs" / "reference" / "logs.md").read_text()

Ends = list[dict[str, Any]]


def whole_lines(target: Target) -> list[str]:
    """The daemon may be in the middle of the last line."""
    return target.log_text().rpartition("\n")[0].splitlines()


def lines_of(target: Target) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(target) if line.startswith("{")]


@pytest.fixture
def ends_of(target: Target) -> Callable[[str], Ends]:
    """The lines with the end of an execution, once there is one and another line after that."""
    if not target.log:
        pytest.skip("the log of the daemon is not known (EXECD_LOG)")

    def find(execution_id: str) -> Ends:
        return [line for line in lines_of(target) if line.get("execution_id") == execution_id]

    def wait(execution_id: str) -> Ends:
        wait_until(lambda: find(execution_id), LOG_SECONDS, "the end is in the log")
        last = f"last-{secrets.token_hex(8)}"
        httpx.get(f"{target.url}/exists/x", headers={"X-Request-ID": last}, trust_env=False)
        wait_until(lambda: last in target.log_text(), LOG_SECONDS, "later lines are in the log")
        return find(execution_id)

    return wait


def documented(heading: str) -> set[str]:
    """The fields in the tables of a section of the page; the first section has no heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2] if heading else PAGE
    cells = re.findall(r"^\| (`.*?) \|", section.split("\n## ")[0], re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"command": "exit 3"}, {"exit_reason": "exited", "exit_code": 3, "limit": None}),
        (
            {"command": FOREVER, "timeout_seconds": 0.25},
            {"exit_reason": "timeout", "limit": {"timeout_seconds": 0.25}},
        ),
        (
            {"command": "while :; do :; done", "limits": {"cpu_seconds": 1}},
            {"exit_reason": "cpu_limit", "limit": {"cpu_seconds": 1}},
        ),
        ({"argv": ["no-such-program"]}, {"exit_reason": "spawn_failed", "exit_code": 127}),
    ],
)
def test_end_of_a_command_is_in_the_line_of_its_request(
    client: httpx.Client,
    ends_of: Callable[[str], Ends],
    fields: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    headers = {"X-Request-ID": secrets.token_hex(8), "traceparent": TRACEPARENT}
    done = client.post("/v1/executions", json=fields, headers=headers).json()
    (line,) = ends_of(done["id"])
    same = {name: done[name] for name in ("exit_code", "duration_seconds", "usage")}
    expected = {
        "message": "request",
        "path": "/v1/executions",
        "http_status": 200,
        "request_id": headers["X-Request-ID"],
        "trace_id": TRACE,
        "dialect": "v1",
        "session_id": None,
        **same,
        **expected,
    }
    assert {name: line[name] for name in expected} == expected
    assert line["request_seconds"] > 0


def test_one_grep_finds_what_ran_out_of_memory(
    client: httpx.Client, target: Target, ends_of: Callable[[str], Ends]
) -> None:
    hog = "b = bytearray(300 << 20)\nb[::4096] = b'x' * len(b[::4096])\nimport time; time.sleep(60)"
    limits = {"memory_bytes": 100 << 20}
    made = [
        client.post(
            "/v1/executions", json={"argv": ["python3", "-c", hog], "limits": limits}
        ).json(),
        client.post("/v1/code", json={"code": hog, "limits": limits}).json(),
    ]
    for done in made:
        assert len(ends_of(done["id"])) == 1
    found = [
        json.loads(line) for line in whole_lines(target) if '"exit_reason":"memory_limit"' in line
    ]
    mine = [line for line in found if line["execution_id"] in {done["id"] for done in made}]
    assert [line["limit"] for line in mine] == [limits, limits]
    assert mine[1]["session_id"] == made[1]["session_id"]
    assert all(line["usage"]["peak_tree_bytes"] > 100 << 20 for line in mine[:1])


def test_end_of_an_execution_that_outlives_its_request_has_a_line_of_its_own(
    client: httpx.Client, target: Target, ends_of: Callable[[str], Ends]
) -> None:
    request_id = secrets.token_hex(8)
    headers = {"X-Request-ID": request_id, "traceparent": TRACEPARENT}
    detached = {"command": FOREVER, "detach": True}
    soft = {"command": FOREVER, "soft_timeout_seconds": 0.1}
    for fields in (detached, soft):
        made = client.post("/v1/executions", json=fields, headers=headers)
        assert made.status_code == 202
        path = f"/v1/executions/{made.json()['id']}"
        client.post(f"{path}/kill")
        (line,) = ends_of(made.json()["id"])
        assert (line["message"], line["exit_reason"]) == ("execution", "canceled")
        assert (line["request_id"], line["trace_id"]) == (request_id, TRACE)
        assert "path" not in line
    name = f"left-{secrets.token_hex(8)}"
    body = json.dumps({"command": FOREVER, "id": name, "on_disconnect": "detach"}).encode()
    host, _, port = target.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            request_bytes("POST", "/v1/executions", body, {"Content-Type": "application/json"})
        )
        wait_until(
            lambda: client.get(f"/v1/executions/{name}").status_code == 200, 20, "it is known"
        )
    client.delete(f"/v1/executions/{name}")
    (line,) = ends_of(name)
    assert (line["message"], line["exit_reason"]) == ("execution", "canceled")


def test_end_of_every_form_of_a_run_is_logged_once(
    client: httpx.Client, ends_of: Callable[[str], Ends]
) -> None:
    ids = {
        client.post("/execute", json={"command": "true"}).json()["execution_id"]: "python_runtime"
    }
    session = client.post("/v1/sessions").json()["id"]
    cell = f"/v1/sessions/{session}/execute"
    for path, body in (
        ("/v1/executions", {"command": "true", "session_id": session}),
        (cell, {"code": "1"}),
        (cell, {"code": "1 / 0", "detach": True}),
        ("/v1/code", {"code": "1"}),
    ):
        ids[client.post(path, json=body).json()["id"]] = "v1"
        accept = {"Accept": "application/x-ndjson"}
        with client.stream("POST", path, json=body, headers=accept) as answer:
            events = [json.loads(line) for line in answer.iter_lines() if line]
        assert events[-1]["event"] == "exited"
        ids[events[-1]["id"]] = "v1"
    key = {"Idempotency-Key": secrets.token_hex(8)}
    for _ in range(2):  # one run
        made = client.post("/v1/executions", json={"command": "true"}, headers=key).json()
        ids[made["id"]] = "v1"
    for execution_id, dialect in ids.items():
        (line,) = ends_of(execution_id)
        assert line["dialect"] == dialect
    client.delete(f"/v1/sessions/{session}")


def test_log_has_neither_commands_nor_environment_nor_output(
    client: httpx.Client, target: Target, ends_of: Callable[[str], Ends]
) -> None:
    secret = secrets.token_hex(16)
    fields = {"env": {"WORD": secret}, "limits": {"memory_bytes": 900 << 20}}
    for body in (
        {"command": f"echo {secret}; echo $WORD >&2", **fields},
        {"argv": [f"/no/such/{secret}"], **fields},
        {"command": f"echo {secret}; {FOREVER}", "timeout_seconds": 0.2, **fields},
    ):
        ends_of(client.post("/v1/executions", json=body).json()["id"])
    ends_of(client.post("/v1/code", json={"code": f"1 / 0  # {secret}"}).json()["id"])
    ends_of(client.post("/execute", json={"command": f"kill $$ {secret}"}).json()["execution_id"])
    assert secret not in target.log_text()


def test_fields_of_the_log_are_those_of_its_page(
    client: httpx.Client, target: Target, ends_of: Callable[[str], Ends]
) -> None:
    always, of_requests, of_ends = map(documented, ("", "Requests", "Ends of executions"))
    made = client.post("/v1/executions", json={"command": "true"}).json()
    (merged,) = ends_of(made["id"])
    assert merged.keys() == always | of_requests | of_ends
    made = client.post("/v1/executions", json={"command": "sleep 0.2", "detach": True}).json()
    (own,) = ends_of(made["id"])
    assert own.keys() == always | of_ends | {"request_id"}, "as the page says below the table"
    for line in lines_of(target):
        if line["message"] == "request" and "execution_id" not in line:
            assert line.keys() == always | of_requests
    row = next(row for row in PAGE.splitlines() if row.startswith("| `usage` |"))
    assert set(re.findall(r"`(\w+)`", row)) == {"usage", *own["usage"]}
