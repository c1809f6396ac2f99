"""How an execution or a cell ended, as the replies of ``/v1`` tell: exit codes, messages, limits,
usage."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from .target import READ_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import Run
    from .target import Target

MIB = 1 << 20
# gVisor counts CPU time in ticks of 10 ms, and may charge the tick to a program of 5 ms.
TICK_SECONDS = 0.01 if os.environ.get("EXECD_URL") else 0.0
FOREVER = "sleep 600"


@pytest.fixture
def execute(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    def run(**fields: Any) -> dict[str, Any]:
        answer = client.post("/v1/executions", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return run


@pytest.fixture
def cell(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    def run(code: str, **fields: Any) -> dict[str, Any]:
        answer = client.post("/v1/code", json={"code": code, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return run


def in_time(
    cell: Callable[..., dict[str, Any]], code: str, fields: dict[str, Any]
) -> dict[str, Any]:
    """Run a cell. A cell over its limit is answered before its end if the machine stands still:
    then run the cell again."""
    done = cell(code, **fields)
    for _ in range(4):
        if "has not yet" in (done["message"] or ""):
            done = cell(code, **fields)
    return done


def everywhere(client: httpx.Client, done: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The execution in each form in which a caller may read the end of the execution."""
    path = f"/v1/executions/{done['id']}"
    yield done
    yield client.get(path).json()
    yield from (
        item
        for item in client.get("/v1/executions?limit=1000").json()["items"]
        if item["id"] == done["id"]
    )
    with client.stream(
        "GET", f"{path}/events", headers={"Accept": "application/x-ndjson"}
    ) as answer:
        *_, last = (json.loads(line) for line in answer.iter_lines() if line)
    assert last["event"] == "exited"
    yield last


# --- exit codes

ENDED = {143, 137}
"""SIGTERM's code, or SIGKILL's on a machine that stands still: the grace may be over first."""


@pytest.mark.parametrize(
    ("fields", "reason", "codes"),
    [
        ({"command": "exit 0"}, "exited", {0}),
        ({"command": "exit 7"}, "exited", {7}),
        ({"command": "kill -KILL $$"}, "signaled", {137}),
        ({"command": "no-such-program"}, "exited", {127}),
        ({"argv": ["no-such-program"]}, "spawn_failed", {127}),
        ({"argv": ["/etc/passwd/program"]}, "spawn_failed", {127}),
        ({"argv": ["/etc/passwd"]}, "spawn_failed", {126}),
        ({"argv": ["/tmp"]}, "spawn_failed", {126}),
        ({"command": "true", "cwd": "/no/such/directory"}, "spawn_failed", {125}),
        ({"command": FOREVER, "timeout_seconds": 0.2}, "timeout", ENDED),
        ({"command": FOREVER, "no_output_timeout_seconds": 0.2}, "no_output_timeout", ENDED),
        ({"command": f"trap '' TERM; {FOREVER} & wait", "timeout_seconds": 1.5}, "timeout", {137}),
        ({"command": "yes", "limits": {"log_bytes": 100_000}, "on_output_limit": "kill"},
         "output_limit", {137, 141, 143}),
    ],
)  # fmt: skip
def test_exit_code_is_a_number_in_every_reply_and_0_only_if_the_program_said_so(
    client: httpx.Client,
    execute: Callable[..., dict[str, Any]],
    fields: dict[str, Any],
    reason: str,
    codes: set[int],
) -> None:
    done = execute(**fields)
    for seen in everywhere(client, done):
        assert (seen["state"], seen["exit_reason"]) == ("EXITED", reason), seen
        assert seen["exit_code"] in codes, seen
        assert seen["exit_code"] == done["exit_code"]


def test_program_that_ends_in_its_grace_has_its_own_exit_code(
    client: httpx.Client, execute: Callable[..., dict[str, Any]]
) -> None:
    for _ in range(5):  # on a machine that stands still the grace may be over before the trap
        done = execute(command="trap 'exit 0' TERM; sleep 9 & wait", timeout_seconds=1.0)
        if done["exit_code"] == 0:
            break
    for seen in everywhere(client, done):
        assert (seen["state"], seen["exit_reason"], seen["exit_code"]) == ("EXITED", "timeout", 0)


def test_file_in_no_known_format_is_126(
    execute: Callable[..., dict[str, Any]], run: Run, folder: str
) -> None:
    run.out(f"cd {folder} && printf 'no program\\n' > nonsense && chmod 755 nonsense")
    done = execute(argv=[f"{folder}/nonsense"])
    assert (done["exit_code"], done["exit_reason"]) == (126, "spawn_failed")


