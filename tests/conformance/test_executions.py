"""``/v1/executions`` over plain HTTP: requests, replies, streams, control."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from .target import READ_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from .conftest import Run


@pytest.fixture
def post(client: httpx.Client) -> Callable[..., httpx.Response]:
    def send(
        headers: dict[str, str] | None = None, query: str = "", **fields: Any
    ) -> httpx.Response:
        return client.post(f"/v1/executions{query}", json=fields, headers=headers)

    return send


@pytest.fixture
def execute(post: Callable[..., httpx.Response]) -> Callable[..., dict[str, Any]]:
    def run(**fields: Any) -> dict[str, Any]:
        answer = post(**fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return run


def events_of(
    client: httpx.Client, path: str, headers: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """The events of an NDJSON stream."""
    with client.stream(
        "GET", path, headers={"Accept": "application/x-ndjson", **(headers or {})}
    ) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line:
                yield json.loads(line)


def test_command_of_another_user_has_that_users_names_and_home(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    names = "echo $USER $LOGNAME $HOME"
    entry = client.get("/v1/fs/file?path=/etc/passwd").text.partition("\nnobody:")[2]
    _, uid, _, _, home, *_ = entry.split(":")
    for fields, expected in (
        ({"user": "nobody"}, f"nobody nobody {home}\n"),
        ({"user": uid}, f"nobody nobody {home}\n"),
        ({"user": "54321"}, "54321 54321 /\n"),
        ({"user": "nobody", "env": {"HOME": "/own"}}, "nobody nobody /own\n"),
    ):
        answer = post(command=names, cwd="/", **fields)
        if answer.status_code == 400:
            assert answer.json()["message"].startswith("user: only a root daemon")
        else:
            assert answer.json()["stdout"] == expected


def test_merged_output_is_one_stream_in_the_order_of_writing(
    execute: Callable[..., dict[str, Any]],
) -> None:
    lines = "for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done"
    expected = "".join(f"out {n}\nerr {n}\n" for n in range(1, 6))
    for fields in ({"command": lines}, {"argv": ["sh", "-c", lines]}):
        done = execute(merge_output=True, **fields)
        assert (done["stdout"], done["stderr"], done["exit_code"]) == (expected, "", 0)
    apart = execute(command="echo out; echo err >&2", merge_output=False)
    assert (apart["stdout"], apart["stderr"]) == ("out\n", "err\n")


def test_cleared_environment_has_the_variables_of_the_request_alone(
    execute: Callable[..., dict[str, Any]],
) -> None:
    env = {"OWN": "1", "HOME": "/own"}
    for _ in range(3):  # a line of plain words may run without a shell from the second time on
        done = execute(argv=["/usr/bin/env"], clear_env=True, env=env)
        own = [f"EXECD_EXECUTION_ID={done['id']}", "HOME=/own", "OWN=1"]
        assert sorted(done["stdout"].splitlines()) == own
        by_shell = execute(command="/usr/bin/env", clear_env=True, env=env)
        names = {line.partition("=")[0] for line in by_shell["stdout"].splitlines()}
        assert names <= {"EXECD_EXECUTION_ID", "HOME", "OWN", "PWD", "OLDPWD", "SHLVL", "_"}
    assert "PATH=" in execute(argv=["/usr/bin/env"], clear_env=False, env=env)["stdout"]


def test_request_may_ask_for_more_time_than_the_default_and_never_for_more_than_the_largest(
    post: Callable[..., httpx.Response], execute: Callable[..., dict[str, Any]]
) -> None:
    default = execute(command="true")["limits"]["timeout_seconds"]
    refused = post(command="true", timeout_seconds=10**9)
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "timeout_seconds")
    found = re.search(r"1e\+09 is more than (\d+)", refused.json()["message"])
    assert found is not None, refused.text
    largest = int(found[1])
    assert largest >= default
    assert execute(command="true", timeout_seconds=largest)["limits"]["timeout_seconds"] == largest
    assert post(command="true", timeout_seconds=largest + 1).status_code == 400


def test_reply_says_what_ran_and_how_it_ended(execute: Callable[..., dict[str, Any]]) -> None:
    done = execute(command="echo out; echo err >&2; exit 3")
    assert done["state"] == "EXITED"
    assert (done["exit_code"], done["exit_reason"], done["signal"], done["timed_out"]) == (
        3,
        "exited",
        None,
        False,
    )
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert done["command"] == "echo out; echo err >&2; exit 3"
    assert done["pid"] > 1
    assert done["duration_seconds"] > 0
    assert done["started_at"] <= done["ended_at"]
    assert done["usage"]["user_seconds"] >= 0
    assert done["usage"]["output_bytes"] == 8


def test_signal_death_is_128_and_the_signal(execute: Callable[..., dict[str, Any]]) -> None:
    done = execute(command="kill -9 $$")
    assert (done["exit_code"], done["exit_reason"]) == (137, "signaled")
    assert done["signal"] == "SIGKILL"


def test_argv_is_not_looked_at_by_a_shell(execute: Callable[..., dict[str, Any]]) -> None:
    assert execute(argv=["printf", "%s|", "$HOME", "a b", "*", ""])["stdout"] == "$HOME|a b|*||"


def test_cwd_env_and_input_are_as_asked(execute: Callable[..., dict[str, Any]]) -> None:
    done = execute(command="pwd; echo $WHO; cat", cwd="/usr", env={"WHO": "me"}, stdin="typed\n")
    assert done["stdout"] == "/usr\nme\ntyped\n"
    raw = base64.b64encode(bytes(range(256))).decode()
    assert execute(command="od -An -v -tu1 | tr -s ' \\n' ' '", stdin_base64=raw)[
        "stdout"
    ].split() == [str(number) for number in range(256)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "command"),
        ({"command": "true", "argv": ["true"]}, "command"),
        ({"command": 3}, "command"),
        ({"command": "echo a\0b"}, "command"),
        ({"command": "echo a\0b #" + "x" * 200_000}, "command"),
        ({"comand": "true"}, "comand"),
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv[0]"),
        ({"argv": ["echo", "x" * 131_072]}, "argv[1]"),
        ({"argv": ["ls"], "shell": "bash"}, "shell"),
        ({"command": "true", "shell": []}, "shell"),
        ({"command": "true", "shell": "sh\0"}, "shell"),
        ({"command": "true", "timeout_seconds": -1}, "timeout_seconds"),
        ({"command": "true", "limits": {"cpu_seconds": 0}}, "limits.cpu_seconds"),
        ({"command": "true", "limits": {"wishes": 3}}, "limits.wishes"),
        ({"command": "true", "env": {"A=B": "x"}}, "env"),
        ({"command": "true", "env": {"A": "b\0"}}, "env"),
        ({"command": "true", "env": {"A\0": "b"}}, "env"),
        ({"command": "true", "cwd": "a\0b"}, "cwd"),
        ({"command": "true", "id": "../etc"}, "id"),
        ({"command": "true", "user": "nobody-has-this-name"}, "user"),
        ({"command": "true", "stdin": "a", "stdin_open": True}, "stdin_open"),
    ],
)
def test_bad_request_is_refused_by_field_and_runs_nothing(
    post: Callable[..., httpx.Response], client: httpx.Client, fields: dict[str, Any], named: str
) -> None:
    newest = client.get("/v1/executions?limit=1").json()["items"]
    answer = post(**fields)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert answer.json()["message"].startswith(named)
    assert answer.json()["details"] == {"field": named}
    now = client.get("/v1/executions?limit=1").json()["items"]
    assert [item["id"] for item in now] == [item["id"] for item in newest]


@pytest.mark.both_shapes
@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("timeout", {"command": "sleep 60", "timeout_seconds": 0.5}),
        ("no_output_timeout", {"command": "echo x; sleep 60", "no_output_timeout_seconds": 0.5}),
        ("cpu_limit", {"command": "while :; do :; done", "limits": {"cpu_seconds": 1}}),
        (
            "cpu_limit",
            {
                "command": "sh -c 'while :; do :; done'; exit $?",
                "limits": {"cpu_seconds": 1},
                "timeout_seconds": 60,
            },
        ),
        (
            "file_size_limit",
            {"command": "head -c 100000 /dev/zero > big", "limits": {"file_size_bytes": 1000}},
        ),
        (
            "process_limit",
            {
                "command": "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait",
                "limits": {"processes": 4},
            },
        ),
        (
            "output_limit",
            {"command": "yes", "limits": {"log_bytes": 200_000}, "on_output_limit": "kill"},
        ),
        (
            "memory_limit",
            {
                "argv": [
                    "python3",
                    "-c",
                    # by far, because memory that other programs give back hides growth
                    "b = bytearray(1000 << 20)\n"
                    "for i in range(0, len(b), 4096): b[i] = 1\n"
                    "import time; time.sleep(60)",
                ],
                "limits": {"memory_bytes": 150 << 20},
            },
        ),
        ("spawn_failed", {"argv": ["/no/such/program"]}),
    ],
)
def test_each_limit_ends_with_its_reason(
    execute: Callable[..., dict[str, Any]], reason: str, fields: dict[str, Any]
) -> None:
    assert execute(**fields)["exit_reason"] == reason


@pytest.mark.parametrize(
    ("exit_code", "limits"), [(152, {"cpu_seconds": 100}), (153, {"file_size_bytes": 100})]
)
def test_exit_code_like_that_of_a_limit_is_not_a_limit(
    execute: Callable[..., dict[str, Any]], exit_code: int, limits: dict[str, int]
) -> None:
    done = execute(command=f"exit {exit_code}", limits=limits)
    assert (done["exit_reason"], done["exit_code"]) == ("exited", exit_code)


def test_text_is_base64_when_asked_for(post: Callable[..., httpx.Response]) -> None:
    done = post(query="?encoding=base64", command="printf '\\377\\000'").json()
    assert base64.b64decode(done["stdout_base64"]) == b"\xff\x00"
    assert "stdout" not in done


def test_soft_timeout_answers_and_lets_it_run(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    answer = post(
        command="echo first; read line; echo second", stdin_open=True, soft_timeout_seconds=2.0
    )
    assert answer.status_code == 202
    running = answer.json()
    assert running["state"] == "RUNNING"
    client.post(f"/v1/executions/{running['id']}/stdin?eof=true").raise_for_status()
    done = client.get(f"/v1/executions/{running['id']}?wait_seconds=20").json()
    assert (done["state"], done["stdout"], done["exit_code"]) == ("EXITED", "first\nsecond\n", 0)


def test_detached_command_is_answered_at_once_and_runs_on(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    answer = post(command="cat", stdin_open=True, detach=True)
    path = f"/v1/executions/{answer.json()['id']}"
    assert (answer.status_code, answer.headers["location"]) == (202, path)
    assert answer.json()["state"] in ("QUEUED", "RUNNING")
    client.post(f"{path}/stdin?eof=true", content=b"through").raise_for_status()
    assert client.get(f"{path}?wait_seconds=20").json()["stdout"] == "through"


def test_stream_tells_the_whole_story_and_ends(client: httpx.Client) -> None:
    with client.stream(
        "POST",
        "/v1/executions",
        json={"command": "echo a; echo b >&2"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        blocks = "".join(answer.iter_text()).split("\n\n")
    seen = []
    for block in blocks:
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if fields:
            seen.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    assert [number for number, _, _ in seen] == sorted({number for number, _, _ in seen})
    assert seen[0][1] == "started"
    assert {(kind, data["text"]) for _, kind, data in seen[1:-1]} == {
        ("stdout", "a\n"),
        ("stderr", "b\n"),
    }
    assert seen[-1][1] == "exited"
    assert seen[-1][2] == client.get(f"/v1/executions/{seen[0][2]['id']}").json()


def test_any_event_is_a_place_to_resume_at(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    made = post(command="for i in 1 2 3 4 5; do echo $i; sleep 0.05; done").json()
    path = f"/v1/executions/{made['id']}/events"
    events = list(events_of(client, path))
    for event in events[:-1]:
        rest = list(events_of(client, f"{path}?after={event['sequence']}"))
        assert [other["sequence"] for other in rest] == [
            o["sequence"] for o in events if o["sequence"] > event["sequence"]
        ]
        header = {"Last-Event-ID": str(event["sequence"])}
        assert list(events_of(client, f"{path}?after=0", header)) == rest


def test_number_that_no_event_has_yet_is_400_and_names_the_newest(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    path = f"/v1/executions/{post(command='echo x').json()['id']}/events"
    newest = list(events_of(client, path))[-1]["sequence"]
    for query, headers in ((f"?after={newest + 1}", {}), ("", {"Last-Event-ID": "999999"})):
        answer = client.get(path + query, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
        assert answer.json()["details"] == {"field": "after", "newest_event": newest}
    assert client.get(f"{path}?after={newest}").status_code == 204


def test_nothing_comes_after_the_end_and_browsers_are_told_not_to_ask_again(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    path = f"/v1/executions/{post(command='echo x').json()['id']}/events"
    newest = list(events_of(client, path))[-1]["sequence"]
    answer = client.get(path, headers={"Last-Event-ID": str(newest)})
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("route", ["executions", "sessions"])
@pytest.mark.parametrize("cursor", ["nan:", "nan:x", "inf:x", "-inf:x", "1e999:x", "1:x", "x", ""])
def test_cursor_that_no_page_returned_is_400(client: httpx.Client, route: str, cursor: str) -> None:
    answer = client.get(f"/v1/{route}", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert answer.json()["details"] == {"field": "cursor"}


def test_output_is_served_raw_and_by_range(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    made = post(command="seq 100000; printf '\\377' >&2").json()
    whole = b"".join(b"%d\n" % number for number in range(1, 100_001))
    path = f"/v1/executions/{made['id']}"
    answer = client.get(f"{path}/stdout")
    assert (answer.content, answer.headers["content-type"]) == (whole, "application/octet-stream")
    assert client.get(f"{path}/stderr").content == b"\xff"
    part = client.get(f"{path}/stdout", headers={"Range": "bytes=300000-300099"})
    assert (part.status_code, part.content) == (206, whole[300000:300100])
    assert client.head(f"{path}/stdout").headers["content-length"] == str(len(whole))


def test_input_is_written_while_it_runs_until_it_ends(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    made = post(
        command="while read line; do echo got $line; done; echo over", stdin_open=True, detach=True
    ).json()
    path = f"/v1/executions/{made['id']}"
    for word in ("one", "two"):
        assert client.post(f"{path}/stdin", content=f"{word}\n").status_code in (200, 204)
    assert client.post(f"{path}/stdin?eof=true").status_code in (200, 204)
    assert client.get(f"{path}?wait_seconds=20").json()["stdout"] == "got one\ngot two\nover\n"
    assert client.post(f"{path}/stdin", content="late").status_code == 409


def test_signal_reaches_the_program(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    made = post(
        command="trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done",
        detach=True,
    ).json()
    path = f"/v1/executions/{made['id']}"
    wait_until(lambda: client.get(f"{path}/stdout").content == b"ready\n", 10, "the trap is set")
    assert client.post(f"{path}/signal", json={"signal": "SIGINT"}).status_code in (200, 202, 204)
    done = client.get(f"{path}?wait_seconds=20").json()
    assert (done["exit_code"], done["stdout"]) == (7, "ready\ncaught\n")


@pytest.mark.both_shapes
def test_kill_ends_the_tree_and_keeps_the_record(
    post: Callable[..., httpx.Response], client: httpx.Client, run: Run, marker: str
) -> None:
    made = post(command=f"setsid sleep {marker} & sleep {marker}", detach=True).json()
    wait_until(lambda: run.count_alive(marker) >= 2, 10, "it runs")
    killed = client.post(f"/v1/executions/{made['id']}/kill", timeout=READ_SECONDS).json()
    assert (killed["state"], killed["exit_reason"]) == ("EXITED", "canceled")
    assert run.count_alive(marker) == 0
    assert client.get(f"/v1/executions/{made['id']}").status_code == 200


@pytest.mark.both_shapes
def test_deleted_execution_is_ended_and_forgotten(
    post: Callable[..., httpx.Response], client: httpx.Client, run: Run, marker: str
) -> None:
    made = post(command=f"sleep {marker}", detach=True).json()
    wait_until(lambda: run.count_alive(marker), 10, "it runs")
    assert client.delete(f"/v1/executions/{made['id']}").status_code == 204
    wait_until(lambda: not run.count_alive(marker), 10, "it has ended")
    gone = client.get(f"/v1/executions/{made['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "NOT_FOUND")


def test_list_is_paged_and_filtered(
    post: Callable[..., httpx.Response], client: httpx.Client
) -> None:
    mine = [post(command=f"echo {number}").json()["id"] for number in range(5)]
    found: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"/v1/executions?state=EXITED&limit=2{cursor}").json()
        assert len(page["items"]) <= 2
        found += [item["id"] for item in page["items"]]
        assert all("stdout" not in item for item in page["items"])
        if page["next_cursor"] is None or set(mine) <= set(found):
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert [one for one in found if one in mine] == mine[::-1]
    for query in ("limit=0", "limit=1001", "state=DONE", "page=2"):
        answer = client.get(f"/v1/executions?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_same_request_again_is_answered_with_the_same_result(
    post: Callable[..., httpx.Response], marker: str
) -> None:
    key = {"Idempotency-Key": f"key {marker}"}
    fields = {"command": f"echo ran >> once-{marker}; cat once-{marker}"}
    first, again = post(key, **fields), post(key, **fields, detach=False, cwd=None, limits={})
    assert first.json()["stdout"] == "ran\n"
    assert first.json() == again.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = post(key, command="echo other")
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_MISMATCH")


def test_repeat_of_a_keyed_request_in_flight_attaches_to_it(
    client: httpx.Client, marker: str
) -> None:
    key = {"Idempotency-Key": f"flight {marker}", "Accept": "application/x-ndjson"}
    fields = {"command": f"echo ran >> flight-{marker}; sleep 1; cat flight-{marker}"}
    with client.stream("POST", "/v1/executions", json=fields, headers=key) as first:
        lines = first.iter_lines()
        started = json.loads(next(line for line in lines if line))
        assert started["event"] == "started"
        second = client.post(
            "/v1/executions", json=fields, headers={"Idempotency-Key": key["Idempotency-Key"]}
        ).json()
        assert second["stdout"] == "ran\n"
        assert [json.loads(line)["event"] for line in lines if line][-1] == "exited"
