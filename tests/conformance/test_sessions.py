"""``/v1/sessions`` and ``/v1/code`` over plain HTTP: state lives from cell to cell, and no loss
goes unreported."""

from __future__ import annotations

import gzip
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from .sessions import ENOUGH_SECONDS, Session
from .target import ANSWER_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx


def events_of(
    client: httpx.Client, method: str, path: str, **fields: Any
) -> Iterator[dict[str, Any]]:
    body = {"json": fields} if fields else {}
    with client.stream(method, path, headers={"Accept": "application/x-ndjson"}, **body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line:
                yield json.loads(line)


# --- cells


def test_state_lives_from_cell_to_cell(session: Session) -> None:
    session.run("import math\nx = 20\ndef double(n):\n    return 2 * n")
    assert session.value("double(x) + int(math.pi)") == "43"


def test_cell_reply_has_every_field(session: Session) -> None:
    done = session.run("print('out')\nimport sys\nprint('err', file=sys.stderr)\n6 * 7")
    assert (done["stdout"], done["stderr"]) == ("out\n", "err\n")
    assert done["result"]["data"] == {"text/plain": "42"}
    assert (done["status"], done["exit_code"], done["exit_reason"]) == ("success", 0, "exited")
    assert (done["displays"], done["error"]) == ([], None)
    assert (done["generation"], done["state_lost"], done["execution_count"]) == (1, False, 1)
    assert (done["session_id"], done["execution_id"]) == (session.id, done["id"])
    assert done["code"].endswith("6 * 7")
    assert done["duration_seconds"] > 0
    assert done["usage"].keys() == {
        *(
            "user_seconds",
            "system_seconds",
            "max_rss_bytes",
            "peak_tree_bytes",
            "processes",
            "output_bytes",
        )
    }
    assert done["usage"]["output_bytes"] == 8
    assert (done["timed_out"], done["truncated"], done["state"]) == (False, None, "EXITED")


def test_error_of_a_cell_is_a_result_with_the_users_lines(session: Session) -> None:
    done = session.run("def f(n):\n    return 1 / n\n\nf(0)")
    assert (done["status"], done["exit_code"], done["exit_reason"]) == ("error", 1, "exited")
    assert done["error"]["name"] == "ZeroDivisionError"
    assert "return 1 / n" in "\n".join(done["error"]["traceback"])
    assert session.value("1 + 1") == "2"


def test_displays_come_as_bundles_and_updates_take_their_place(session: Session) -> None:
    done = session.run(
        "from IPython.display import HTML, display\n"
        "handle = display(HTML('<b>1</b>'), display_id=True)\n"
        "display(HTML('<i>x</i>'))\n"
        "handle.update(HTML('<b>2</b>'))"
    )
    assert [bundle["data"]["text/html"] for bundle in done["displays"]] == ["<b>2</b>", "<i>x</i>"]


def test_output_of_children_is_the_cells(session: Session) -> None:
    done = session.run(
        "import os\nos.system('echo from a child')\n!echo from a magic\nprint('done')"
    )
    assert sorted(done["stdout"].split("\n")) == ["", "done", "from a child", "from a magic"]
    assert done["stdout"].endswith("done\n")


def test_top_level_await_keeps_its_loop(session: Session) -> None:
    session.run(
        "import asyncio\n"
        "queue = asyncio.Queue()\n"
        "task = asyncio.ensure_future(queue.get())\n"
        "await asyncio.sleep(0)"
    )
    assert session.value("await queue.put('kept'); await task") == "'kept'"


def test_system_exit_ends_the_cell_and_not_the_session(session: Session) -> None:
    done = session.run("x = 5\nraise SystemExit(7)")
    assert (done["exit_code"], done["exit_reason"]) == (7, "exited")
    assert session.value("x") == "5"


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell", "post_execute", "post_run_cell"])
def test_hook_that_exits_spoils_no_later_cell(session: Session, event: str) -> None:
    session.run(
        "import sys\n"
        f"get_ipython().events.register('{event}', lambda *_: sys.exit('from a hook'))\n"
        f"get_ipython().events.register('{event}', lambda *_: print('second'))"
    )
    done = session.run("print('cell')\n6 * 7")
    assert (done["status"], done["exit_code"]) == ("success", 0)
    assert sorted(done["stdout"].split()) == ["cell", "second"]
    assert f"Error in a {event} hook" in done["stderr"]
    assert "from a hook" in done["stderr"]
    assert session.value("6 * 7") == "42"


@pytest.mark.both_shapes
@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [("import os; os._exit(3)", 3, None), ("import ctypes; ctypes.string_at(0)", 139, "SIGSEGV")],
)
def test_death_of_the_interpreter_is_told_apart_and_state_is_said_to_be_lost(
    session: Session, code: str, exit_code: int, signal: str | None
) -> None:
    session.run("x = 1")
    died = session.run(f"print('last words', flush=True)\n{code}")
    assert (died["status"], died["exit_reason"], died["exit_code"], died["signal"]) == (
        "error",
        "worker_died",
        exit_code,
        signal,
    )
    assert died["stdout"] == "last words\n"
    assert died["generation"] == 1
    after = session.run("'x' in globals()")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        2,
        True,
        "False",
    )
    assert session.run("1")["state_lost"] is False


