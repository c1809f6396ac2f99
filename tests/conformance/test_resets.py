"""Resets and episodes on the wire; tests/engine/test_reset_faults.py has deaths of the daemon."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ..own_traces import own_traces
from .conftest import SHAPES
from .target import LAUNCHER, READ_SECONDS, Target, can_start, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not can_start(),
    reason=(
        "the daemon runs elsewhere: a reset would end the other tests' commands "
        "(EXECD_CONFORMANCE_LAUNCHER)"
    ),
)
LAUNCHED_UID = 1000
"""Of the daemons that .ci/test-image has launched."""
EPISODE, EXPECT = "X-Execd-Episode", "X-Execd-Expect-Episode"


@pytest.fixture(params=list(SHAPES))
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A daemon whose base dir has one file, and the checkpoint "start"."""
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o777)
    (base / "file").write_text("kept\n")
    (base / "file").chmod(0o666)
    if LAUNCHER:  # a user cannot give a file back to root
        os.chown(base / "file", LAUNCHED_UID, LAUNCHED_UID)
    is_shared = request.param == "subreaper" and not LAUNCHER
    target = start(
        tmp_path,
        *SHAPES[request.param],
        f"--checkpoint-at-start={base}",
        below=own_traces() if is_shared else (),
    )
    wait_until(lambda: get(target, "/readyz").status_code == 200, 60, "the daemon is ready")
    yield target
    target.stop()


def get(target: Target, path: str, **headers: str) -> httpx.Response:
    return httpx.get(target.url + path, headers=headers, timeout=READ_SECONDS, trust_env=False)


