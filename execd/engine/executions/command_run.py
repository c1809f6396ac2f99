"""The runner of a command: the warden spawns the program, and ends the program with its whole tree.

"Exited" is the warden's wait4, never end of file. After the exit the reply waits for the end of the
pipes, for the drain grace at most, because a descendant may hold them open. ``held_pipes`` reads
such pipes from then on.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from execd.engine.executions import exit_status
from execd.engine.executions.command import argv_program, is_argv, parse_identity
from execd.engine.executions.environment import keep_path_at_login, marker_entry
from execd.engine.executions.execution import KILL_ANSWER_SECONDS
from execd.engine.executions.state import ExecutionPhase
from execd.engine.executions.stdio import TERMINAL_TYPE, ProgramIO, give_to_user
from execd.errors import ResourceExhausted, Unavailable
from execd.model import UNKNOWN_USAGE, ExitReason, Result
from execd.proc import kernel_traits
from execd.proc.child import Child, Lost
from execd.proc.client import SpawnError, WardenLost
from execd.proc.messages import Exited, Spawn
from execd.proc.program_block import pack
from execd.proc.rlimits import rlimits

if TYPE_CHECKING:
    from execd.engine.executions.context import EngineContext
    from execd.engine.executions.direct_exec import DirectStart
    from execd.engine.executions.execution import Execution
    from execd.engine.executions.starts import Starts
    from execd.engine.output.pump import Pump
    from execd.model import Command, Stream
    from execd.proc.client import WardenClient
    from execd.proc.messages import Killed

NO_SHELL = (
    "command: this image has no shell (/bin/sh), and the line is more than a program with plain "
    "words; use argv, a list of the program and its arguments"
)
LIMIT_REASONS = {
    "processes": ExitReason.PROCESS_LIMIT,
    "memory": ExitReason.MEMORY_LIMIT,
    "cpu": ExitReason.CPU_LIMIT,
}


class CommandRunner:
    """A ``Runner``. Owns the program's descriptors and its ``Child`` from ``start`` to the end of
    ``finish``, and pipes that other processes hold until ``leave``."""

    def __init__(
        self,
        context: EngineContext,
        starts: Starts,
        execution_id: str,
        after: asyncio.Future[None] | None = None,
    ) -> None:
        """``starts``: where the command waits for its turn. ``after``: done when the command may
        come there; until then the command holds no place. Raises ResourceExhausted if too many
        wait already."""
        self._context = context
        self._starts = starts
        self._id = execution_id
        self._child: Child | None = None
        self._io: ProgramIO | None = None
        self._ended_tag: int | None = None
        """The warden's number of the program. The program has ended, and may have left
        descendants."""
        self._remains: CommandRemains | None = None
        self._spared: tuple[Execution, dict[Stream, Pump]] | None = None
        """The execution, which has ended, and the pumps of pipes that other processes hold."""
        self._stands_for_dash = False
        """The program runs in the place of a dash that would report the program's end."""
        self._has_arrived = False
        if after is None or after.done():
            self.turn = self._arrive()
        else:
            self.turn = context.loop.create_future()
            after.add_done_callback(self._arrive_late)

    def _arrive(self) -> asyncio.Future[None]:
        turn = self._starts.arrive(self._id)
        self._has_arrived = True
        return turn

    def _arrive_late(self, after: asyncio.Future[None]) -> None:
        """``turn`` follows the turn among all commands, unless the command waits no more."""
        if after.cancelled() or self.turn.done():
            return
        try:
            self._arrive().add_done_callback(self._take_turn)
        except ResourceExhausted as error:
            self.turn.set_exception(error)

    def _take_turn(self, turn: asyncio.Future[None]) -> None:
        if not (turn.cancelled() or self.turn.done()):
            self.turn.set_result(None)

    @property
    def obstacle(self) -> str:
        if not self._has_arrived:
            return "another run of the same session has the session's turn"
        return (
            f"all {self._context.config.max_running} places are taken, or too many programs are "
            "being started"
        )

    @property
    def is_running(self) -> bool:
        return self._child is not None

    @property
    def tree_tag(self) -> int | None:
        return None if self._child is None else self._child.tag

    def leave(self) -> None:
        if self._spared is not None:
            execution, pumps = self._spared
            make_spool = self._context.spool_maker(execution.id, execution.command.limits)
            self._context.held_pipes.take(execution.id, execution.output, pumps, make_spool)
        if self._has_arrived:
            self._starts.leave(self._id)

    # Requests of callers, while the program runs.

    def signal(self, number: int) -> None:
        self._stands_for_dash = False  # dash would have got the signal too, and have ended
        self._program()[0].signal(number, scope="group")

    async def write_stdin(self, data: bytes) -> None:
        await self._program()[1].write(data)

    async def end_stdin(self) -> None:
        await self._program()[1].end()

    def resize(self, cols: int, rows: int) -> None:
        child, io = self._program()
        has_changed = io.resize(cols, rows)
        # Whoever comes back to a terminal of the same size wants a full screen drawn again.
        if not (has_changed and kernel_traits.find().signals_terminals):
            child.signal(signal.SIGWINCH, scope="session")

    def _program(self) -> tuple[Child, ProgramIO]:
        assert self._child is not None
        assert self._io is not None
        return self._child, self._io

    # Called by the execution.

    async def start(self, execution: Execution) -> Result | None:
        command = execution.command
        shell, words = self._context.default_shell, None
        if shell.is_missing and (words := shell.words_instead(command.program)) is not None:
            command = msgspec.structs.replace(command, program=argv_program(words))
        for is_retry in (False, True):
            if not self._context.warden.up.is_set():
                await self._wait_for_warden(execution)
            env, marker = await self._context.build_environment(
                execution.id, command.env, clears=command.clears_env
            )
            if command.terminal is not None:
                env.setdefault("TERM", TERMINAL_TYPE)
            if not command.clears_env and self._context.config.image_env == "off":
                keep_path_at_login(env, command.program.argv)
            io = self._open_io(execution)
            try:
                direct = self._context.direct_exec.find(command, env)
                execution.requested()
                request = spawn_request(command, self._context, io, env, marker, direct)
                give_to_user(io.descriptors, request.uid, request.gid)
                # ``launch`` closes the descriptors, whatever happens.
                descriptors, io.descriptors = io.descriptors, []
                child = await self._context.warden.launch(
                    request,
                    descriptors,
                    functools.partial(_on_limit, execution),
                    functools.partial(self._starts.mark_idle, self._id),
                )
            except SpawnError as error:
                await io.close()
                if not self._may_retry(execution, error) or is_retry:
                    return self._failed_start(command, error)
                await self._context.ensure_base_dir()
            except WardenLost:
                await io.close()
                return Result(
                    exit_code=None,
                    term_signal=None,
                    exit_reason=execution.cause or ExitReason.INIT_KILLED,
                    usage=UNKNOWN_USAGE,
                )
            except BaseException:
                await io.close()
                raise
            else:
                break
        if not child.is_direct:
            shell.note_start(command.program.argv[0])
        self._stands_for_dash = child.is_direct and direct is not None and direct.shell_forks
        if child.is_direct or words is not None:
            execution.started_by = "direct"
        else:
            execution.started_by = "argv" if is_argv(command.program) else "shell"
        self._begin(execution, child, io)
        return None

    def _open_io(self, execution: Execution) -> ProgramIO:
        try:
            return ProgramIO(execution.command, execution.append, self._context.loop)
        except OSError as error:
            raise ResourceExhausted(
                f"no descriptors for another execution: {error.strerror}; repeat the request when "
                "executions have ended"
            ) from error

    def _begin(self, execution: Execution, child: Child, io: ProgramIO) -> None:
        self._child, self._io, execution.pid = child, io, child.pid
        has_ended = child.exited.done()
        if not has_ended:
            io.start()
        # Under uvloop the loop's clock counts whole milliseconds. The program started before now:
        # a crowd can keep this process waiting between the spawn and this line.
        execution.started(time.monotonic() - child.spawned_at, has_ended=has_ended)

    def _may_retry(self, execution: Execution, error: SpawnError) -> bool:
        """Return whether the base dir was missing, which user code may have removed: then the start
        is tried once more in a new base dir. Note a shell that cannot be executed."""
        command = execution.command
        if error.step == "exec" and command.user is None:
            self._context.default_shell.note_failure(command.program.argv[0], error)
        return (
            error.step == "cwd"
            and command.cwd is None
            and execution.phase is ExecutionPhase.STARTING
        )

    def _failed_start(self, command: Command, error: SpawnError) -> Result:
        """A missing shell is a failed start too, and not the caller's mistake: callers cannot know
        the image, and the file may come with the next upload."""
        message = str(error)
        if error.step == "exec" and self._context.default_shell.is_missed_by(command.program):
            message = NO_SHELL
        return Result(
            exit_code=None,
            term_signal=None,
            exit_reason=ExitReason.SPAWN_FAILED,
            message=message,
            stand_in_exit_code=exit_status.code_of_failed_start(error.step, error.error),
        )

    async def _wait_for_warden(self, execution: Execution) -> None:
        try:
            async with asyncio.timeout(execution.seconds_left(execution.command.queue_seconds)):
                await self._context.warden.up.wait()
        except TimeoutError:
            raise Unavailable(
                "nothing can be started: the parent process of user code is being replaced; repeat "
                "the request in a moment"
            ) from None

    async def finish(self, execution: Execution) -> Result:
        child, io = self._program()
        deadlines = execution.deadlines
        try:
            ended = await deadlines.unless_overdue(child.exited)
            if isinstance(ended, Exited):
                ended_at, spawn_seconds = ended.at, ended.spawn_seconds
            else:
                ended_at, spawn_seconds = time.monotonic(), 0.0
            duration_seconds = round(ended_at - child.spawned_at + spawn_seconds, 6)
            if (
                execution.cause is None
                and ended_at >= deadlines.deadline
                and isinstance(ended, Exited)
            ):
                # The message came before the deadline's timer had its turn. The order in which the
                # daemon learns of the two decides nothing.
                execution.end(
                    ExitReason.TIMEOUT,
                    self._context.config.timeout_grace_seconds,
                    at=deadlines.deadline,
                )
            if execution.cause is not None:
                await deadlines.unless_overdue(child.killed)
            else:  # in time; no deadline ends a descendant that holds the pipes
                deadlines.stop()
            await io.drain(
                min(self._context.config.drain_grace_seconds, deadlines.seconds_to_answer)
            )
            if execution.cause is not None:  # perhaps only since the drain
                await deadlines.unless_overdue(child.killed)
        finally:
            execution.finished()
            self._child = self._io = None
            # With the end of a session's leader the kernel hangs up the group in the foreground,
            # and no other job (credentials(7)). gVisor sends nothing, and does not tell which group
            # that was: a shell without jobs leaves its own there.
            if io.has_terminal and not kernel_traits.find().signals_terminals:
                child.signal(signal.SIGHUP, scope="group")
            if pumps := await io.close(spares_pipes=True):
                self._spared = execution, pumps
            child.release()
            self._ended_tag = child.tag
        if self._stands_for_dash and isinstance(ended, Exited):
            ended = await _reported_by_dash(execution, ended)
        killed = child.killed.result() if child.killed.done() else None
        return decide(execution, ended, killed, duration_seconds)

    def terminate(self, grace_seconds: float, unless_ended_before: float) -> None:
        self._program()[0].kill(grace_seconds, unless_ended_before=unless_ended_before)

    def sample(self) -> bool:
        """Never done by its own word: the warden says when a program has ended."""
        if self._io is not None:
            self._io.read_now()
        return False

    def remains(self) -> CommandRemains | None:
        if self._remains is None and self._ended_tag is not None:
            self._remains = CommandRemains(self._context.warden, self._ended_tag, self._id)
        return self._remains