def test_command_that_is_ended_while_it_waits_is_125(own_daemon: Callable[..., Target]) -> None:
    """One command more than the daemon runs at once: the last one waits, and is ended there."""
    daemon = own_daemon("--max-running=2")
    with httpx.Client(base_url=daemon.url, timeout=READ_SECONDS, trust_env=False) as client:
        made = [
            client.post("/v1/executions", json={"command": FOREVER, "detach": True}).json()["id"]
            for _ in range(3)
        ]
        last = client.post(f"/v1/executions/{made[-1]}/kill").json()
        assert (last["exit_reason"], last["started_at"]) == ("canceled", None)
        for seen in everywhere(client, last):
            assert (seen["exit_code"], seen["signal"]) == (125, None)
            assert seen["usage"]["max_rss_bytes"] is None


@pytest.mark.parametrize(
    ("code", "fields", "reason", "codes"),
    [
        ("1 + 1", {}, "exited", {0}),
        ("1 / 0", {}, "exited", {1}),
        ("raise SystemExit(0)", {}, "exited", {0}),
        ("raise SystemExit(7)", {}, "exited", {7}),
        ("raise SystemExit('words')", {}, "exited", {1}),
        ("import time; time.sleep(600)", {"timeout_seconds": 0.5}, "timeout", {1}),
        (
            "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('well')",
            {"timeout_seconds": 0.5}, "timeout", {1},
        ),
        ("import os; os._exit(0)", {}, "worker_died", {125}),
        ("import os; os._exit(3)", {}, "worker_died", {3}),
        ("import os; os.abort()", {}, "worker_died", {134}),
    ],
)  # fmt: skip
def test_exit_code_of_a_cell_is_0_only_if_the_cell_ran_to_its_end(
    client: httpx.Client,
    cell: Callable[..., dict[str, Any]],
    code: str,
    fields: dict[str, Any],
    reason: str,
    codes: set[int],
) -> None:
    done = in_time(cell, code, fields)
    assert (done["exit_code"] == 0) is (done["status"] == "success"), done
    for seen in everywhere(client, done):
        assert (seen["exit_reason"], seen["exit_code"]) in {(reason, code) for code in codes}, seen


# --- messages

HOG = f"b = bytearray({400 * MIB})\nb[::4096] = b'x' * len(b[::4096])\nimport time; time.sleep(60)"


@pytest.mark.both_shapes
@pytest.mark.parametrize(
    ("reason", "message", "fields"),
    [
        ("signaled", "SIGSEGV ended the program", {"command": "kill -SEGV $$"}),
        (
            "timeout",
            "the run time limit of 0.5 s was over",
            {"command": FOREVER, "timeout_seconds": 0.5},
        ),
        (
            "no_output_timeout",
            "the program was silent for 0.5 s",
            {"command": FOREVER, "no_output_timeout_seconds": 0.5},
        ),
        (
            "cpu_limit",
            r"a process used( up the allowed|.* s of the allowed) 1 s of CPU time",
            {"command": "while :; do :; done", "limits": {"cpu_seconds": 1}},
        ),
        (
            "file_size_limit",
            r"a file reached the allowed 1000 bytes",
            {"command": "head -c 100000 /dev/zero > big", "limits": {"file_size_bytes": 1000}},
        ),
        (
            "process_limit",
            r"the tree had ([5-9]|1\d) processes and threads of the allowed 4",
            {
                "command": "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait",
                "limits": {"processes": 4},
            },
        ),
        (
            "output_limit",
            r"stdout has [\d.]+ [KM]iB of the allowed 195.312 KiB",
            {"command": "yes", "limits": {"log_bytes": 200_000}, "on_output_limit": "kill"},
        ),
        (
            "memory_limit",
            r"the tree used (1[5-9]\d|[234]\d\d) MiB of the allowed 150 MiB",
            {"argv": ["python3", "-c", HOG], "limits": {"memory_bytes": 150 * MIB}},
        ),
        ("spawn_failed", r".*No such file.*", {"argv": ["/no/such/program"]}),
    ],
)
def test_message_says_in_words_what_ended_a_command(
    client: httpx.Client,
    execute: Callable[..., dict[str, Any]],
    reason: str,
    message: str,
    fields: dict[str, Any],
) -> None:
    done = execute(**fields)
    for seen in everywhere(client, done):
        assert seen["exit_reason"] == reason
        assert re.fullmatch(message, seen["message"]), seen["message"]