def test_cell_is_an_execution(client: httpx.Client, session: Session) -> None:
    done = session.run("print('x' * 10); 1")
    found = client.get(f"/v1/executions/{done['id']}").json()
    assert found == done
    assert client.get(f"/v1/executions/{done['id']}/stdout").text == "x" * 10 + "\n"
    assert done["id"] in [item["id"] for item in client.get("/v1/executions").json()["items"]]


def test_cell_streams_what_happens_in_order(client: httpx.Client, session: Session) -> None:
    # Bytes and displays take different ways, so only the arrival orders them. Here the second line
    # waits until the display has arrived.
    gate = f"gate-{session.id}"
    code = (
        "import os, time\n"
        "from IPython.display import HTML, display\n"
        "print('one')\n"
        "display(HTML('two'))\n"
        f"while not os.path.exists({gate!r}): time.sleep(0.01)\n"
        "print('three')\n"
        "'four'"
    )
    events = []
    for event in events_of(client, "POST", f"{session.path}/execute", code=code):
        events.append(event)
        if event["event"] == "display":
            client.put(f"/v1/files/{gate}", content=b"").raise_for_status()
    client.delete(f"/v1/files/{gate}").raise_for_status()
    assert [event["event"] for event in events] == [
        "started",
        "stdout",
        "display",
        "stdout",
        "result",
        "exited",
    ]
    assert events[0]["session_id"] == session.id
    assert (events[1]["text"], events[2]["data"]["text/html"], events[3]["text"]) == (
        "one\n",
        "two",
        "three\n",
    )
    assert events[4]["data"] == {"text/plain": "'four'"}
    assert events[5]["displays"][0]["data"]["text/html"] == "two"
    again = list(
        events_of(
            client, "GET", f"/v1/executions/{events[0]['id']}/events?after={events[2]['sequence']}"
        )
    )
    assert again == events[3:]


def test_output_is_streamed_while_the_cell_runs(client: httpx.Client, session: Session) -> None:
    seen = []
    code = "print('early', flush=True)\nname = input('go on?')\nname"
    for event in events_of(client, "POST", f"{session.path}/execute", code=code, allow_input=True):
        seen.append(event["event"])
        if event["event"] == "input_request":
            assert "stdout" in seen
            assert (event["prompt"], event["password"]) == ("go on?", False)
            assert session.post("input", text="you").json() == {"written_bytes": 3}
    assert seen[-2:] == ["result", "exited"]


def waits_for_input(session: Session, prompt: str) -> dict[str, Any]:
    """Return the session, once a question with this prompt is open."""
    found: list[dict[str, Any]] = []

    def is_open() -> bool:
        found[:] = [session.show()]
        return bool(found[0]["prompt"] == prompt)

    wait_until(is_open, ENOUGH_SECONDS, f"the question {prompt!r} is open")
    return found[0]


