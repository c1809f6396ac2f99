"""``POST /v1/sessions/{id}/fork``: branches have the state of their original."""

from __future__ import annotations

from .sessions import Session


def test_branches_have_the_state_and_go_their_own_ways(session: Session) -> None:
    session.run("import os\nx = [1]\nos.environ['A'] = 'set'\nos.chdir('/')")
    answer = session.post("fork", count=3)
    assert answer.status_code == 201, answer.text
    branches = [Session(session.client, shown["id"]) for shown in answer.json()["sessions"]]
    try:
        for number, branch in enumerate(branches):
            assert branch.value(f"x.append({number}); x, os.getcwd(), os.environ['A']") == str(
                ([1, number], "/", "set")
            )
        assert session.value("x") == "[1]"
        assert len({branch.value("os.getpid()") for branch in branches}) == 3
        assert len({branch.value("import random; random.random()") for branch in branches}) == 3
        died = branches[0].run("os._exit(1)")
        assert died["exit_reason"] == "worker_died"
        after = branches[0].run("x")
        assert (after["generation"], after["state_lost"]) == (2, True)
        assert branches[1].value("x") == "[1, 1]"
    finally:
        for branch in branches:
            session.client.delete(branch.path)


def test_branch_counts_on_from_the_cells_of_its_original(session: Session) -> None:
    for _ in range(3):
        session.run("1")
    [shown] = session.post("fork").json()["sessions"]
    branch = Session(session.client, shown["id"])
    try:
        assert shown["execution_count"] == session.show()["execution_count"] == 3
        assert branch.run("1")["execution_count"] == branch.show()["execution_count"] == 4
    finally:
        session.client.delete(branch.path)


def test_session_counts_as_its_cells_do(session: Session) -> None:
    for code in ("1", "", "get_ipython().execution_count = 50", "2"):
        assert session.run(code)["execution_count"] == session.show()["execution_count"]
    assert session.post("restart").json()["execution_count"] == 0
    assert session.run("os")["execution_count"] == session.show()["execution_count"] == 1
    assert session.run("import os; os._exit(1)")["execution_count"] is None
    assert session.run("1")["execution_count"] == session.show()["execution_count"] == 1
    [shown] = session.post("fork").json()["sessions"]
    branch = Session(session.client, shown["id"])
    try:
        assert (shown["execution_count"], branch.run("1")["execution_count"]) == (1, 2)
    finally:
        session.client.delete(branch.path)


def test_branch_of_a_session_without_state_has_nothing_to_lose(session: Session) -> None:
    session.run("x = 1")
    assert session.post("restart").status_code == 200
    [shown] = session.post("fork").json()["sessions"]
    branch = Session(session.client, shown["id"])
    try:
        assert branch.post("restart").status_code == 200
        first = branch.run("1")
        assert (first["generation"], first["state_lost"]) == (2, False)
        assert session.run("1")["state_lost"] is True
    finally:
        session.client.delete(branch.path)


def test_fork_says_what_did_not_come_along(session: Session) -> None:
    session.run(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    )
    answer = session.post("fork", id=f"{session.id}-branch").json()
    assert "thread" in " ".join(answer["warnings"])
    assert [shown["id"] for shown in answer["sessions"]] == [f"{session.id}-branch"]
    session.client.delete(f"/v1/sessions/{session.id}-branch")


def test_busy_session_is_not_forked(session: Session) -> None:
    running = session.start("import time\ntime.sleep(600)")
    assert session.post("fork").json()["code"] == "SESSION_BUSY"
    session.post("interrupt")
    session.ended(running)