def test_message_is_null_if_nothing_but_the_program_ended_it(
    execute: Callable[..., dict[str, Any]], cell: Callable[..., dict[str, Any]]
) -> None:
    for done in (execute(command="exit 3"), cell("1 / 0"), cell("raise SystemExit(4)")):
        assert (done["exit_reason"], done["message"]) == ("exited", None)


def test_message_of_a_killed_command_names_the_caller(
    client: httpx.Client, execute: Callable[..., dict[str, Any]]
) -> None:
    made = client.post("/v1/executions", json={"command": FOREVER, "detach": True}).json()
    assert made["message"] is None
    done = client.post(f"/v1/executions/{made['id']}/kill").json()
    assert (done["exit_reason"], "caller" in done["message"]) == ("canceled", True)


@pytest.mark.both_shapes
@pytest.mark.parametrize(
    ("reason", "message", "code", "fields"),
    [
        (
            "timeout",
            r"the run time limit of 0\.5 s was over",
            "import time; time.sleep(600)",
            {"timeout_seconds": 0.5},
        ),
        (
            "memory_limit",
            r"the tree used (2[0-9]\d|[34]\d\d) MiB of the allowed 200 MiB.*",
            HOG,
            {"limits": {"memory_bytes": 200 * MIB}},
        ),
        (
            "cpu_limit",
            r"a process used.* 1 s of CPU time",
            "while True: pass",
            {"limits": {"cpu_seconds": 1}},
        ),
        ("worker_died", r".*exit code 3.*", "import os; os._exit(3)", {}),
    ],
)
def test_message_says_in_words_what_ended_a_cell(
    cell: Callable[..., dict[str, Any]],
    reason: str,
    message: str,
    code: str,
    fields: dict[str, Any],
) -> None:
    done = in_time(cell, code, fields)
    assert done["exit_reason"] == reason
    assert re.fullmatch(message, done["message"]), done["message"]


# --- limits

LIMITS = {
    "cpu_seconds",
    "memory_bytes",
    "processes",
    "address_space_bytes",
    "file_size_bytes",
    "open_files",
    "reply_bytes",
    "log_bytes",
    "timeout_seconds",
}


def test_limits_that_apply_are_told(
    client: httpx.Client, execute: Callable[..., dict[str, Any]]
) -> None:
    """The daemon's own, and those of the request where they are smaller."""
    own = execute(command="true")
    limits = own["limits"]
    assert limits.keys() == LIMITS
    assert limits["timeout_seconds"] > 0
    for name in ("processes", "open_files", "reply_bytes", "log_bytes"):
        assert limits[name] > 0, name
    asked = {"memory_bytes": 900 * MIB, "processes": 3, "open_files": 10**9}
    done = execute(command="ulimit -n", limits={**asked, "cpu_seconds": 77})
    expected = {**limits, "memory_bytes": 900 * MIB, "processes": 3, "cpu_seconds": 77}
    for seen in everywhere(client, done):
        assert seen["limits"] == expected
    assert done["stdout"] == f"{limits['open_files']}\n", "so it is for the program"
    assert execute(command="true", timeout_seconds=1.5)["limits"]["timeout_seconds"] == 1.5


def test_limits_of_a_cell_are_those_of_its_session(client: httpx.Client) -> None:
    made = client.post("/v1/sessions", json={"limits": {"cpu_seconds": 50}}).json()
    path = f"/v1/sessions/{made['id']}"
    try:
        assert made["limits"].keys() == LIMITS
        assert made["limits"]["cpu_seconds"] == 50
        assert client.get(path).json()["limits"] == made["limits"]
        done = client.post(f"{path}/execute", json={"code": "1", "timeout_seconds": 2.5}).json()
        expected = {**made["limits"], "timeout_seconds": 2.5}
        for seen in everywhere(client, done):
            assert seen["limits"] == expected
    finally:
        client.delete(path)


@pytest.mark.parametrize("route", ["execute", "code"])
def test_limits_of_an_existing_session_cannot_be_changed_by_a_cell(
    client: httpx.Client, route: str
) -> None:
    made = client.post("/v1/sessions").json()
    limits = {"limits": {"cpu_seconds": 5}}
    try:
        if route == "execute":
            answer = client.post(
                f"/v1/sessions/{made['id']}/execute?create=true", json={"code": "1", **limits}
            )
        else:
            fields = {"code": "1", "session_id": made["id"], **limits}
            answer = client.post("/v1/code", json=fields)
        body = answer.json()
        assert (answer.status_code, body["details"]["field"]) == (400, "limits")
        assert body["message"].startswith("limits: the limits belong to the session")
        assert "leave limits out" in body["message"]
    finally:
        client.delete(f"/v1/sessions/{made['id']}")