def test_session_that_waits_for_input_says_so_with_its_prompt(session: Session) -> None:
    assert (session.show()["prompt"], session.show()["password"]) == (None, None)
    code = "import getpass\na = input('name? ')\nb = getpass.getpass('secret? ')\na, b"
    cell = session.start(code, allow_input=True)
    shown = waits_for_input(session, "name? ")
    assert (shown["state"], shown["password"]) == ("WAITING_INPUT", False)
    listed = session.client.get("/v1/sessions", params={"limit": 1000}).json()["items"]
    [item] = [item for item in listed if item["id"] == session.id]
    assert (item["state"], item["prompt"]) == ("WAITING_INPUT", "name? ")
    assert session.post("execute", code="1", on_busy="reject").json()["code"] == "SESSION_BUSY"
    assert session.post("input", text="Ada").status_code == 200
    shown = waits_for_input(session, "secret? ")
    assert (shown["state"], shown["password"]) == ("WAITING_INPUT", True)
    assert session.post("input", text="1815").status_code == 200
    assert session.ended(cell)["status"] == "success"
    shown = session.show()
    assert (shown["state"], shown["prompt"], shown["password"]) == ("IDLE", None, None)
    assert session.value("a, b") == "('Ada', '1815')"


@pytest.mark.parametrize("end", ["interrupt", "death", "timeout"])
def test_question_ends_with_its_cell(session: Session, end: str) -> None:
    limit = {"timeout_seconds": 3.0} if end == "timeout" else {}
    cell = session.start("input('x' * 5000)", allow_input=True, **limit)
    shown = waits_for_input(session, "x" * 1024 + "…")
    if end == "interrupt":
        assert session.post("interrupt").json() == {"interrupted": True}
    elif end == "death":
        kill = {"command": f"kill -9 {shown['pid']}"}
        assert session.client.post("/v1/executions", json=kill).json()["exit_code"] == 0
    assert session.ended(cell)["status"] == "error"
    wait_until(
        lambda: session.show()["state"] in ("IDLE", "DEAD"), ENOUGH_SECONDS, "the cell is over"
    )
    assert session.show()["prompt"] is None
    assert session.post("input", text="late").status_code == 409
    assert session.value("1 + 1") == "2"


def test_input_that_nobody_asked_for_is_a_conflict(session: Session) -> None:
    assert session.post("input", text="x").status_code == 409


def test_input_without_leave_raises_at_once(session: Session) -> None:
    done = session.run("input('?')")
    assert done["status"] == "error"
    assert done["error"]["name"] in ("StdinNotImplementedError", "EOFError")


def test_large_output_of_a_cell_is_cut_as_a_commands(session: Session) -> None:
    done = session.run("print('x' * 3_000_000)")
    assert done["truncated"]["stdout"]["total_bytes"] == 3_000_001
    assert done["usage"]["output_bytes"] == 3_000_001


# --- time and control


@pytest.mark.timed
def test_cell_over_its_limit_is_interrupted_in_time_and_keeps_its_state(
    session: Session, timed: Callable[[float, float], None]
) -> None:
    session.run("x = 1")
    began = time.monotonic()
    done = session.run(
        "import time\nprint('before', flush=True)\nx = 2\ntime.sleep(60)", timeout_seconds=1.5
    )
    elapsed_seconds = time.monotonic() - began
    assert (done["status"], done["exit_reason"], done["timed_out"]) == ("error", "timeout", True)
    assert done["stdout"] == "before\n"
    timed(elapsed_seconds, 1.5 + ANSWER_SECONDS)
    after = session.run("x")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        1,
        False,
        "2",
    )