def post(
    target: Target, path: str, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    url = target.url + path
    return httpx.post(url, json=fields, headers=headers, timeout=READ_SECONDS, trust_env=False)


def reset(target: Target, key: str = "k", **fields: Any) -> dict[str, Any]:
    answer = post(target, "/v1/reset", {"Idempotency-Key": key}, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers[EPISODE] == answer.json()["episode"] or key == "again"
    return answer.json()


def output(target: Target, command: str) -> str:
    done = post(target, "/execute", command=command).json()
    assert done["exit_code"] == 0, done
    return done["stdout"]


class Waiting:
    """A request in a thread, whose answer comes later."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(ask()))
        self._thread.start()

    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> Any:
        self._thread.join(READ_SECONDS)
        return self._answers[0]


def is_running(target: Target, mark: str) -> bool:
    found = get(target, "/v1/executions?state=RUNNING").json()["items"]
    return any(mark in json.dumps(item) for item in found)


def test_reset_ends_everything_and_restores_the_files(sandbox: Target) -> None:
    output(sandbox, "rm file; echo more > more; setsid sleep 1000.125 >/dev/null 2>&1 &")
    done = reset(sandbox)
    assert (done["clean"], done["differences"]) == (True, {"items": [], "total": 0})
    assert output(sandbox, "ls; cat file; pgrep -f 'sleep 1000[.]125' || true") == "file\nkept\n"
    # The base dir itself has another time, which only its owner can set back.
    assert (done["files"]["restored"], done["files"]["removed"]) in ((1, 1), (2, 1))
    assert [step["name"] for step in done["steps"]][-1] == "verify"


def test_hard_link_from_one_root_to_another_is_whole_or_named_after_a_reset(
    sandbox: Target,
) -> None:
    output(sandbox, "mkdir one other; echo x > one/file; ln one/file other/file")
    made = post(sandbox, "/v1/checkpoints", id="roots", roots=["one", "other"])
    assert made.status_code == 201, made.text
    assert not files_of(reset(sandbox, "whole", checkpoint="roots"))
    output(
        sandbox, "cp -p one/file copy; mv copy one/file; ln one/file first; ln other/file second"
    )
    assert output(sandbox, "stat -c %h one/file other/file") == "2\n2\n"
    [named] = files_of(reset(sandbox, checkpoint="roots"))
    assert named.endswith("/one/file")


EXCHANGE = """
import fcntl, os, struct, time
files = [os.open(path, os.O_RDWR) for path in ("other", "one/file")]
def call(number, arguments):
    end = time.monotonic() + 20
    while True:  # until the kernel has let go of the pages
        for fd in files:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            return fcntl.ioctl(files[0], number, bytearray(arguments))
        except OSError as error:
            if error.errno != 16 or time.monotonic() > end:
                return print(error)
was = os.stat("one/file")
time_of = lambda ns: struct.pack("=qi4x", *divmod(ns, 10**9))
call(0xC028660F, struct.pack("=IiQQQQ", 0, files[1], 0, 0, 16, 0))  # EXT4_IOC_MOVE_EXT
info = struct.pack("=Q24xq16x", was.st_ino, was.st_size)
info += time_of(was.st_mtime_ns) + time_of(was.st_ctime_ns)
swap = struct.pack("=qqqqq16x", 0, *reversed(files), 0, was.st_size) + info.ljust(136, bytes(1))
call(0xC0C0586D, swap)  # XFS_IOC_SWAPEXT
now = os.stat("one/file")
assert (was.st_ctime_ns, was.st_mtime_ns) == (now.st_ctime_ns, now.st_mtime_ns)
"""


def test_contents_that_files_exchange_without_a_time_come_back(
    sandbox: Target, tmp_path: Path
) -> None:
    output(sandbox, "mkdir one; for f in one/file other; do head -c 64K /dev/urandom > $f; done")
    before = output(sandbox, "sha256sum one/file")
    changed_ns = (tmp_path / "base/one/file").stat().st_ctime_ns
    wait_until(lambda: time.time_ns() > changed_ns + 10**8, 20, "ctime vouches for the file")
    assert post(sandbox, "/v1/checkpoints", id="one", roots=["one"]).status_code == 201
    done = post(sandbox, "/v1/executions", argv=["python3", "-c", EXCHANGE]).json()
    assert done["exit_code"] == 0, done
    assert not files_of(reset(sandbox, checkpoint="one"))
    assert output(sandbox, "sha256sum one/file") == before


def files_of(answer: dict[str, Any]) -> list[str]:
    """The files that the answer names; a busy machine may have new mounts too."""
    return [each["path"] for each in answer["differences"]["items"] if each["kind"] == "file"]


@pytest.mark.parametrize("dialect", ["python_runtime", "v1"])
def test_whoever_waits_gets_the_exit_reason_reset_and_137(sandbox: Target, dialect: str) -> None:
    command = f"echo begun; sleep 1000; echo {dialect}"
    path = "/execute" if dialect == "python_runtime" else "/v1/executions"
    waiting = Waiting(lambda: post(sandbox, path, command=command))
    wait_until(lambda: is_running(sandbox, dialect), 20, "the command runs")
    assert reset(sandbox)["clean"]
    answer = waiting.answer()
    assert answer.status_code == 200
    body = answer.json()
    assert (body["exit_reason"], body["exit_code"]) == ("reset", 137)
    assert body["stdout"] == "begun\n"


def test_stream_of_an_execution_ends_in_order(sandbox: Target) -> None:
    events: list[str] = []

    def follow() -> None:
        with httpx.stream(
            "POST",
            sandbox.url + "/v1/executions",
            json={"command": "echo begun; sleep 1000"},
            headers={"Accept": "text/event-stream"},
            timeout=READ_SECONDS,
            trust_env=False,
        ) as reply:
            events.extend(line for line in reply.iter_lines() if line.startswith(("event", "data")))

    waiting = Waiting(follow)
    wait_until(lambda: any("begun" in line for line in events), 20, "the output has come")
    assert reset(sandbox)["clean"]
    waiting.answer()
    assert "exited" in events[-2]
    assert '"exit_reason":"reset"' in events[-1]


def test_reset_is_refused_without_a_checkpoint_and_says_how_to_make_one(
    sandbox: Target,
) -> None:
    answer = post(sandbox, "/v1/reset", checkpoint="other")
    assert answer.status_code == 404
    assert "--checkpoint-at-start" in answer.json()["message"]
    assert output(sandbox, "cat file") == "kept\n"


def test_checkpoints_that_were_made_after_the_one_of_a_reset_are_removed_by_the_reset(
    sandbox: Target,
) -> None:
    def ids() -> list[str]:
        return [item["id"] for item in get(sandbox, "/v1/checkpoints").json()["items"]]

    for id in ("first", "second", "third"):
        output(sandbox, f"echo {id} > {id}")
        assert post(sandbox, "/v1/checkpoints", id=id).status_code == 201
    assert reset(sandbox, checkpoint="second")["clean"]
    assert sorted(ids()) == ["first", "second", "start"]
    assert output(sandbox, "ls") == "file\nfirst\nsecond\n"
    assert reset(sandbox, "again")["clean"]
    assert ids() == ["start"]


def test_reply_of_a_reset_names_the_time_of_its_checkpoint(sandbox: Target) -> None:
    made = [post(sandbox, "/v1/checkpoints", id="task").json()]
    assert (
        reset(sandbox, checkpoint="task")["scope"]["checkpoint_created_at"]
        == (made[0]["created_at"])
    )
    # What code in the sandbox can do without a token.
    httpx.delete(sandbox.url + "/v1/checkpoints/task", timeout=READ_SECONDS, trust_env=False)
    made.append(post(sandbox, "/v1/checkpoints", id="task").json())
    second = reset(sandbox, "again", checkpoint="task")["scope"]["checkpoint_created_at"]
    assert second == made[1]["created_at"] != made[0]["created_at"]


def test_repeated_reset_with_the_same_key_gets_the_first_answer(sandbox: Target) -> None:
    first = reset(sandbox)
    output(sandbox, "echo later > later")
    assert reset(sandbox) == first
    assert output(sandbox, "cat later") == "later\n"
    other = post(sandbox, "/v1/reset", {"Idempotency-Key": "k"}, verify="content")
    assert other.status_code == 422


def test_reset_without_a_body_or_a_key_is_a_reset(sandbox: Target) -> None:
    answer = httpx.post(sandbox.url + "/v1/reset", timeout=READ_SECONDS, trust_env=False)
    assert answer.json()["clean"], answer.text


@pytest.mark.parametrize(
    ("field", "value"), [("checkpoint", "a/b"), ("verify", "never"), ("keep_records", 1), ("x", 1)]
)
def test_bad_field_of_a_reset_is_named(sandbox: Target, field: str, value: object) -> None:
    answer = post(sandbox, "/v1/reset", **{field: value})
    assert (answer.status_code, answer.json()["details"]["field"]) == (400, field)


def test_every_reply_carries_the_episode_which_changes_with_a_reset(sandbox: Target) -> None:
    def episodes() -> set[str]:
        replies = [
            get(sandbox, "/"),
            get(sandbox, "/v1/capabilities"),
            get(sandbox, "/no/such/path"),
            post(sandbox, "/execute", command="true"),
            post(sandbox, "/execute", nonsense=1),
        ]
        return {reply.headers[EPISODE] for reply in replies}

    (before,) = episodes()
    after = reset(sandbox)["episode"]
    assert episodes() == {after} != {before}


@pytest.mark.parametrize("path", ["/execute", "/v1/executions"])
def test_request_for_another_episode_is_409_and_runs_nothing(sandbox: Target, path: str) -> None:
    now = get(sandbox, "/").headers[EPISODE]
    assert post(sandbox, path, {EXPECT: now}, command="echo ran > ran").status_code == 200
    reset(sandbox)
    late = post(sandbox, path, {EXPECT: now}, command="echo ran > ran")
    assert late.status_code == 409
    if path != "/execute":
        assert late.json()["code"] == "CONFLICT"
    assert output(sandbox, "ls") == "file\n"


def test_request_whose_body_comes_late_does_not_run_in_the_next_episode(sandbox: Target) -> None:
    body = json.dumps({"command": "echo ran > ran"}).encode()
    head = (
        "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with sandbox.connect() as late, sandbox.connect() as upload:
        late.sendall(head + body[:5])
        upload.sendall(
            b"PUT /v1/files/ran HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nbegun"
        )
        done = reset(sandbox)
        assert done["clean"], done
        for connection in (late, upload):
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"Retry-After: 1" in answer
        late.sendall(body[5:])
    assert output(sandbox, "ls -A") == "file\n"


def test_while_a_reset_runs_probes_answer_and_everything_else_is_503(sandbox: Target) -> None:
    met: dict[str, httpx.Response] = {}
    refused: set[str] = set()
    keys, names = itertools.count(), map(str, itertools.count())

    def ask_until_the_end(waiting: Waiting) -> None:
        while waiting.goes_on():
            for path in ("/readyz", "/", "/v1/stats"):
                answer = get(sandbox, path)
                if answer.status_code == 503:
                    met[path] = answer
            name = next(names)
            answer = post(sandbox, "/execute", command=f"touch {name}")
            if answer.status_code == 503:
                met["/execute"] = answer
                refused.add(name)

    def meet_a_reset() -> bool:
        # An unfinished body holds the reset up for a moment.
        with sandbox.connect() as unfinished:
            unfinished.sendall(
                b"PUT /v1/files/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nbegun"
            )
            waiting = Waiting(lambda: reset(sandbox, str(next(keys))))
            ask_until_the_end(waiting)
            assert waiting.answer()["clean"]
        return len(met) >= 3

    wait_until(meet_a_reset, 120, "each request has met a reset")
    assert met["/readyz"].json() == {"status": "unavailable", "cause": "reset"}
    assert {met[path].headers["Retry-After"] for path in ("/v1/stats", "/execute")} == {"1"}
    assert "/" not in met
    assert not refused.intersection(output(sandbox, "ls").split()), "a refused command has run"


def test_watch_of_the_former_episode_ends(sandbox: Target) -> None:
    lines: list[str] = []

    def follow() -> None:
        with httpx.stream(
            "GET", sandbox.url + "/v1/watch/", timeout=READ_SECONDS, trust_env=False
        ) as reply:
            lines.append(f"{reply.status_code}")
            lines.extend(reply.iter_lines())

    waiting = Waiting(follow)
    wait_until(lambda: lines, 20, "the watch has begun")
    assert lines[0] == "200"
    assert reset(sandbox)["clean"]
    waiting.answer()


def test_sessions_records_and_keys_are_forgotten_by_a_reset(sandbox: Target) -> None:
    assert post(sandbox, "/v1/sessions", id="s").status_code == 201
    once = {"command": "echo once >> count; cat count", "id": "mine"}
    assert post(sandbox, "/v1/executions", **once).json()["stdout"] == "once\n"
    assert reset(sandbox)["clean"]
    assert get(sandbox, "/v1/sessions/s").status_code == 404
    assert get(sandbox, "/v1/executions").json()["items"] == []
    assert post(sandbox, "/v1/executions", **once).json()["stdout"] == "once\n"
    assert reset(sandbox, "again", keep_records=True)["clean"]
    assert get(sandbox, "/v1/executions/mine").json()["exit_reason"] == "exited"


def test_resets_are_counted(sandbox: Target) -> None:
    reset(sandbox)
    text = get(sandbox, "/metrics").text
    assert 'execd_resets_total{clean="true"} 1' in text
    assert 'execd_resets_total{clean="false"} 0' in text
    assert "execd_reset_duration_seconds_count 1" in text