class CommandRemains:
    """The descendants of a program that has ended. Made anew from the program's number: a child of
    the warden's client is too large to be remembered with each execution."""

    __slots__ = ("_child", "_execution_id", "_tag", "_warden")

    def __init__(self, warden: WardenClient, tag: int, execution_id: str) -> None:
        self._warden = warden
        self._tag = tag
        self._execution_id = execution_id
        self._child: Child | None = None

    async def end_rest(self, grace_seconds: float) -> None:
        if not self._warden.up.is_set():  # with the warden everything ends
            return
        if self._child is None:
            self._child = Child(
                self._warden, self._tag, _ignore_limit, marker_entry(self._execution_id), None
            )
        child = self._child
        try:
            await asyncio.wait(
                (child.kill_rest(grace_seconds),), timeout=grace_seconds + KILL_ANSWER_SECONDS
            )
        finally:
            child.release()


def _ignore_limit(_limit: str, _value: int) -> None:
    """Drop the report: the execution has ended, so the limits of its descendants end nothing."""


def spawn_request(
    command: Command,
    context: EngineContext,
    io: ProgramIO,
    env: dict[str, str],
    marker: str,
    direct: DirectStart | None,
) -> Spawn:
    """The command as the warden's message. Raises SpawnError."""
    identity = context.identity if command.user is None else parse_identity(command.user)
    cwd = command.cwd or context.config.base_dir
    try:
        program = pack(command.program.argv, env, cwd, None if direct is None else direct.program)
    except ValueError as error:
        raise SpawnError(str(error), "request", 0) from None
    return Spawn(
        tag=context.warden.new_tag(),
        program=program,
        stdio=io.stdio,
        terminal=io.has_terminal,
        limits=rlimits(command.limits, in_namespace=context.warden.has_namespace),
        processes=command.limits.processes or 0,
        marker=marker,
        uid=identity.uid,
        gid=identity.gid,
        groups=None if identity.groups is None else list(identity.groups),
        memory_bytes=command.limits.memory_bytes or 0,
        announce=command.keeps_order,
    )