@pytest.mark.both_shapes
@pytest.mark.timed
def test_cell_that_swallows_interrupts_cannot_hold_its_session(
    session: Session, timed: Callable[[float, float], None]
) -> None:
    session.run("x = 1")
    code = (
        "import time\n"
        "while True:\n"
        "    try:\n"
        "        time.sleep(60)\n"
        "    except BaseException:\n"
        "        open('swallowed', 'w').close()"
    )
    began = time.monotonic()
    done = session.run(code, timeout_seconds=1.5)
    elapsed_seconds = time.monotonic() - began
    assert (done["status"], done["exit_reason"], done["timed_out"]) == ("error", "timeout", True)
    # The answer is due 0.45 s after the limit, and the kill comes 2 s after the limit.
    timed(elapsed_seconds, 1.5 + ANSWER_SECONDS + 0.5)
    after = session.run("import os; 1 + os.path.exists('swallowed')")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        2,
        True,
        "2",
    )


def test_interrupt_that_is_missed_is_sent_once_more(session: Session) -> None:
    session.run("x = 1")
    # As when CPython has checked for signals and has not yet entered the system call: the first
    # signal changes nothing.
    code = """
import signal, time
usual = signal.getsignal(signal.SIGINT)
signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, usual))
time.sleep(60)
"""
    done = session.run(code, timeout_seconds=2)
    assert (done["status"], done["exit_reason"]) == ("error", "timeout")
    after = session.run("x")
    assert (after["generation"], after["state_lost"], after["result"]["data"]["text/plain"]) == (
        1,
        False,
        "1",
    )


def test_interrupt_ends_the_cell_and_not_the_session(session: Session) -> None:
    session.run("x = 1")
    running = session.start("import time\ntime.sleep(60)")
    assert session.post("interrupt").json() == {"interrupted": True}
    done = session.ended(running)
    assert (done["status"], done["exit_reason"]) == ("error", "interrupted")
    assert done["error"]["name"] == "KeyboardInterrupt"
    assert session.value("x") == "1"
    assert session.post("interrupt").json() == {"interrupted": False}
    assert session.value("x") == "1"


def test_interrupts_never_hit_the_next_cell(session: Session) -> None:
    for _ in range(15):
        running = session.start("import time\nfor _ in range(100): time.sleep(0.0005)")
        session.post("interrupt")
        assert session.run("sum(range(1000))")["result"]["data"] == {"text/plain": "499500"}
        session.ended(running)
    assert session.show()["generation"] == 1


def test_busy_session_queues_or_rejects(session: Session) -> None:
    running = session.start("x = input('?')", allow_input=True)
    waits_for_input(session, "?")
    refused = session.post("execute", code="1", on_busy="reject")
    assert (refused.status_code, refused.json()["code"]) == (409, "SESSION_BUSY")
    queued = session.post("execute", code="x", detach=True).json()["id"]
    assert session.post("input", text="first").status_code == 200
    assert session.ended(queued)["result"]["data"] == {"text/plain": "'first'"}
    session.ended(running)


def test_cells_run_in_the_order_they_came(client: httpx.Client, session: Session) -> None:
    session.run("seen = []")
    running = session.start("import time\ntime.sleep(0.5)")
    queued = [
        session.post("execute", code=f"seen.append({n})", detach=True).json()["id"]
        for n in range(10)
    ]
    session.ended(running)
    for execution_id in queued:
        assert session.ended(execution_id)["status"] == "success"
    assert session.value("seen") == str(list(range(10)))


def test_expected_generation_that_is_not_there_runs_nothing(session: Session) -> None:
    assert session.run("x = 1", expect_generation=1)["generation"] == 1
    session.run("import os; os._exit(0)")
    refused = session.post("execute", code="x = 2", expect_generation=1)
    assert (refused.status_code, refused.json()["code"]) == (412, "PRECONDITION_FAILED")
    assert session.run("1", expect_generation=2)["state_lost"] is True