@pytest.mark.parametrize("route", ["execute", "code"])
def test_limits_of_a_cell_are_those_of_the_session_that_is_made_for_it(
    client: httpx.Client, route: str
) -> None:
    session_id = f"limited-{secrets.token_hex(8)}"
    fields = {"code": "1", "limits": {"cpu_seconds": 5}}
    try:
        if route == "execute":
            path = f"/v1/sessions/{session_id}/execute?create=true"
            done = client.post(path, json=fields).json()
        else:
            done = client.post("/v1/code", json={**fields, "session_id": session_id}).json()
        assert done["limits"]["cpu_seconds"] == 5
        shown = client.get(f"/v1/sessions/{session_id}").json()
        assert shown["limits"]["cpu_seconds"] == 5
    finally:
        client.delete(f"/v1/sessions/{session_id}")


# --- what is not known


def test_usage_of_a_program_that_never_ran_is_not_invented(
    execute: Callable[..., dict[str, Any]],
) -> None:
    usage = execute(argv=["/no/such/program"])["usage"]
    for name in ("max_rss_bytes", "peak_tree_bytes", "processes"):
        assert usage[name] is None, name
    assert usage["output_bytes"] == 0


def test_usage_that_nothing_measured_is_null(execute: Callable[..., dict[str, Any]]) -> None:
    """Scans may see some of the commands, and then tell figures above zero."""
    for _ in range(20):
        done = execute(argv=["true"])
        for name in ("max_rss_bytes", "peak_tree_bytes", "processes"):
            assert done["usage"][name] is None or done["usage"][name] > 0, done["usage"]


@pytest.mark.both_shapes
def test_memory_of_a_tiny_program_is_not_the_wardens(
    execute: Callable[..., dict[str, Any]],
) -> None:
    for _ in range(20):
        figure = execute(argv=["true"])["usage"]["max_rss_bytes"]
        assert figure is None or figure < 6 * MIB
    program = f"b = bytearray({60 * MIB})\nb[::4096] = b'x' * len(b[::4096])"
    figure = execute(command=f"python3 -c {shlex.quote(program)}")["usage"]["max_rss_bytes"]
    assert 60 * MIB < figure < 120 * MIB


def test_duration_is_not_shorter_than_the_cpu_time(
    execute: Callable[..., dict[str, Any]],
) -> None:
    """Of programs with one thread."""
    for command in ["true"] * 30 + ["i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"] * 5:
        done = execute(argv=["sh", "-c", command])
        usage = done["usage"]
        cpu_seconds = usage["user_seconds"] + usage["system_seconds"]
        assert cpu_seconds <= done["duration_seconds"] + TICK_SECONDS, done


def test_figures_are_in_microseconds_at_most(
    client: httpx.Client,
    execute: Callable[..., dict[str, Any]],
    cell: Callable[..., dict[str, Any]],
) -> None:
    made = [execute(command="sleep 0.01") for _ in range(5)]
    made += [cell("import time; time.sleep(0.05); sum(range(10**6))")]
    routes = ("/v1/executions", "/v1/sessions", "/v1/capabilities", "/v1/health")
    made += [client.get(route).json() for route in routes]
    for figure in floats(made):
        assert round(figure, 6) == figure


def floats(value: Any) -> Iterator[float]:
    """All floats in a reply."""
    match value:
        case float():
            yield value
        case dict():
            for item in value.values():
                yield from floats(item)
        case list():
            for item in value:
                yield from floats(item)


def test_truncated_is_null_or_says_what_is_missing(
    client: httpx.Client,
    execute: Callable[..., dict[str, Any]],
    cell: Callable[..., dict[str, Any]],
) -> None:
    for done in (execute(command="echo small"), cell("print('small')"), cell("1 / 0")):
        for seen in everywhere(client, done):
            assert seen.get("truncated") is None, seen
    done = execute(command="seq 1000", limits={"reply_bytes": 1000})
    assert done["truncated"].keys() == {"stdout"}
    detached = client.post("/v1/executions", json={"command": "true", "detach": True}).json()
    assert detached["truncated"] is None
