"""Named terminals. What viewers see: wings/opensandbox/tests/test_pty_routes.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from execd.engine.terminals import UNUSED_SECONDS
from execd.errors import NotFound, ResourceExhausted
from execd.model import ExitReason, State

if TYPE_CHECKING:
    from execd.engine.engine import Engine


async def test_shell_starts_once_and_lives_without_readers(engine: Engine) -> None:
    terminal = engine.terminals.create(command="read line; exit 3")
    assert not terminal.is_running
    execution = engine.terminals.start(terminal, has_terminal=True, env={})
    assert engine.terminals.start(terminal, has_terminal=False, env={}) is execution
    assert terminal.has_terminal
    await execution.wait_started()
    with execution.attach():
        pass
    assert execution.state is State.RUNNING
    await execution.write_stdin(b"\n")
    assert (await execution.wait()).exit_code == 3
    assert terminal.output_bytes > 0


async def test_command_that_begins_as_an_option_is_a_command(engine: Engine) -> None:
    terminal = engine.terminals.create(command="-x; exit 3")
    execution = engine.terminals.start(terminal, has_terminal=False, env={})
    assert (await execution.wait()).exit_code == 3


async def test_search_path_of_the_caller_does_not_hide_the_shell(engine: Engine) -> None:
    terminal = engine.terminals.create(command="echo $0; exit 3")
    execution = engine.terminals.start(terminal, has_terminal=False, env={"PATH": "/nowhere"})
    assert (await execution.wait()).exit_code == 3
    assert await execution.view.read("stdout", 0, 5) == b"bash\n"


async def test_deletion_ends_the_shell_and_forgets_the_name(engine: Engine) -> None:
    terminal = engine.terminals.create()
    execution = engine.terminals.start(terminal, has_terminal=True, env={})
    await engine.terminals.end(terminal)
    assert (await execution.wait()).exit_reason is ExitReason.CANCELED
    with pytest.raises(NotFound):
        engine.terminals.get(terminal.id)
    await engine.terminals.end(terminal)


async def test_too_many_terminals_are_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.terminals.MAX_TERMINALS", 1)
    engine.terminals.create()
    with pytest.raises(ResourceExhausted):
        engine.terminals.create()


async def test_terminal_that_nobody_has_used_makes_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.terminals.MAX_TERMINALS", 3)
    used, unused, newer = (engine.terminals.create() for _ in range(3))
    execution = engine.terminals.start(used, has_terminal=True, env={})
    with pytest.raises(ResourceExhausted):
        engine.terminals.create()
    used.created_at, unused.created_at, newer.created_at = 1000.0, 1000.0, 1001.0
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + UNUSED_SECONDS)
    monkeypatch.setattr("execd.engine.terminals.time", clock)
    engine.terminals.create()
    with pytest.raises(ResourceExhausted):
        engine.terminals.create()
    assert engine.terminals.get(used.id).execution is execution
    assert engine.terminals.get(newer.id) is newer
    with pytest.raises(NotFound):
        engine.terminals.start(unused, has_terminal=True, env={})


async def test_drain_ends_all_terminals(engine: Engine) -> None:
    terminal = engine.terminals.create()
    engine.terminals.start(terminal, has_terminal=True, env={})
    await engine.drain()
    assert not terminal.is_running


async def test_terminal_goes_with_the_execution_of_its_ended_shell(engine: Engine) -> None:
    terminal = engine.terminals.create(command="exit 0")
    execution = engine.terminals.start(terminal, has_terminal=True, env={})
    await execution.wait()
    assert engine.terminals.get(terminal.id) is terminal
    await engine.forget(execution)
    with pytest.raises(NotFound):
        engine.terminals.get(terminal.id)
