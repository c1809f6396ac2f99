"""Exactly once, over the death of the daemon."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings

from .. import drawn, nasty
from ..patience import patience
from ..profiles import examples
from .target import READ_SECONDS, TERMINATED, Target, can_start, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not can_start(),
    reason=(
        "the daemon runs elsewhere: "
        "a test of restarts needs to start its own (EXECD_CONFORMANCE_LAUNCHER)"
    ),
)


@pytest.fixture
def start_again(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    """Starts a daemon on the same base and state dir each time, after killing the previous daemon
    outright."""
    running: list[Target] = []

    def kill() -> None:
        while running:
            running.pop().kill()  # also a daemon that has ended

    def begin(*flags: str, below: tuple[str, ...] = ()) -> Target:
        kill()
        running.append(start(tmp_path, *flags, below=below))
        return running[-1]

    yield begin
    kill()


NAMED = [({"Idempotency-Key": "k"}, {}), ({}, {"id": "k"})]
"""The two ways to name a request: headers, and fields of the body."""
named = pytest.mark.parametrize(("headers", "fields"), NAMED, ids=("key", "id"))


def post(target: Target, key: str | None, **fields: Any) -> httpx.Response:
    return send(target, {} if key is None else {"Idempotency-Key": key}, **fields)


def send(target: Target, headers: Mapping[str, str], **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{target.url}/v1/executions",
        json=fields,
        headers=headers,
        timeout=READ_SECONDS,
        trust_env=False,
    )


def get(target: Target, execution_id: str) -> dict[str, Any]:
    answer = httpx.get(
        f"{target.url}/v1/executions/{execution_id}", timeout=READ_SECONDS, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


@named
def test_finished_execution_with_a_key_or_an_id_replays_after_a_restart(
    start_again: Callable[..., Target],
    tmp_path: Path,
    headers: Mapping[str, str],
    fields: dict[str, str],
) -> None:
    once = {"command": "echo ran >> count; echo out; echo err >&2; exit 3", **fields}
    first = send(start_again(), headers, **once).json()
    again = send(start_again(), headers, **once)
    assert again.status_code == 200
    replayed = again.json()
    for field in ("id", "state", "exit_code", "exit_reason", "stdout", "stderr", "ended_at"):
        assert replayed[field] == first[field], field
    assert (tmp_path / "base" / "count").read_text() == "ran\n"


def test_program_that_was_not_found_is_127_after_a_restart_too(
    start_again: Callable[..., Target],
) -> None:
    first = post(start_again(), "k", argv=["/no/such/program"]).json()
    replayed = post(start_again(), "k", argv=["/no/such/program"]).json()
    assert replayed == first
    assert (replayed["exit_code"], replayed["exit_reason"]) == (127, "spawn_failed")


@named
def test_running_execution_with_a_key_or_an_id_is_never_run_again(
    start_again: Callable[..., Target],
    tmp_path: Path,
    headers: Mapping[str, str],
    fields: dict[str, str],
) -> None:
    once = {"command": "echo ran >> count; sleep 600", "detach": True, **fields}
    target = start_again()
    assert send(target, headers, **once).status_code == 202
    wait_until((tmp_path / "base" / "count").exists, 10, "the command runs")
    target = start_again()
    answer = send(target, headers, **once)
    assert answer.json()["exit_reason"] == "daemon_restarted"
    assert answer.json()["state"] == "EXITED"
    assert (tmp_path / "base" / "count").read_text() == "ran\n"


def test_named_execution_is_known_by_its_name_after_a_restart(
    start_again: Callable[..., Target],
) -> None:
    target = start_again()
    assert post(target, None, command="sleep 600", detach=True, id="mine").status_code == 202
    assert post(target, None, command="echo done", id="other").json()["stdout"] == "done\n"
    target = start_again()
    assert get(target, "mine")["exit_reason"] == "daemon_restarted"
    assert get(target, "other")["stdout"] == "done\n"


def test_accepted_execution_that_waits_is_known_after_a_restart(
    start_again: Callable[..., Target],
) -> None:
    target = start_again("--max-running", "1")
    assert post(target, None, command="sleep 600", detach=True).status_code == 202
    assert (
        post(target, None, command="echo never", detach=True, id="waits").json()["state"]
        == "QUEUED"
    )
    assert get(start_again(), "waits")["exit_reason"] == "daemon_restarted"


def test_command_that_outlived_its_soft_timeout_is_known_after_a_restart(
    start_again: Callable[..., Target],
) -> None:
    made = post(start_again(), None, command="sleep 600", soft_timeout_seconds=0.2)
    assert made.status_code == 202
    assert get(start_again(), made.json()["id"])["exit_reason"] == "daemon_restarted"


def test_execution_that_a_restart_cut_off_says_what_is_known_of_it(
    start_again: Callable[..., Target],
) -> None:
    target = start_again()
    argv = ["sh", "-c", "seq 300000; echo end >&2; sleep 600"]
    limits = {"timeout_seconds": 77, "limits": {"cpu_seconds": 66}}
    assert post(target, None, argv=argv, detach=True, id="cut", **limits).status_code == 202
    whole = b"".join(b"%d\n" % number for number in range(1, 300_001))
    wait_until(lambda: raw(target, "cut") == whole, 20, "all of it is read")
    target = start_again()
    body = get(target, "cut")
    assert (body["argv"], body["exit_reason"]) == (argv, "daemon_restarted")
    assert body["exit_code"] == 125
    wait_until(lambda: "daemon_restarted" in target.log_text(), 20, "the end is in the log")
    assert '"execution_id":"cut"' in target.log_text()
    assert "nobody saw" in body["message"]
    assert body["limits"]["timeout_seconds"] == 77
    assert body["limits"]["cpu_seconds"] == 66
    for field in ("signal", "duration_seconds", "ended_at"):
        assert body[field] is None, field
    stdout = raw(target, "cut")
    assert stdout
    assert whole.startswith(stdout)
    assert body["truncated"]["stdout"]["total_bytes"] is None


def test_execution_that_a_restart_cut_off_in_a_shortage_of_memory_names_the_likely_cause(
    start_again: Callable[..., Target], tmp_path: Path
) -> None:
    used_bytes = httpx.get(f"{start_again().url}/v1/stats").json()["memory"]["pod_used_bytes"]
    target = start_again("--pod-memory-bytes", str(used_bytes * 9 // 10))
    assert post(target, None, command="sleep 600", detach=True, id="cut").status_code == 202
    hog = 'x=$(head -c 200000000 /dev/zero | tr "\\0" x)'
    done = post(target, None, command=hog, limits={"memory_bytes": 64 << 20}).json()
    assert done["exit_reason"] == "memory_limit"
    journal = tmp_path / "state" / "journal"
    wait_until(lambda: b'"memory_shortage"' in journal.read_bytes(), 20, "the shortage is noted")
    cause = "so the kernel probably ended execd for memory"
    line = "memory was nearly full when the former daemon died"
    target = start_again()
    assert cause in get(target, "cut")["message"]
    wait_until(lambda: line in target.log_text(), 20, "the cause is in the log")
    wait_until(lambda: b'"memory_recovered"' in journal.read_bytes(), 20, "the cause is told once")
    third = start_again()
    assert cause in get(third, "cut")["message"]
    assert line not in third.log_text()


def raw(target: Target, execution_id: str) -> bytes:
    url = f"{target.url}/v1/executions/{execution_id}/stdout"
    return httpx.get(url, timeout=READ_SECONDS, trust_env=False).content


def test_key_of_a_former_daemon_with_another_payload_is_422(
    start_again: Callable[..., Target],
) -> None:
    assert post(start_again(), "k", command="true").status_code == 200
    answer = post(start_again(), "k", command="false")
    assert answer.status_code == 422
    assert answer.json()["code"] == "IDEMPOTENCY_MISMATCH"


def test_large_output_of_a_former_daemon_is_whole(start_again: Callable[..., Target]) -> None:
    made = post(start_again(), "k", command="seq 300000").json()
    target = start_again()
    stdout = httpx.get(
        f"{target.url}/v1/executions/{made['id']}/stdout", timeout=READ_SECONDS, trust_env=False
    ).content
    assert stdout == b"".join(b"%d\n" % number for number in range(1, 300_001))


def test_nothing_runs_twice_however_often_the_daemon_dies(
    start_again: Callable[..., Target], tmp_path: Path
) -> None:
    """Clients that send each key until an answer comes, and a daemon that is killed over and
    over."""
    keys = [f"key-{number}" for number in range(60)]
    target = start_again()
    stop = threading.Event()

    def insist(mine: list[str]) -> None:
        for key in mine:
            while not stop.is_set():
                try:
                    if (
                        post(target, key, command=f"echo {key} >> count; sleep 0.02").status_code
                        == 200
                    ):
                        break
                except httpx.TransportError:
                    stop.wait(0.05)  # between attempts

    clients = [threading.Thread(target=insist, args=(keys[number::4],)) for number in range(4)]
    for client in clients:
        client.start()
    try:
        for _ in range(6):
            stop.wait(0.3)  # let some of them get through
            target = start_again()
    finally:
        for client in clients:
            client.join(patience.seconds(60))
        stop.set()
    runs = Counter((tmp_path / "base" / "count").read_text().split())
    assert max(runs.values()) == 1, [key for key, times in runs.items() if times > 1]


KEEPER = """
import os, signal, sys
def begin():
    return os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
