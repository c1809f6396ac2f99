"""The output between cells, and the stream of a session, over plain HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from .sessions import ENOUGH_SECONDS, Session
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

NDJSON = {"Accept": "application/x-ndjson"}
LATER = "import sys; print('from a thread'); print('to stderr', file=sys.stderr)"


@pytest.fixture
def session(client: httpx.Client) -> Iterator[Session]:
    answer = client.post("/v1/sessions", json={})
    assert answer.status_code == 201, answer.text
    made = Session(client, answer.json()["id"])
    yield made
    client.delete(made.path)


def run_between_cells(session: Session, code: str) -> dict[str, Any]:
    """Run a cell with a thread that runs ``code`` as soon as the cell has ended. Returns the cell's
    reply."""
    gate = f"gate-{uuid.uuid4()}"
    reply = session.run(
        "import os, threading, time\n"
        "def later():\n"
        f"    while not os.path.exists({gate!r}): time.sleep(0.01)\n"
        f"    os.remove({gate!r})\n"
        f"    exec({code!r}, globals())\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    session.client.put(f"/v1/files/{gate}", content=b"").raise_for_status()
    return reply


def wrote(session: Session, size_bytes: int) -> None:
    """Wait until the session has written so much between cells."""
    wait_until(
        lambda: session.show()["unclaimed_output_bytes"] >= size_bytes,
        ENOUGH_SECONDS,
        f"the session has written {size_bytes} bytes between cells",
    )


@contextlib.contextmanager
def stream_of(
    session: Session, query: str = "", headers: dict[str, str] | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    path = f"{session.path}/events{query}"
    with session.client.stream("GET", path, headers={**NDJSON, **(headers or {})}) as answer:
        assert answer.status_code == 200, answer.read()
        yield (json.loads(line) for line in answer.iter_lines() if line)


def until(events: Iterator[dict[str, Any]], kind: str, **fields: object) -> list[dict[str, Any]]:
    """Read up to the event of this kind with these fields."""
    found = []
    for event in events:
        found.append(event)
        if event["event"] == kind and fields.items() <= event.items():
            return found
    raise AssertionError(f"the stream has no {kind} {fields}: {found}")


def test_output_between_cells_is_in_the_next_reply(session: Session) -> None:
    assert run_between_cells(session, LATER)["background"] is None
    wrote(session, len("from a thread\nto stderr\n"))
    done = session.run("print('own')")
    assert done["stdout"] == "own\n"
    assert done["background"] == {
        "stdout": "from a thread\n",
        "stderr": "to stderr\n",
        "truncated": None,
    }
    again = session.client.get(f"/v1/executions/{done['id']}?encoding=base64").json()
    assert base64.b64decode(again["background"]["stdout_base64"]) == b"from a thread\n"
    assert session.show()["unclaimed_output_bytes"] == 0
    assert session.run("1")["background"] is None


def test_output_of_children_between_cells_is_in_the_next_reply(session: Session) -> None:
    run_between_cells(session, "import subprocess; subprocess.Popen('echo child', shell=True)")
    wrote(session, len("child\n"))
    assert session.run("1")["background"]["stdout"] == "child\n"


def test_much_output_between_cells_is_cut_to_its_newest_part(session: Session) -> None:
    n_lines = 100_000
    run_between_cells(session, f"for n in range({n_lines}): print(f'{{n:07}}')")
    wrote(session, 8 * n_lines)
    background = session.run("1")["background"]
    cut = background["truncated"]["stdout"]
    assert (cut["total_bytes"], cut["head_bytes"]) == (8 * n_lines, 0)
    marker, _, kept = background["stdout"].partition("\n")
    assert marker == f"[execd: {cut['omitted_bytes']} bytes omitted]"
    assert len(kept) == 8 * n_lines - cut["omitted_bytes"] <= 128 * 1024
    assert kept.endswith(f"{n_lines - 1:07}\n")


def test_stream_of_a_session_has_its_output_between_cells(session: Session) -> None:
    with stream_of(session) as events:
        run_between_cells(session, LATER)
        seen = until(events, "stderr")
        [written] = [event for event in seen if event["event"] == "stdout"]
        assert (written["offset"], written["size_bytes"]) == (0, 14)
        assert (written["text"], seen[-1]["text"]) == ("from a thread\n", "to stderr\n")


def test_stream_of_a_session_tells_its_cells_and_states(session: Session) -> None:
    cell = session.run("1 / 0")
    asking = session.start("input('name? ')", allow_input=True)
    with stream_of(session) as events:
        seen = until(events, "state", state="WAITING_INPUT")
        assert [event["event"] for event in seen] == [
            *("state", "state", "cell_started", "cell_ended", "cell_started", "state")
        ]
        assert [event["state"] for event in seen if event["event"] == "state"] == [
            *("STARTING", "IDLE", "WAITING_INPUT")
        ]
        assert (seen[-1]["prompt"], seen[-1]["password"]) == ("name? ", False)
        assert (seen[2]["id"], seen[2]["generation"]) == (cell["id"], 1)
        assert (seen[3]["id"], seen[3]["status"], seen[3]["exit_reason"], seen[3]["state"]) == (
            *(cell["id"], "error", "exited", "IDLE"),
        )
        assert seen[4]["id"] == asking
        assert session.post("input", text="x").json() == {"written_bytes": 1}
        assert until(events, "state")[-1]["state"] == "BUSY"
        assert until(events, "cell_ended")[-1]["id"] == asking
        session.run("import os; os._exit(3)")
        assert until(events, "state", state="DEAD")
        assert until(events, "cell_ended")[-1]["exit_reason"] == "worker_died"
        session.run("1")
        seen = until(events, "cell_started")
        assert (seen[-1]["generation"], seen[-1]["state_lost"]) == (2, True)
        assert session.client.delete(session.path).is_success
        assert until(events, "deleted")
        assert list(events) == []


def test_stream_of_a_session_resumes_at_any_event(session: Session) -> None:
    for number in range(3):
        session.run(f"{number}")
    with stream_of(session) as events:
        seen = [next(events) for _ in range(8)]
    numbers = [event["sequence"] for event in seen]
    assert numbers == list(range(numbers[0], numbers[0] + 8))
    for position, number in enumerate(numbers[:-1]):
        for query, headers in ((f"?after={number}", {}), ("", {"Last-Event-ID": str(number)})):
            with stream_of(session, query, headers) as events:
                assert next(events) == seen[position + 1]
    newest = numbers[-1]
    answer = session.client.get(f"{session.path}/events?after={newest + 1}")
    assert (answer.status_code, answer.json()["details"]["newest_event"]) == (400, newest)
    answer = session.client.get(f"{session.path}/events?after=1")
    assert (answer.status_code, answer.json()["code"]) == (410, "GONE")


def test_stream_of_a_session_is_for_browsers_too(session: Session) -> None:
    session.run("1")
    path = f"{session.path}/events"
    with session.client.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        number, kind, data = next(lines), next(lines), next(lines)
        assert number.startswith("id: ")
        assert kind == "event: state"
        assert json.loads(data.removeprefix("data: "))["state"] == "STARTING"
    assert session.client.head(path).status_code == 200
    assert session.client.get("/v1/sessions/nobody/events").status_code == 404


def test_flood_between_cells_holds_up_nobody_and_readers_are_told_of_holes(
    session: Session, client: httpx.Client
) -> None:
    seen: list[dict[str, Any]] = []

    def read() -> None:
        with stream_of(session) as events:
            seen.extend(until(events, "deleted"))

    reader = threading.Thread(target=read)
    reader.start()
    run_between_cells(session, "for _ in range(2000): os.write(1, b'x' * 10_000)")
    wrote(session, 20_000_000)
    assert client.get("/").status_code == 200
    assert session.run("1 + 1")["status"] == "success"
    client.delete(session.path)
    reader.join(ENOUGH_SECONDS)
    assert not reader.is_alive()
    reached = 0
    for event in seen:
        if event["event"] == "stdout" or event.get("stream") == "stdout":
            assert event["offset"] == reached
            reached += event["size_bytes"]
    assert reached == 20_000_000
