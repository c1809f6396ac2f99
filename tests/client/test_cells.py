"""Sessions against a daemon."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from execd_client import (
    AsyncExecd,
    CellFailed,
    Conflict,
    Execd,
    NotFound,
    SessionBusy,
)
from tests.conformance.target import Target, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_variables_stay_and_values_displays_and_errors_are_told(sandbox: Execd) -> None:
    with sandbox.sessions.create("cells", env={"A": "1"}) as session:
        assert session.run("import os; x = 41").ok
        cell = session.run("print(os.environ['A']); x + 1")
        assert (cell.text, cell.stdout, cell.execution_count) == ("42", "1\n", 2)
        failed = session.run("1 / 0")
        assert failed.error is not None
        assert (failed.error.name, failed.ok) == ("ZeroDivisionError", False)
        with pytest.raises(CellFailed, match="ZeroDivisionError: division by zero"):
            failed.check()
        assert [variable.name for variable in session.variables()] == ["os", "x"]
        assert "os" in session.complete("import o").matches
        assert session.info().state == "IDLE"
        assert "cells" in [made.id for made in sandbox.sessions.list()]
        with pytest.raises(Conflict):
            sandbox.sessions.create("cells")
        assert sandbox.sessions.get_or_create("cells").run("x").text == "41"
    with pytest.raises(NotFound):
        sandbox.sessions.get("cells")


@pytest.mark.third_party
def test_a_plot_is_an_image_that_can_be_saved(sandbox: Execd, tmp_path: Path) -> None:
    with sandbox.sessions.create() as session:
        cell = session.run("import matplotlib.pyplot as plt; plt.plot([1, 4, 9]);")
    (image,) = cell.images
    assert image.save(tmp_path / "plot") == tmp_path / "plot.png"
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    data, _ = image._repr_mimebundle_()
    assert "image/png" in data


def test_a_notebook_shows_the_cell(sandbox: Execd, capsys: pytest.CaptureFixture[str]) -> None:
    with sandbox.sessions.create() as session:
        cell = session.run("print('out'); {'a': 1}")
        failed = session.run("undefined")
    assert cell._repr_mimebundle_()[0] == {"text/plain": "{'a': 1}"}
    cell._ipython_display_()
    failed._ipython_display_()
    shown = capsys.readouterr().out
    assert shown.startswith("out\n")
    assert "{'a': 1}" in shown
    assert "NameError" in shown


def test_events_of_a_cell_have_bundles(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        events = list(session.stream("print('a'); display('b'); 'c'"))
        shown = {event.kind: event.bundle.text for event in events if event.bundle}
        assert shown == {"display": "'b'", "result": "'c'"}
        kinds: list[str] = []
        assert session.run("1", on_event=lambda event: kinds.append(event.kind)).text == "1"
        assert kinds == ["started", "result", "exited"]


def test_forks_have_the_state_and_go_their_own_ways(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        session.run("x = [1]")
        branches = session.fork(3)
        texts = [branch.run(f"x.append({n}); x").text for n, branch in enumerate(branches)]
        assert texts == ["[1, 0]", "[1, 1]", "[1, 2]"]
        assert session.run("x").text == "[1]"
        for branch in branches:
            branch.delete()


def test_a_fork_warns_of_what_the_branches_do_not_have(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        assert session.warnings == []
        session.run("import threading; stop = threading.Event()").check()
        session.run("thread = threading.Thread(target=stop.wait); thread.start()").check()
        branches = session.fork(2)
        for branch in branches:
            assert any("thread" in warning for warning in branch.warnings)
            branch.delete()
        session.run("stop.set()").check()


def test_a_cell_is_interrupted_asked_and_answered(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        handle = session.start("import time; time.sleep(600)")
        wait_until(lambda: session.info().state == "BUSY", 30, "the cell runs")
        with pytest.raises(SessionBusy):
            session.run("1", on_busy="reject")
        assert session.interrupt()
        assert handle.wait().exit_reason == "interrupted"

        def answer() -> None:
            wait_until(lambda: session.info().prompt == "name? ", 30, "the cell asks")
            session.input("Ada")

        thread = threading.Thread(target=answer)
        thread.start()
        assert session.run("input('name? ')", allow_input=True).text == "'Ada'"
        thread.join()
        assert session.restart().generation == 2
        assert session.run("'time' in globals()").text == "False"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_is_a_step_of_a_path_is_no_session(sandbox: Execd, name: str) -> None:
    with pytest.raises(ValueError, match="id: "):
        sandbox.sessions.get(name)


def test_lost_state_is_told(sandbox: Execd) -> None:
    with sandbox.sessions.create() as session:
        assert session.run("import os; os._exit(1)").exit_reason == "worker_died"
        assert session.run("1").state_lost


async def test_the_async_client_has_sessions_too(target: Target) -> None:
    async with AsyncExecd(target.url) as sandbox, await sandbox.sessions.create() as session:
        await session.run("x = 1")
        assert [event.kind async for event in session.stream("x")][1] == "result"
        (branch,) = await session.fork()
        assert (await branch.run("x + 1")).text == "2"
        await branch.delete()
        assert (await sandbox.sessions.get_or_create("made-by-need")).id == "made-by-need"
        assert (await (await sandbox.sessions.get("made-by-need")).run("3")).text == "3"