daemon = begin()
signal.signal(signal.SIGINT, lambda *_: os.kill(daemon, signal.SIGKILL))
signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
while True:
    pid, wait_status = os.wait()
    if pid == daemon and os.WIFSIGNALED(wait_status):
        daemon = begin()
    elif pid == daemon:
        sys.exit(os.waitstatus_to_exitcode(wait_status))
"""
"""An init above the daemon, as a container may have: on SIGINT the init kills the daemon and starts
another daemon."""


@pytest.mark.parametrize("shape", [(), ("--namespaces=off",)], ids=["namespaces", "subreaper"])
def test_commands_end_with_their_daemon_though_its_container_lives_on(
    start_again: Callable[..., Target], shape: tuple[str, ...]
) -> None:
    target = start_again(*shape, below=("python3", "-c", KEEPER, "setpriv", "--pdeathsig", "KILL"))
    assert target.process is not None
    held = "trap '' TERM HUP; exec flock lock sleep 600"
    assert (
        post(target, None, command=f'setsid sh -c "{held}"', detach=True, id="held").status_code
        == 202
    )
    wait_until(
        lambda: post(target, None, command="flock -n lock true").json()["exit_code"] == 1,
        10,
        "the command has the lock",
    )
    target.process.send_signal(signal.SIGINT)

    def is_another() -> bool:
        try:
            return bool(get(target, "held")["exit_reason"] == "daemon_restarted")
        except httpx.TransportError:
            return False  # between the two

    wait_until(is_another, 20, "another daemon answers")
    assert post(target, None, command="flock -w 10 lock echo free").json()["stdout"] == "free\n"
    assert target.stop() == TERMINATED


# never changed
def lines(url: str, headers: Mapping[str, str] = {}, **request: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    method = "POST" if request else "GET"
    headers = {"Accept": "application/x-ndjson", **headers}
    answer = httpx.request(
        method, url, headers=headers, timeout=READ_SECONDS, trust_env=False, **request
    )
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


def test_stream_of_a_finished_execution_resumes_after_a_restart(
    start_again: Callable[..., Target],
) -> None:
    once = {
        "command": (
            "for n in 1 2 3 4 5; do printf 'h\\303'; sleep 0.02; printf '\\251'; "
            "echo $n >&2; sleep 0.02; done"
        )
    }
    key = {"Idempotency-Key": "k"}
    first = lines(f"{start_again().url}/v1/executions", key, json=once)
    path = f"{start_again().url}/v1/executions"
    assert lines(path, key, json=once) == first
    for number, event in enumerate(first[:-1], start=1):
        rest = first[number:]
        assert lines(path, {**key, "Last-Event-ID": str(event["sequence"])}, json=once) == rest, (
            event
        )
        assert lines(f"{path}/{first[-1]['id']}/events?after={event['sequence']}") == rest, event


def test_stream_that_a_restart_cut_off_cannot_be_resumed_by_number(
    start_again: Callable[..., Target],
) -> None:
    made = post(start_again(), "k", command="echo one; sleep 600", detach=True).json()
    path = f"{start_again().url}/v1/executions/{made['id']}/events"
    for after in (1, 2, 3):
        assert (
            httpx.get(f"{path}?after={after}", timeout=READ_SECONDS, trust_env=False).status_code
            == 410
        )
    assert lines(path)[-1]["exit_reason"] == "daemon_restarted"


def test_restart_does_not_lengthen_how_long_an_execution_is_remembered(
    start_again: Callable[..., Target],
) -> None:
    short = ("--keyed-retention-seconds", "20")
    target = start_again(*short)
    assert post(target, None, command="true", id="ended").status_code == 200
    assert post(target, None, command="sleep 600", detach=True, id="cut").status_code == 202
    start_again(*short)
    since = time.monotonic()
    target = start_again(*short)

    def is_forgotten(name: str) -> bool:
        return (
            httpx.get(
                f"{target.url}/v1/executions/{name}", timeout=READ_SECONDS, trust_env=False
            ).status_code
            == 404
        )

    assert not is_forgotten("cut")
    wait_until(
        lambda: is_forgotten("ended") and is_forgotten("cut"),
        20 - (time.monotonic() - since) + 5,
        "both are forgotten",
    )


def test_displays_that_were_too_large_for_a_restart_are_said_to_be_missing(
    start_again: Callable[..., Target],
) -> None:
    body = {"code": "from IPython.display import HTML\nHTML('x' * 300_000)"}
    done = [
        httpx.post(
            f"{start_again().url}/v1/sessions/one/execute?create=true",
            json=body,
            headers={"Idempotency-Key": "c"},
            timeout=READ_SECONDS,
            trust_env=False,
        ).json()
        for _ in range(2)
    ]
    assert done[0]["truncated"] is None
    assert (done[1]["exit_reason"], done[1]["message"]) == ("exited", None)
    omitted = done[1]["truncated"]["displays"]
    assert omitted["total_bytes"] == omitted["omitted_bytes"] > 300_000
    assert done[1]["result"] is None


@named
@pytest.mark.parametrize("path", ["/v1/sessions/one/execute?create=true", "/v1/code"])
def test_finished_cell_with_a_key_or_an_id_replays_after_a_restart(
    start_again: Callable[..., Target],
    path: str,
    headers: Mapping[str, str],
    fields: dict[str, str],
) -> None:
    body = {
        **fields,
        "code": (
            "from IPython.display import HTML, display\n"
            "display(HTML('<b>x</b>'))\n"
            "print('out')\n"
            "6 * 7"
        ),
    }
    answers = []
    for _ in range(2):
        url = start_again().url + path
        answers.append(
            httpx.post(
                url, json=body, headers=headers, timeout=READ_SECONDS, trust_env=False
            ).json()
        )
    first, replayed = answers
    assert first["displays"][0]["data"]["text/html"] == "<b>x</b>"
    for field in (
        "id",
        "code",
        "session_id",
        "generation",
        "status",
        "stdout",
        "result",
        "displays",
        "error",
        "exit_reason",
    ):
        assert replayed[field] == first[field], field


def test_any_value_that_a_cell_shows_is_harmless_also_after_a_restart(
    start_again: Callable[..., Target], tmp_path: Path
) -> None:
    replies: dict[str, dict[str, Any]] = {}

    def read(name: str) -> dict[str, Any]:
        url = f"{target.url}/v1/executions/{name}"
        with httpx.Client(timeout=READ_SECONDS, trust_env=False) as client:
            whole = client.get(url)
            ndjson = {"Accept": "application/x-ndjson"}
            lines = client.get(f"{url}/events", headers=ndjson).content.splitlines()
        for data in (whole.content, *filter(None, lines)):
            nasty.check(data)
        return whole.json()

    @settings(examples(0.5))
    @given(nasty.VALUES, nasty.VALUES)
    def show(shown: str, returned: str) -> None:
        name = f"cell-{len(replies)}"
        drawn.note((shown, returned))
        code = (
            f"{nasty.DEFINITIONS}\nfrom IPython.display import display\n"
            f"display({{'application/json': {shown}}}, raw=True)\nBundle({returned})"
        )
        body = {"id": name, "session_id": "one", "code": code}
        answer = httpx.post(
            f"{target.url}/v1/code", json=body, timeout=READ_SECONDS, trust_env=False
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["exit_reason"] == "exited", answer.text
        replies[name] = read(name)

    target = start_again()
    show()
    once = {"id": "last", "command": "echo ran >> count"}
    assert send(target, {}, **once).json()["exit_code"] == 0
    # Many large values push out the oldest executions.
    forgotten = {name for name in replies if read(name).get("code") == "NOT_FOUND"}
    assert len(forgotten) < len(replies) / 2
    target = start_again()
    for name, before in replies.items():
        after = read(name)
        if name in forgotten:
            assert after["code"] == "NOT_FOUND", name
            continue
        if (after["truncated"] or {}).get("displays"):  # too large for the journal
            after |= {field: before[field] for field in ("truncated", "displays", "result")}
        assert after == before, name
    assert send(target, {}, **once).headers["Idempotent-Replayed"] == "true"
    assert (tmp_path / "base" / "count").read_text() == "ran\n"


def test_session_of_a_former_daemon_is_said_to_be_lost(start_again: Callable[..., Target]) -> None:
    def run(code: str, **fields: Any) -> httpx.Response:
        url = f"{target.url}/v1/sessions/one/execute?create=true"
        return httpx.post(url, json={"code": code, **fields}, timeout=READ_SECONDS, trust_env=False)

    target = start_again()
    assert run("x = 1", expect_generation=1).json()["state_lost"] is False
    target = start_again()
    assert httpx.get(f"{target.url}/v1/sessions/one", trust_env=False).status_code == 404
    assert run("x", expect_generation=1).status_code == 412
    after = run("'x' in globals()").json()
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        2,
        True,
        "False",
    )
    assert (
        httpx.delete(
            f"{target.url}/v1/sessions/one", timeout=READ_SECONDS, trust_env=False
        ).status_code
        == 204
    )
    target = start_again()
    assert run("1").json()["generation"] == 1


def test_branch_named_like_a_session_of_a_former_daemon_is_its_next_generation(
    start_again: Callable[..., Target],
) -> None:
    """A caller that expects the former generation must not get the state of the branch."""

    def run(name: str, code: str, **fields: Any) -> httpx.Response:
        url = f"{target.url}/v1/sessions/{name}/execute?create=true"
        return httpx.post(url, json={"code": code, **fields}, timeout=READ_SECONDS, trust_env=False)

    target = start_again()
    assert run("one", "x = 1").json()["generation"] == 1
    target = start_again()
    assert run("other", "x = 2").status_code == 200
    forked = httpx.post(
        f"{target.url}/v1/sessions/other/fork",
        json={"id": "one"},
        timeout=READ_SECONDS,
        trust_env=False,
    )
    assert forked.json()["sessions"][0]["generation"] == 2
    assert run("one", "x", expect_generation=1).status_code == 412
    assert run("one", "x", expect_generation=2).json()["result"]["data"]["text/plain"] == "2"
    target = start_again()
    assert run("one", "1").json()["generation"] == 3