async def _reported_by_dash(execution: Execution, ended: Exited) -> Exited:
    """Return the end as dash would have reported the end of its program, below all that the program
    wrote. execd's own end of a tree ends dash too, so nobody reports."""
    if execution.cause is not None and ended.at >= execution.cause_at:
        return ended
    wait_status, words = exit_status.as_reported_by_dash(ended.wait_status)
    stream: Stream = "stdout" if execution.command.merges_output else "stderr"
    if words and (write := execution.append(stream, words)) is not None:
        await write
    return ended._replace(wait_status=wait_status)


def _on_limit(execution: Execution, limit: str, value: int) -> None:
    execution.exceed_limit(LIMIT_REASONS[limit], value)


def decide(
    execution: Execution,
    ended: Exited | Lost | None,
    killed: Killed | Lost | None,
    duration_seconds: float,
) -> Result:
    """Make the result from what the warden said of the program's end and of the kill.

    ``ended`` is Lost when the kernel killed the program along with the warden, and None when the
    program has got KILL and has not ended yet.
    """
    n_killed = 0 if killed is None or isinstance(killed, Lost) else killed.killed
    survivors = () if killed is None else tuple(killed.survivors)
    streams = execution.output.streams
    output_bytes = streams["stdout"].total_bytes + streams["stderr"].total_bytes
    if ended is None or isinstance(ended, Lost):
        if isinstance(ended, Lost):
            survivors = ended.survivors
        elif execution.pid is not None and not survivors:
            survivors = (execution.pid,)
        return Result(
            exit_code=None,
            term_signal=signal.SIGKILL,
            exit_reason=execution.cause or ExitReason.INIT_KILLED,
            usage=msgspec.structs.replace(UNKNOWN_USAGE, output_bytes=output_bytes),
            duration_seconds=duration_seconds,
            killed=n_killed,
            survivors=survivors,
        )
    exit_ = exit_status.decode(ended.wait_status)
    cause = execution.cause if ended.at >= execution.cause_at else None
    return Result(
        exit_code=exit_.exit_code,
        term_signal=exit_.term_signal,
        exit_reason=cause
        or exit_status.natural_reason(
            exit_,
            execution.command.limits,
            ended.user_seconds + ended.system_seconds,
            streams["stderr"].memory,
        ),
        usage=exit_status.usage(ended, output_bytes),
        duration_seconds=duration_seconds,
        killed=n_killed,
        survivors=survivors,
    )
