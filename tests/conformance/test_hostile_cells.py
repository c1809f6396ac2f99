"""Hundreds of cells that mean harm. Each cell and the next cell get honest answers; neither the
daemon nor a neighbour suffers.

The cells are in tables (``hostile_to_*``) with the allowed endings of each cell. The cells of a
kind run in a test of their own, in a few sessions side by side. Each cell begins in a fresh
generation of the session (after a restart, or after the loss of the state): the damage by a cell is
no excuse for the next cell.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ..patience import patience
from . import hostile_to_answers, hostile_to_process, hostile_to_python
from .conftest import Run
from .hostile_cell import ANYTHING, Ending, HostileCell
from .sessions import Session
from .target import wait_until
from .test_hostile import probing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

CELLS = {**hostile_to_process.CELLS, **hostile_to_python.CELLS, **hostile_to_answers.CELLS}
LANES = 4
AT_LEAST = 300

TIMEOUT_SECONDS = {Ending.STOPS: 1.0, Ending.KILLED: 1.0, Ending.ANY: 2.0, Ending.BREAKS: 2.0}
PATIENCE_SECONDS = 30.0
"""For cells that must end by themselves: only a very slow sandbox reaches this limit."""
LATE_SECONDS = 5.0
GREETING_SECONDS = 10.0
"""After this time the daemon replaces a silent process from which sessions are forked."""
LIMITS = {"memory_bytes": 3 << 30}
"""Protects the machine that runs the tests."""

REASONS = {
    Ending.LIVES: {"exited"},
    Ending.FORGETS: {"exited"},
    Ending.BREAKS: {"exited", "worker_died", "timeout"},
    Ending.DIES: {"worker_died"},
    Ending.STOPS: {"timeout"},
    Ending.KILLED: {"timeout"},
    Ending.ANY: {
        "exited",
        "worker_died",
        "timeout",
        "process_limit",
        "output_limit",
        "memory_limit",
    },
}
LIVING = {Ending.LIVES, Ending.FORGETS, Ending.STOPS}
DEAD = {Ending.DIES, Ending.KILLED}
OPEN = {Ending.ANY, Ending.BREAKS}


@pytest.fixture
def make_session(client: httpx.Client, run: Run, folder: str) -> Iterator[Callable[[], Session]]:
    """Make sessions, each in a separate directory below ``folder`` that also holds the temporary
    files. An earlier test that hit all processes may cause a clear refusal or two."""
    made: list[Session] = []
    base = run.out(f"cd {folder} && pwd -P").strip()

    def make() -> Session:
        where = f"{base}/{len(made)}"
        run.out(f"mkdir {where}")
        wish = {"cwd": where, "env": {"TMPDIR": where}, "limits": LIMITS}

        def is_made() -> bool:
            answer = client.post("/v1/sessions", json=wish)
            assert answer.status_code in (201, 503), answer.text
            if answer.status_code == 201:
                made.append(Session(client, answer.json()["id"]))
            return answer.status_code == 201

        wait_until(is_made, 3 * GREETING_SECONDS, "a session is made")
        return made[-1]

    yield make
    for session in made:
        assert client.delete(session.path).status_code == 204


def shortened(done: dict[str, Any]) -> str:
    """An answer, fit for the message of a failure."""
    names = (
        "status",
        "exit_code",
        "exit_reason",
        "generation",
        "state_lost",
        "result",
        "error",
        "duration_seconds",
        "message",
    )
    return str({name: str(done.get(name))[:300] for name in names})


def check_answer(cell: HostileCell, done: dict[str, Any], elapsed_seconds: float) -> None:
    shown = shortened(done)
    limit_seconds = TIMEOUT_SECONDS.get(cell.ending, PATIENCE_SECONDS)
    assert elapsed_seconds < patience(limit_seconds + LATE_SECONDS), shown
    assert done["exit_reason"] in REASONS[cell.ending], shown
    assert done["timed_out"] is (done["exit_reason"] == "timeout"), shown
    assert done["status"] in ("success", "error"), shown
    assert (done["exit_code"] == 0) is (done["status"] == "success"), shown
    if done["status"] == "success":
        assert (done["exit_reason"], done["exit_code"], done["error"]) == ("exited", 0, None), shown
    if cell.raises is None:
        assert done["status"] == "success", shown
    elif cell.raises != ANYTHING:
        assert done["status"] == "error", shown
        assert done["error"]["name"] == cell.raises, shown


def check_next(session: Session, cell: HostileCell, done: dict[str, Any]) -> bool:
    """The next cell is right, with the state or without; the session reports the loss of the state
    once. Return whether the state was lost."""
    timeout_seconds = TIMEOUT_SECONDS[cell.ending] if cell.ending in OPEN else PATIENCE_SECONDS
    after = session.run("6 * 7", timeout_seconds=timeout_seconds)
    shown = f"{shortened(done)}; then {shortened(after)}"
    if after["exit_reason"] in ("worker_died", "timeout") and cell.ending in OPEN:
        # The process was dying, or still busy after reporting the end of the cell. So this cell
        # learns of the loss.
        assert (after["generation"], after["state_lost"]) == (done["generation"], False), shown
        must_be_lost = after["exit_reason"] == "worker_died"
        after = session.run("6 * 7", timeout_seconds=timeout_seconds)
        shown += f"; then {shortened(after)}"
        assert after["state_lost"] or not must_be_lost, shown
    is_lost = after["generation"] == done["generation"] + 1
    assert is_lost or after["generation"] == done["generation"], shown
    assert after["state_lost"] is is_lost, shown
    assert not (is_lost and cell.ending in LIVING), shown
    assert is_lost or cell.ending not in DEAD, shown
    assert is_lost or done["exit_reason"] in ("exited", "timeout"), shown
    if not is_lost and cell.ending is Ending.BREAKS:
        return False
    assert (after["exit_reason"], after["status"]) == ("exited", "success"), shown
    assert after["result"]["data"] == {"text/plain": "42"}, shown
    kept = session.run("kept", timeout_seconds=PATIENCE_SECONDS)
    shown += f"; then {shortened(kept)}"
    assert (kept["generation"], kept["state_lost"]) == (after["generation"], False), shown
    assert kept["exit_reason"] == "exited", shown
    if is_lost or cell.ending is Ending.FORGETS:
        assert kept["error"] is not None, shown
        assert kept["error"]["name"] == "NameError", shown
    else:
        assert kept["result"]["data"] == {"text/plain": repr(session.id)}, shown
    return is_lost


def begin_afresh(session: Session) -> None:
    before = session.show()
    answer = session.post("restart")
    assert answer.status_code == 200, answer.text
    done = keep(session)
    assert done["generation"] == before["generation"] + 1, shortened(done)
    assert done["state_lost"], shortened(done)


def keep(session: Session) -> dict[str, Any]:
    done = session.run(f"kept = {session.id!r}")
    assert (done["status"], done["error"]) == ("success", None), shortened(done)
    return done


def run_cell(session: Session, neighbour: Session, cell: HostileCell) -> bool:
    """Whether the cell has cost the session its state."""
    began = time.monotonic()
    done = session.run(
        cell.code, timeout_seconds=TIMEOUT_SECONDS.get(cell.ending, PATIENCE_SECONDS)
    )
    check_answer(cell, done, time.monotonic() - began)
    if cell.left:
        commands = Run(session.client)
        wait_until(
            lambda: commands.count_alive(cell.left) == 0, PATIENCE_SECONDS, "the process has ended"
        )
    is_lost = check_next(session, cell, done)
    assert session.client.get("/").status_code == 200
    theirs = neighbour.run("kept")
    assert theirs["exit_reason"] == "exited", shortened(theirs)
    assert theirs["result"]["data"] == {"text/plain": repr(neighbour.id)}, shortened(theirs)
    assert (theirs["generation"], theirs["state_lost"]) == (1, False), shortened(theirs)
    return is_lost


def test_cells_are_as_many_as_is_said() -> None:
    codes = [cell.code for kind in CELLS.values() for cell in kind.values()]
    assert len(set(codes)) == len(codes) >= AT_LEAST


@pytest.mark.shape_by_user
@pytest.mark.parametrize("kind", CELLS)
def test_hostile_cell_leaves_an_honest_next_one(
    client: httpx.Client, make_session: Callable[[], Session], kind: str
) -> None:
    neighbour = make_session()
    neighbour.run(f"kept = {neighbour.id!r}")
    lanes = [make_session() for _ in range(LANES)]
    for session in lanes:
        session.run(f"kept = {session.id!r}")
    waiting = deque(CELLS[kind].items())
    failures: list[str] = []
    lock = threading.Lock()

    def work(session: Session) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                name, cell = waiting.popleft()
            is_fresh = False
            try:
                is_fresh = run_cell(session, neighbour, cell)
            except Exception as error:  # every cell is tried, whatever the rest did
                failures.append(f"{name}: {cell.ending}: {type(error).__name__}: {error}")
            try:
                if is_fresh:
                    keep(session)
                else:
                    begin_afresh(session)
            except Exception as error:
                failures.append(f"{name}, restarted: {type(error).__name__}: {error}")
                return

    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(work, lanes))
    assert not failures, "\n\n".join(failures)
    assert not waiting
    assert client.get(neighbour.path).json()["generation"] == 1


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("name", hostile_to_process.AT_LARGE)
def test_death_of_everything_in_reach_is_told_to_every_session(
    client: httpx.Client, make_session: Callable[[], Session], name: str
) -> None:
    session, neighbour = make_session(), make_session()
    # A second check: without namespaces "everything in reach" is the machine that runs this test.
    assert session.value("import os; os.getppid()") == "1"
    for one in (session, neighbour):
        one.run(f"kept = {one.id!r}")
    with probing(client):
        done = session.run(hostile_to_process.AT_LARGE[name], timeout_seconds=3)
        assert done["exit_reason"] in ("exited", "worker_died", "init_killed", "timeout"), (
            shortened(done)
        )
        assert (done["status"] == "success") is (done["exit_code"] == 0), shortened(done)
        for one in (session, neighbour):
            check_survivor(one)


def check_survivor(session: Session) -> None:
    """The session has the state, or reports the loss. Before the loss is known the daemon may
    refuse cells, or cells may time out in a stopped process."""

    def answers() -> bool:
        answer = session.post("execute", code="6 * 7, globals().get('kept')", timeout_seconds=1)
        assert answer.status_code in (200, 429, 503), answer.text
        if answer.status_code != 200:
            return False
        found.append(answer.json())
        assert found[-1]["exit_reason"] in ("exited", "worker_died", "init_killed", "timeout"), (
            shortened(found[-1])
        )
        return found[-1]["status"] == "success"

    found: list[dict[str, Any]] = []
    wait_until(answers, 3 * GREETING_SECONDS, "its cells run again")
    after = found[-1]
    is_lost = after["generation"] > 1
    assert any(one["state_lost"] for one in found) is is_lost, shortened(after)
    assert after["result"]["data"] == {"text/plain": str((42, None if is_lost else session.id))}, (
        shortened(after)
    )