@pytest.mark.both_shapes
def test_cell_ends_when_its_caller_goes_away(client: httpx.Client, session: Session) -> None:
    session.run("x = 1")
    with client.stream(
        "POST",
        f"{session.path}/execute",
        json={"code": "import time\ntime.sleep(60)"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        next(answer.iter_raw())
    wait_until(lambda: session.show()["state"] == "IDLE", ENOUGH_SECONDS, "the cell has ended")
    assert session.run("x")["result"]["data"] == {"text/plain": "1"}


# The shell ends at SIGINT and leaves its pipeline behind, of which one half ignores SIGINT.
PIPELINE = (
    "import subprocess\n"
    "subprocess.check_output('(trap \"\" INT; while :; do sleep {mark}; done) | cat', shell=True)"
)


@pytest.mark.both_shapes
@pytest.mark.parametrize("how", ["timeout", "interrupted", "canceled", "cpu_limit", "left"])
def test_end_of_a_cell_ends_its_processes_and_none_of_an_earlier_cell(
    client: httpx.Client, new_session: Callable[..., Session], run: Any, how: str
) -> None:
    earlier, own = (str(secrets.randbelow(10**8) + 10**8) for _ in range(2))
    session = new_session(limits={"cpu_seconds": 1})

    def n_alive(mark: str) -> int:
        find = f"grep -lxz '[{mark[0]}]{mark[1:]}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
        return int(run(find).stdout)

    session.run(f"import subprocess\nsubprocess.Popen(['sleep', '{earlier}'])")
    code = PIPELINE.format(mark=own)
    if how == "timeout":
        done = session.run(code, timeout_seconds=1.5)
    elif how == "left":
        done = {"survivors": [], "exit_reason": how}
        path = f"{session.path}/execute"
        accept = {"Accept": "text/event-stream"}
        with client.stream("POST", path, json={"code": code}, headers=accept) as answer:
            events = answer.iter_raw()  # kept: without this name the connection would close here
            next(events)
            wait_until(lambda: n_alive(own) > 0, ENOUGH_SECONDS, "the pipeline runs")
        wait_until(lambda: session.show()["state"] == "IDLE", ENOUGH_SECONDS, "the cell has ended")
    else:
        if how == "cpu_limit":
            code = code.replace("| cat", "| (while :; do :; done)")
        begun = session.start(code)
        wait_until(lambda: n_alive(own) > 0, ENOUGH_SECONDS, "the pipeline runs")
        if how == "interrupted":
            session.post("interrupt")
        elif how == "canceled":
            client.post(f"/v1/executions/{begun}/kill", json={}).raise_for_status()
        done = session.ended(begun)
    assert (n_alive(own), n_alive(earlier)) == (0, 1)
    assert (done["exit_reason"], done["survivors"]) == (how, [])
    assert session.run("1")["generation"] == 1


def test_same_cell_again_is_answered_with_the_same_result(
    client: httpx.Client, session: Session
) -> None:
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"code": "n = globals().get('n', 0) + 1; n"}
    first = client.post(f"{session.path}/execute", json=body, headers=headers)
    second = client.post(f"{session.path}/execute", json=body, headers=headers)
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert session.value("n") == "1"


def test_same_cell_again_is_answered_though_its_session_is_gone(
    client: httpx.Client, new_session: Callable[..., Session]
) -> None:
    session = new_session()
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = client.post(f"{session.path}/execute", json={"code": "6 * 7"}, headers=headers).json()
    assert client.delete(session.path).status_code == 204
    for query in ("", "?create=true"):
        again = client.post(
            f"{session.path}/execute{query}", json={"code": "6 * 7"}, headers=headers
        )
        assert (again.status_code, again.json()) == (200, first)
    assert client.get(session.path).status_code == 404
    assert (
        client.post(
            f"{session.path}/execute", json={"code": "another"}, headers=headers
        ).status_code
        == 422
    )


def test_same_code_again_is_answered_with_the_same_result(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"code": "import uuid; uuid.uuid4().hex"}
    first = client.post("/v1/code", json=body, headers=headers)
    second = client.post("/v1/code", json={**body, "keep": False}, headers=headers)
    assert first.status_code == 200
    assert first.json() == second.json()
    assert second.headers["idempotent-replayed"] == "true"
    assert client.post("/v1/code", json={"code": "1"}, headers=headers).status_code == 422


@pytest.mark.both_shapes
def test_kill_of_a_cell_ends_its_generation_when_it_must(
    client: httpx.Client, session: Session
) -> None:
    running = session.start("import time\ntime.sleep(60)")
    done = client.post(f"/v1/executions/{running}/kill", json={"grace_seconds": 0}).json()
    assert (done["status"], done["exit_reason"]) == ("error", "canceled")
    assert session.run("1")["generation"] == 2


# --- sessions


def test_session_has_its_own_directory_and_environment(new_session: Callable[..., Session]) -> None:
    session = new_session(env={"COLOUR": "blue"}, cwd="/")
    assert session.value(
        "import os; (os.getcwd(), os.environ['COLOUR'], os.environ['EXECD_SESSION_ID'])"
    ) == str(("/", "blue", session.id))
    assert session.run("!echo $COLOUR; pwd")["stdout"] == "blue\n/\n"


def test_sessions_do_not_see_each_other(new_session: Callable[..., Session]) -> None:
    first, second = new_session(), new_session()
    first.run("x = 1")
    assert second.run("x")["error"]["name"] == "NameError"


def test_session_shows_where_it_stands(client: httpx.Client, session: Session) -> None:
    session.run("x = 1")
    shown = session.show()
    assert (shown["id"], shown["state"], shown["generation"], shown["execution_count"]) == (
        session.id,
        "IDLE",
        1,
        1,
    )
    assert shown["session_id"] == session.id
    assert shown["uptime_seconds"] > 0
    assert shown["created_at"] <= shown["last_used_at"]
    assert shown["memory_bytes"] > 1 << 20
    assert session.id in [item["id"] for item in client.get("/v1/sessions").json()["items"]]


@pytest.mark.both_shapes
def test_deleted_session_ends_what_it_started_and_is_forgotten(
    new_session: Callable[..., Session], run: Any
) -> None:
    session = new_session()
    seconds = str(secrets.randbelow(10**8) + 10**8)
    session.run(f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{seconds}'])")
    find = f"grep -lz '[{seconds[0]}]{seconds[1:]}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    assert run(find).stdout.strip() == "1"
    assert session.client.delete(session.path).status_code == 204
    assert run(find).stdout.strip() == "0"
    assert session.client.get(session.path).status_code == 404
    assert session.post("execute", code="1").status_code == 404


def test_taken_id_is_a_conflict(new_session: Callable[..., Session]) -> None:
    session = new_session()
    answer = session.client.post("/v1/sessions", json={"id": session.id})
    assert (answer.status_code, answer.json()["code"]) == (409, "CONFLICT")


def test_missing_session_is_made_when_asked_for(client: httpx.Client) -> None:
    name = f"made-{secrets.token_hex(4)}"
    assert client.post(f"/v1/sessions/{name}/execute", json={"code": "1"}).status_code == 404
    assert (
        client.post(f"/v1/sessions/{name}/execute?create=true", json={"code": "x = 1"}).json()[
            "generation"
        ]
        == 1
    )
    assert client.post(f"/v1/sessions/{name}/execute", json={"code": "x"}).json()["result"][
        "data"
    ] == {"text/plain": "1"}
    assert client.delete(f"/v1/sessions/{name}").status_code == 204


def test_request_that_is_refused_leaves_no_session(client: httpx.Client) -> None:
    name = f"made-{secrets.token_hex(4)}"
    answer = client.post(
        f"/v1/sessions/{name}/execute?create=true", json={"code": "1", "id": "not an id"}
    )
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "id"})
    assert client.get(f"/v1/sessions/{name}").status_code == 404
    answer = client.post("/v1/code", json={"code": "1", "session_id": "not an id"})
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "session_id"})


