"""``env`` of a cell over plain HTTP: the variables hold for one cell."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from .sessions import Session
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

SEEN = "import os; os.environ.get('COLOUR'), os.environ.get('SHAPE')"
ENV = {"COLOUR": "red", "SHAPE": "round"}


@pytest.fixture
def session(client: httpx.Client) -> Iterator[Session]:
    """A session with a colour and no shape."""
    answer = client.post("/v1/sessions", json={"env": {"COLOUR": "blue"}})
    assert answer.status_code == 201, answer.text
    made = Session(client, answer.json()["id"])
    yield made
    client.delete(made.path)


def text_of(done: dict[str, Any]) -> str:
    assert done["status"] == "success", done
    return str(done["result"]["data"]["text/plain"])


def seen_by(session: Session, **fields: Any) -> str:
    return text_of(session.run(SEEN, **fields))


def test_environment_of_a_cell_holds_for_that_cell(session: Session) -> None:
    assert seen_by(session, env=ENV) == "('red', 'round')"
    assert seen_by(session) == "('blue', None)"
    assert seen_by(session, env={"SHAPE": "flat"}) == "('blue', 'flat')"
    assert seen_by(session) == "('blue', None)"


def test_children_of_a_cell_inherit_its_environment(session: Session) -> None:
    assert session.run("!echo $COLOUR $SHAPE", env=ENV)["stdout"] == "red round\n"
    assert session.run("!echo $COLOUR $SHAPE")["stdout"] == "blue\n"


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "raise SystemExit(3)",
        "import os; os.environ['COLOUR'] = os.environ['SHAPE'] = 'of the cell'",
        "import os; os.environ.clear()",
    ],
)
def test_environment_of_a_cell_is_undone_whatever_the_cell_did(session: Session, code: str) -> None:
    session.run(code, env=ENV)
    assert seen_by(session) == "('blue', None)"


def test_environment_of_a_cell_is_undone_after_an_interrupt_and_a_timeout(
    session: Session,
) -> None:
    cell = session.start("import time; time.sleep(60)", env=ENV)
    wait_until(lambda: session.post("interrupt").json()["interrupted"], 20, "the cell is running")
    assert session.ended(cell)["exit_reason"] == "interrupted"
    assert seen_by(session) == "('blue', None)"
    done = session.run("import time; time.sleep(60)", env=ENV, timeout_seconds=1.5)
    assert done["exit_reason"] == "timeout"
    assert seen_by(session) == "('blue', None)"
    assert session.show()["generation"] == 1


def test_other_variables_that_a_cell_sets_stay(session: Session) -> None:
    session.run("import os; os.environ['SIZE'] = 'large'", env=ENV)
    assert text_of(session.run("os.environ['SIZE']")) == "'large'"
    assert seen_by(session) == "('blue', None)"


def test_branch_has_no_variable_of_an_earlier_cell(session: Session) -> None:
    session.run("1", env=ENV)
    [shown] = session.post("fork").json()["sessions"]
    branch = Session(session.client, shown["id"])
    try:
        assert seen_by(branch) == "('blue', None)"
        assert seen_by(branch, env=ENV) == "('red', 'round')"
        assert seen_by(session) == "('blue', None)"
    finally:
        session.client.delete(branch.path)


def test_code_in_an_existing_session_has_its_environment_for_that_cell(session: Session) -> None:
    body = {"code": SEEN, "session_id": session.id}
    done = session.client.post("/v1/code", json={**body, "env": ENV}).json()
    assert text_of(done) == "('red', 'round')"
    assert text_of(session.client.post("/v1/code", json=body).json()) == "('blue', None)"


def test_code_that_makes_a_session_gives_it_its_environment(client: httpx.Client) -> None:
    name = f"made-{secrets.token_hex(4)}"
    try:
        for fields in ({"env": ENV}, {}):
            answer = client.post("/v1/code", json={"code": SEEN, "session_id": name, **fields})
            assert text_of(answer.json()) == "('red', 'round')"
    finally:
        client.delete(f"/v1/sessions/{name}")


def test_execute_that_makes_a_session_keeps_its_environment_for_that_cell(
    client: httpx.Client,
) -> None:
    path = f"/v1/sessions/made-{secrets.token_hex(4)}"
    try:
        for fields, seen in (({"env": ENV}, "('red', 'round')"), ({}, "(None, None)")):
            answer = client.post(f"{path}/execute?create=true", json={"code": SEEN, **fields})
            assert text_of(answer.json()) == seen
    finally:
        client.delete(path)


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "x\0y"}, {"A": None}, ["A"]])
@pytest.mark.parametrize("route", ["execute", "code"])
def test_names_in_the_environment_of_a_cell_follow_the_rules_of_commands(
    session: Session, route: str, env: object
) -> None:
    body = {"code": "1", "env": env}
    answer = (
        session.post("execute", **body)
        if route == "execute"
        else session.client.post("/v1/code", json={**body, "session_id": session.id})
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert answer.json()["details"]["field"].startswith("env")
    assert session.show()["execution_count"] == 0


def test_marker_of_a_cells_processes_cannot_be_set(session: Session) -> None:
    code = "import os; os.environ['EXECD_EXECUTION_ID']"
    marker = text_of(session.run(code))
    assert text_of(session.run(code, env={"EXECD_EXECUTION_ID": "mine"})) == marker
