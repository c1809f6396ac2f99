"""Named terminals: a shell that starts when somebody first asks, and lives until it ends or is
deleted, whoever looks on.

A terminal whose shell has ended stays for as long as the engine remembers the execution of the
shell. Otherwise the terminals would keep output that no limit counts. A terminal whose shell has
never started makes room for a new terminal, if there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from execd.engine.bash_sessions import NAME_OF_BASH
from execd.engine.executions.command import argv_program, line_argument
from execd.engine.executions.stdio import TERMINAL_TYPE
from execd.errors import ExecdError, NotFound, ResourceExhausted
from execd.model import NO_ORIGIN, Command, ExitReason, State, TerminalSize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.engine.executions.execution import Execution
    from execd.model import Origin

MAX_TERMINALS = 256
"""Named terminals at once. More are 429."""
UNUSED_SECONDS = 60.0
"""How long a terminal keeps its place without a first viewer while others need places."""
BASH_OPTIONS = ("--noprofile", "--norc")


class NamedTerminal:
    """A shell that may not have started yet. Made by ``Terminals.create``."""

    def __init__(self, terminal_id: str, cwd: str | None, command: str | None) -> None:
        self.id = terminal_id
        self.cwd = cwd
        self.command = command
        """The command of the shell; None: an interactive shell."""
        self.created_at = time.monotonic()
        self.execution: Execution | None = None
        self.has_terminal = True
        """False: the shell has pipes."""
        self.viewer: Callable[[], None] | None = None
        """Sends the present viewer away. None: nobody looks on."""

    @property
    def is_running(self) -> bool:
        return self.execution is not None and self.execution.state is not State.EXITED

    @property
    def output_bytes(self) -> int:
        """The number of bytes that the shell has written so far."""
        return 0 if self.execution is None else self.execution.view.total_bytes("stdout")


class Terminals:
    """The terminals by id. End with ``close``."""

    def __init__(
        self,
        run: Callable[[Command], Execution],
        is_remembered: Callable[[str], bool],
        *,
        bash: str,
    ) -> None:
        """``run`` starts a command. ``is_remembered``: whether the engine remembers the execution
        with this id. ``bash``: the path of bash."""
        self._run = run
        self._bash = bash
        self._is_remembered = is_remembered
        self._terminals: dict[str, NamedTerminal] = {}

    def __len__(self) -> int:
        return len(self._terminals)

    def create(self, *, cwd: str | None = None, command: str | None = None) -> NamedTerminal:
        """Raises ResourceExhausted."""
        self._drop_forgotten()
        if len(self._terminals) >= MAX_TERMINALS:
            self._drop_unused()
        if len(self._terminals) >= MAX_TERMINALS:
            raise ResourceExhausted(
                f"{MAX_TERMINALS} terminals exist already; delete one", retry_after_seconds=5
            )
        terminal = NamedTerminal(secrets.token_hex(16), cwd, command)
        self._terminals[terminal.id] = terminal
        return terminal

    def get(self, terminal_id: str) -> NamedTerminal:
        """Raises NotFound."""
        self._drop_forgotten()
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            raise NotFound(f"there is no terminal {terminal_id!r}")
        return terminal

    def _drop_forgotten(self) -> None:
        for terminal in list(self._terminals.values()):
            execution = terminal.execution
            if execution is not None and not self._is_remembered(execution.id):
                del self._terminals[terminal.id]

    def _drop_unused(self) -> None:
        """Forget the oldest terminal whose shell nobody has started in time."""
        until = time.monotonic() - UNUSED_SECONDS
        for terminal in self._terminals.values():  # the oldest first
            if terminal.execution is None and terminal.created_at <= until:
                del self._terminals[terminal.id]
                return

    def start(
        self,
        terminal: NamedTerminal,
        *,
        has_terminal: bool,
        env: Mapping[str, str],
        origin: Origin = NO_ORIGIN,
    ) -> Execution:
        """Start the shell, or return the execution of the shell that was started before.
        ``has_terminal`` counts at the first start only. Raises NotFound if the terminal is
        forgotten, and the errors of ``Engine.submit``."""
        if terminal.execution is not None:
            return terminal.execution
        self.get(terminal.id)
        words = [self._bash, *BASH_OPTIONS]
        if terminal.command is not None:
            words += ["-c", line_argument(terminal.command), NAME_OF_BASH]
        terminal.has_terminal = has_terminal
        terminal.execution = self._run(
            Command(
                program=argv_program(words),
                env={"TERM": TERMINAL_TYPE, **env},
                cwd=terminal.cwd,
                stdin_open=True,
                terminal=TerminalSize() if has_terminal else None,
                detached=True,
                origin=origin,
            )
        )
        return terminal.execution

    async def end(self, terminal: NamedTerminal) -> None:
        """End the shell with all its processes, and forget the terminal. Idempotent."""
        self._terminals.pop(terminal.id, None)
        execution = terminal.execution
        if execution is not None:
            execution.end(ExitReason.CANCELED, 0.0)
            await execution.ended()
            await execution.end_rest(0.0)

    async def close(self) -> None:
        """Delete all terminals."""
        with contextlib.suppress(ExecdError):
            await asyncio.gather(*(self.end(one) for one in list(self._terminals.values())))