def test_restart_begins_a_generation_without_state(session: Session) -> None:
    session.run("x = 1")
    running = session.start("import time\ntime.sleep(60)")
    assert session.post("restart").json()["generation"] == 2
    assert session.ended(running)["exit_reason"] == "interrupted"
    after = session.run("x")
    assert (after["error"]["name"], after["state_lost"]) == ("NameError", True)


# --- names


def test_names_are_completed_and_listed(session: Session) -> None:
    session.run("import math\nforty_two = 42")
    completed = session.post("complete", code="1 + forty_").json()
    assert completed == {"matches": ["forty_two"], "cursor_start": 4, "cursor_end": 10}
    listed = session.client.get(f"{session.path}/variables").json()["variables"]
    assert "forty_two" in [variable["name"] for variable in listed]


@pytest.mark.parametrize("character", ["a", "a.", "\\", "é", "a\n"])
def test_completion_of_a_long_text_keeps_the_state(session: Session, character: str) -> None:
    session.run("forty_two = 42")
    code = character * (5_000_000 // len(character)) + " forty_"
    answer = session.post("complete", code=code)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cursor_end"] == len(code)
    if character in ("é", "a\n"):
        assert answer.json()["matches"] == ["forty_two"]
        assert answer.json()["cursor_start"] == len(code) - len("forty_")
    assert session.value("forty_two") == "42"


def test_over_4096_variables_are_refused_before_they_cost_the_state(session: Session) -> None:
    session.run("x = 1")
    for count, status in ((50_000, 400), (4097, 400), (4096, 200)):
        env = {f"VARIABLE_{n}": "" for n in range(count)}
        body = {"code": "import os; print(os.environ['VARIABLE_4000'], x)", "env": env}
        for path in (f"{session.path}/execute", "/v1/code"):
            answer = (
                session.client.post(path, json={**body, "session_id": session.id})
                if (path == "/v1/code")
                else session.client.post(path, json=body)
            )
            assert answer.status_code == status, answer.text
            if status == 400:
                assert answer.json()["message"].startswith(f"env: {count} variables, ")
            else:
                assert (answer.json()["stdout"], answer.json()["generation"]) == (" 1\n", 1)
        if status == 400:
            made = session.client.post("/v1/sessions", json={"env": env})
            assert made.status_code == 400, made.text


def test_cell_without_code_tells_the_number_of_the_cell_before(session: Session) -> None:
    counts = [session.run(code)["execution_count"] for code in ("", "1", " \n", "", "1", "1/0")]
    assert counts == [0, 1, 1, 1, 2, 3]
    assert session.show()["execution_count"] == 3


# --- a single call


def test_code_without_a_session_leaves_none(client: httpx.Client) -> None:
    done = client.post("/v1/code", json={"code": "print('hi')\nx = 1"}).json()
    assert (done["status"], done["stdout"], done["exit_code"]) == ("success", "hi\n", 0)
    assert done["execution_id"]
    wait_until(
        lambda: client.get(f"/v1/sessions/{done['session_id']}").status_code == 404,
        ENOUGH_SECONDS,
        "it is deleted",
    )


def test_code_without_a_session_ends_as_a_script_does(client: httpx.Client) -> None:
    name = f"end-{secrets.token_hex(4)}"
    done = client.post(
        "/v1/code",
        json={
            "code": "import atexit, gzip\n"
            f"plain, packed = open('{name}.txt', 'w'), gzip.open('{name}.gz', 'wt')\n"
            "plain.write('text'); packed.write('text')\n"
            "atexit.register(print, 'bye');"
        },
    ).json()
    assert (done["status"], done["stdout"], done["stderr"]) == ("success", "bye\n", "")
    assert client.get(f"/v1/files/{name}.txt").content == b"text"
    assert gzip.decompress(client.get(f"/v1/files/{name}.gz").content) == b"text"
    for end in ("txt", "gz"):
        client.delete(f"/v1/files/{name}.{end}")


def test_replacement_of_a_stream_stays_for_the_next_cells(session: Session) -> None:
    name = f"tee-{secrets.token_hex(4)}"
    session.run(
        "import os, sys\n"
        "class Tee:\n"
        f"    def __init__(self, out): self.out, self.log = out, open('{name}', 'w', 1)\n"
        "    def write(self, text): self.log.write(text); return self.out.write(text)\n"
        "    def flush(self): self.out.flush()\n"
        "sys.stdout = Tee(sys.stdout)\nprint('one')"
    )
    assert session.run("print('two')")["stdout"] == "two\n"
    assert session.client.get(f"/v1/files/{name}").content == b"one\ntwo\n"
    session.run("sys.stdout = os.fdopen(1, 'w', 1)")
    done = session.run(f"f = open('{name}', 'w')\nprint('three')\nn = f.write('a')\nf.close()")
    assert (done["stdout"], done["stderr"]) == ("three\n", "")
    assert session.client.get(f"/v1/files/{name}").content == b"a"
    session.run("sys.stdout.close()")
    done = session.run("print('four')")
    assert done["stdout"] == "four\n"
    assert "sys.stdout could not be written to any more" in done["stderr"]
    session.client.delete(f"/v1/files/{name}")


def test_code_in_a_named_session_finds_its_state(client: httpx.Client) -> None:
    name = f"code-{secrets.token_hex(4)}"
    first = client.post(
        "/v1/code", json={"code": "x = 20", "session_id": name, "env": {"A": "1"}}
    ).json()
    assert (first["session_id"], first["status"]) == (name, "success")
    second = client.post(
        "/v1/code", json={"code": "import os; x + int(os.environ['A'])", "session_id": name}
    ).json()
    assert second["result"]["data"] == {"text/plain": "21"}
    assert client.delete(f"/v1/sessions/{name}").status_code == 204


def test_kept_code_names_its_session(client: httpx.Client) -> None:
    done = client.post("/v1/code", json={"code": "x = 1", "keep": True}).json()
    again = client.post("/v1/code", json={"code": "x", "session_id": done["session_id"]}).json()
    assert again["result"]["data"] == {"text/plain": "1"}
    assert client.delete(f"/v1/sessions/{done['session_id']}").status_code == 204


def test_command_of_a_session_shares_its_directory_and_environment(
    new_session: Callable[..., Session],
) -> None:
    session = new_session(env={"COLOUR": "red"}, cwd="/")
    done = session.client.post(
        "/v1/executions", json={"command": "pwd; echo $COLOUR", "session_id": session.id}
    ).json()
    assert done["stdout"] == "/\nred\n"
    assert (
        session.client.post(
            "/v1/executions", json={"command": "pwd", "session_id": "nobody"}
        ).status_code
        == 404
    )


# --- hostile


def test_frames_that_a_cell_forges_end_no_more_than_its_worker(
    new_session: Callable[..., Session],
) -> None:
    other, session = new_session(), new_session()
    other.run("x = 1")
    forge = (
        "import os, json\n"
        "frame = json.dumps({'type': 'done', 'id': 1, 'status': 'success', 'execution_count': "
        "99, 'exit': None}).encode()\n"
        "for fd in range(3, 1024):\n"
        "    for data in (b'\\xff' * 64, len(frame).to_bytes(4, 'big') + frame):\n"
        "        try:\n            os.write(fd, data)\n        except OSError:\n            pass\n"
    )
    session.run(forge, timeout_seconds=10)
    shown = session.show()
    assert shown["execution_count"] == 1
    assert session.value("1 + 1") == "2"
    assert other.value("x") == "1"


def test_session_in_a_directory_that_is_not_there_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/sessions", json={"cwd": "/no/such/place"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")


def test_sessions_run_side_by_side(
    new_session: Callable[..., Session], client: httpx.Client
) -> None:
    sessions = [new_session() for _ in range(4)]
    began = time.monotonic()
    running = [session.start("import time\ntime.sleep(1.5)\n'done'") for session in sessions]
    done = [session.ended(cell) for session, cell in zip(sessions, running, strict=True)]
    assert [one["result"]["data"]["text/plain"] for one in done] == ["'done'"] * 4
    assert time.monotonic() - began < sum(one["duration_seconds"] for one in done)
