"""One run of a command: spawned by the warden, ended with its whole tree.

"Exited" is the warden's wait4, never end of file: after it the pipes are read for the drain grace
at most.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from execd.engine.executions import exit_status
from execd.engine.executions.execution import KILL_ANSWER_SECONDS, Execution
from execd.engine.executions.stdio import ProgramIO
from execd.errors import ResourceExhausted, Unavailable
from execd.model import ExitReason, Result, Usage
from execd.proc import messages
from execd.proc.child import Lost
from execd.proc.client import SpawnError, WardenLost
from execd.proc.rlimits import rlimits
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.execution import Keeper
    from execd.engine.executions.starts import Starts
    from execd.model import Command
    from execd.proc.child import Child
    from execd.proc.messages import Exited, Killed

LIMIT_REASONS = {
    "processes": ExitReason.PROCESS_LIMIT,
    "memory": ExitReason.MEMORY_LIMIT,
    "cpu": ExitReason.CPU_LIMIT,
}


class CommandRun(Execution):
    """See the module's text."""

    def __init__(
        self,
        execution_id: str,
        command: Command,
        context: EngineContext,
        keeper: Keeper,
        starts: Starts,
        *,
        key: str | None,
        payload: str,
        is_kept: bool,
    ) -> None:
        """``starts``: where the command waits for its turn. Raises ResourceExhausted if too many
        wait already."""
        self._starts = starts
        self._io: ProgramIO | None = None
        self._child: Child | None = None
        self._released: Child | None = None
        """What has ended, and may have left descendants."""
        turn = starts.arrive(execution_id)
        super().__init__(
            execution_id, command, context, keeper, turn, key=key, payload=payload, is_kept=is_kept
        )

    def signal(self, number: int) -> None:
        self._running()[0].signal(number, scope="group")

    async def write_stdin(self, data: bytes) -> None:
        await self._running()[1].write(data)

    async def end_stdin(self) -> None:
        await self._running()[1].end()

    def resize(self, cols: int, rows: int) -> None:
        child, io = self._running()
        io.resize(cols, rows)
        child.signal(signal.SIGWINCH, scope="session")

    def _running(self) -> tuple[Child, ProgramIO]:
        if self._child is None or self._io is None:
            self._refuse()
        return self._child, self._io

    # Its life.

    @property
    def _is_running(self) -> bool:
        return self._child is not None

    def _give_place_back(self) -> None:
        self._starts.leave(self.id)

    def _terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        assert self._child is not None
        self._child.kill(grace_seconds, unless_ended_before=unless_ended_before)

    def _read_output(self) -> None:
        if self._io is not None:
            self._io.read_now()

    async def end_rest(self, grace_seconds: float) -> None:
        child = self._released
        if child is None or not self._context.warden.up.is_set():  # with the warden everything ends
            return
        try:
            await asyncio.wait(
                (child.kill_rest(grace_seconds),), timeout=grace_seconds + KILL_ANSWER_SECONDS
            )
        finally:
            child.release()

    async def _wait_for_warden(self) -> None:
        if self._context.warden.up.is_set():
            return
        try:
            async with asyncio.timeout(self._seconds_left(self.command.queue_seconds)):
                await self._context.warden.up.wait()
        except TimeoutError:
            raise Unavailable(
                "nothing can be started: the parent process of user code is being replaced"
            ) from None

    async def _run(self) -> Result:
        try:
            child, io = await self._spawn()
        except SpawnError as error:
            return Result(
                exit_code=None,
                term_signal=None,
                exit_reason=ExitReason.SPAWN_FAILED,
                message=str(error),
            )
        except WardenLost:
            return Result(
                exit_code=None, term_signal=None, exit_reason=self._cause or ExitReason.INIT_KILLED
            )
        self._child, self._io, self.pid = child, io, child.pid
        if not child.exited.done():
            io.start()
        # Not the loop's clock, which under uvloop counts whole milliseconds; and not since now,
        # which may be later than the spawn by as much as a crowd keeps this process waiting.
        self._has_started(time.monotonic() - child.spawned_at)
        try:
            ended = await self._unless_overdue(child.exited)
            ended_at = ended.at if isinstance(ended, messages.Exited) else time.monotonic()
            duration_seconds = round(ended_at - child.spawned_at, 6)
            if (
                self._cause is None
                and ended_at >= self._deadline
                and isinstance(ended, messages.Exited)
            ):
                # Heard of before the timer's turn came: the order in which the daemon finds the two
                # decides nothing.
                self._overran(ExitReason.TIMEOUT, self._deadline)
            if self._cause is not None:
                await self._unless_overdue(child.killed)
            else:  # it made its deadlines; what holds its pipes has none
                self._stop_timers()
            await io.drain(
                min(self._context.config.drain_grace_seconds, self._answer_at - self._loop.time())
            )
            if self._cause is not None:  # perhaps only since a moment ago
                await self._unless_overdue(child.killed)
        finally:
            self._is_over = True
            self._child = self._io = None
            # what closing it means to those who still use it, and gVisor does not tell them
            if io.has_terminal:
                child.signal(signal.SIGHUP, scope="session")
            await io.close()
            child.release()
            self._released = child
        return self._decide(
            ended, child.killed.result() if child.killed.done() else None, duration_seconds
        )

    async def _spawn(self) -> tuple[Child, ProgramIO]:
        try:
            return await self._spawn_once()
        except SpawnError as error:
            if error.step != "cwd" or self.command.cwd is not None or self._cause is not None:
                raise
            # User code may have removed the base dir. It is made again, and a second failure is the
            # answer.
            await self._context.ensure_base_dir()
            return await self._spawn_once()

    async def _spawn_once(self) -> tuple[Child, ProgramIO]:
        context, command = self._context, self.command
        await self._wait_for_warden()
        env, marker = await context.build_environment(self.id, command.env)
        try:
            io = ProgramIO(command, self._append)
        except OSError as error:
            raise ResourceExhausted(
                f"no descriptors for another execution: {error.strerror}"
            ) from error
        try:
            # The warden's client takes the program's ends over, come what may.
            descriptors, io.descriptors = io.descriptors, []
            self.may_have_run = True
            child = await context.warden.spawn(
                argv=list(command.argv),
                env=env,
                cwd=command.cwd or context.config.base_dir,
                stdio=io.stdio,
                descriptors=descriptors,
                terminal=io.has_terminal,
                announce=command.keeps_order,
                marker=marker,
                limits=rlimits(command.limits, in_namespace=context.warden.has_namespace),
                processes=command.limits.processes or 0,
                memory_bytes=command.limits.memory_bytes or 0,
                identity=context.identity if command.user is None else parse_identity(command.user),
                on_limit=self._on_limit,
                on_rest=self._on_rest,
            )
        except BaseException:
            await io.close()
            raise
        return child, io

    def _on_rest(self) -> None:
        self._starts.is_at_rest(self.id)

    def _on_limit(self, limit: str, _value: int) -> None:
        """The warden is ending the tree already."""
        if self._is_over:
            return
        if self._cause is None:
            self._cause = LIMIT_REASONS[limit]
        self._answer_within(KILL_ANSWER_SECONDS)

    def _decide(
        self, ended: Exited | Lost | None, killed: Killed | Lost | None, duration_seconds: float
    ) -> Result:
        n_killed = 0 if killed is None or isinstance(killed, Lost) else killed.killed
        survivors = () if killed is None else tuple(killed.survivors)
        if ended is None or isinstance(ended, Lost):
            # Lost: the kernel killed it along with the warden. None: it has got KILL, and has not
            # ended from it yet.
            if isinstance(ended, Lost):
                survivors = ended.survivors
            elif self.pid is not None and not survivors:
                survivors = (self.pid,)
            return Result(
                exit_code=None,
                term_signal=signal.SIGKILL,
                exit_reason=self._cause or ExitReason.INIT_KILLED,
                duration_seconds=duration_seconds,
                killed=n_killed,
                survivors=survivors,
            )
        exit_ = exit_status.decode(ended.wait_status)
        cause = self._cause if ended.at >= self._cause_at else None
        cpu_seconds = ended.user_seconds + ended.system_seconds
        last_words = self.output.streams["stderr"].memory.newest(exit_status.LAST_WORDS_BYTES)
        return Result(
            exit_code=exit_.exit_code,
            term_signal=exit_.term_signal,
            exit_reason=cause
            or exit_status.natural_reason(exit_, self.command.limits, cpu_seconds, last_words),
            usage=Usage(
                user_seconds=ended.user_seconds,
                system_seconds=ended.system_seconds,
                max_rss_bytes=ended.max_rss_bytes,
                peak_tree_bytes=ended.peak_tree_bytes,
                processes=ended.processes,
                output_bytes=sum(log.total_bytes for log in self.output.streams.values()),
            ),
            duration_seconds=duration_seconds,
            killed=n_killed,
            survivors=survivors,
        )


def parse_identity(user: str | None) -> Identity:
    """UID or UID:GID; None: the daemon's own. No supplementary groups: those of the daemon are not
    the program's."""
    if user is None:
        return KEEP_IDENTITY
    uid, _, gid = user.partition(":")
    return Identity(int(uid), int(gid or uid), ())
