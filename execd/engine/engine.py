"""The engine: the facade that dialects call. The parts and their order are in ``assembly``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec

from execd.engine.assembly import CONNECTIONS_SHARE, EXECUTIONS_SHARE, Parts
from execd.engine.capabilities import capabilities
from execd.engine.episodes import RESET_WORDS
from execd.engine.executions import command as commands
from execd.engine.executions import page_cursor, passwd
from execd.engine.executions.command_run import CommandRunner
from execd.engine.executions.execution import Execution
from execd.engine.executions.limits import NO_LIMITS
from execd.engine.executions.submission import Submission, Submitted
from execd.engine.figures import read_stats
from execd.engine.reset import Resets
from execd.engine.reset_steps import Shells
from execd.engine.restores import read_clocks
from execd.engine.usage_meter import UsageMeter
from execd.errors import ExecdError, InvalidArgument, NotFound, Unavailable
from execd.model import ExitReason, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from execd.config import Config
    from execd.engine.bash_sessions import BashSessions
    from execd.engine.checkpoints import Checkpoints
    from execd.engine.entrypoint import Entrypoint
    from execd.engine.executions.submission import CellOptions
    from execd.engine.metrics.stats import Stats
    from execd.engine.restores import Readings
    from execd.engine.terminals import Terminals
    from execd.model import Command


NAMED_PARTS = ("terminals", "bash_sessions")
"""Parts that are made at their first use."""


class SandboxUsage(NamedTuple):
    """The use of CPUs and memory by the whole sandbox."""

    cpu_count: float
    cpu_percent: float
    """Use of all CPUs together, from 0 to 100, since the last reading."""
    memory_size_bytes: int
    memory_used_bytes: int


PREPARING = "the checkpoint of the start is being made; repeat the request"


class Obstacle(NamedTuple):
    """The reason why no command can run."""

    cause: Literal["draining", "checkpoint", "reset", "warden", "shell"]
    message: str
    """The reason in words for callers, with the next step."""


class Engine:
    """A running engine: use ``async with Engine.open(config)``. All within one event loop."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self.config = config
        self.is_draining = False
        self.is_preparing = bool(config.checkpoint_at_start)
        """Whether the checkpoint of the start is still to be made, and no user code may run."""
        self.files = parts.files
        self.sandboxd_files = parts.sandboxd_files
        self.tree_files = parts.tree_files
        self.sessions = parts.sessions
        self.retention = parts.retention
        self.warden = parts.warden
        self.in_flight = parts.in_flight
        self.counters = parts.counters
        self.restores = parts.restores
        self.episodes = parts.episodes
        self.resets = Resets(parts, Shells(self._count_shells, self._end_shells))
        self._parts = parts
        self._registry = parts.registry
        self._idempotency = parts.idempotency
        self._started_at = time.monotonic()
        self._usage = UsageMeter()
        self.own_ports: set[int] = set()
        """The ports that the daemon itself listens on."""

    # Life.

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        config: Config,
        environment: Mapping[str, str] = os.environ,
        *,
        reap_orphans: bool = False,
        clocks: Callable[[], Readings] = read_clocks,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Self]:
        """An engine that is ready to run commands, for as long as the block. At the block's end
        everything that is left ends, within the rest of the shutdown timeout.

        ``reap_orphans``: reap every child of this process, also processes that execd did not
        start; for a daemon that is PID 1. ``clocks``: where restores are seen. ``meanwhile`` is
        called while the warden's process starts, and may block. Raises StateDirError, ExecdError
        (the base dir cannot be used), CannotStart.
        """
        async with contextlib.AsyncExitStack() as ends:
            parts = Parts(config, environment, ends, reap_orphans=reap_orphans, clocks=clocks)
            await parts.start(ends, meanwhile)
            engine = cls(config, parts)
            try:
                engine.resets.start()
                yield engine
            finally:
                await engine.resets.close()
                parts.shutdown.seconds_left()  # the shutdown's clock runs from here at the latest
                await engine._close_named_parts()

    def prepare_sessions(self) -> None:
        """Start the sessions' interpreter, if ``--sessions eager``. Otherwise the first session
        does. Returns at once.

        Not a part of ``open``: the interpreter takes a CPU for a fifth of a second, and the first
        answer of a daemon does not wait for sessions.
        """
        self.sessions.start()

    async def make_start_checkpoint(self) -> None:
        """Make the checkpoint of ``--checkpoint-at-start``, unless a former daemon has made it: the
        directories may not be as at the start any more. Then user code may run.

        Raises ExecdError: the daemon must end.
        """
        if self.is_preparing:
            from execd.engine.checkpoints import START

            if all(each.id != START for each in self.checkpoints.list()):
                await self.checkpoints.create(START, self.config.checkpoint_at_start)
            self.is_preparing = False

    async def start_entrypoint(
        self, entrypoint: Entrypoint, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Start the image's own program, after a reset that a former daemon has begun.
        ``environment``: the container's."""
        await self.resets.finished()
        self.resets.steps.entrypoint = entrypoint
        await entrypoint.start(self._parts, environment)

    async def drain(self) -> None:
        """Take nothing new; end what runs: TERM, then KILL, within the executions' share of the
        shutdown timeout. All callers get answers: with what is known, if a tree does not end in
        time."""
        self.is_draining = True
        await self.resets.close()
        self.sessions.drain()
        until = self.stop_by(EXECUTIONS_SHARE)
        grace = min(self.config.cancel_grace_seconds, self.config.shutdown_timeout / 3)
        ending = list(self._registry.live)
        for execution in ending:
            execution.end(ExitReason.SHUTDOWN, grace)
        if ending:
            waits = [asyncio.ensure_future(execution.wait()) for execution in ending]
            await asyncio.wait(waits, timeout=until - asyncio.get_running_loop().time())
            for execution in ending:
                execution.answer_now()
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await self.sessions.end_workers(self.stop_by(CONNECTIONS_SHARE))
        self.sessions.end_streams()
        self.tree_files.end_watch_streams()
        await self._close_named_parts()

    async def _close_named_parts(self) -> None:
        """Close terminals and bash sessions. Idempotent. Parts that no caller has used were never
        made, and are not made now."""
        if "terminals" in self.__dict__:
            await self.terminals.close()
        if "bash_sessions" in self.__dict__:
            await self.bash_sessions.close()

    def _count_shells(self) -> int:
        return sum(len(self.__dict__.get(name, ())) for name in NAMED_PARTS)

    async def _end_shells(self, within_seconds: float) -> bool:
        """Close terminals and bash sessions, and make new ones at the next use."""
        closing = asyncio.ensure_future(self._close_named_parts())
        done, _ = await asyncio.wait((closing,), timeout=within_seconds)
        for name in NAMED_PARTS:
            self.__dict__.pop(name, None)
        return bool(done) and closing.exception() is None

    @property
    def may_have_run(self) -> bool:
        """Whether any user code may have run under this daemon."""
        return self._parts.may_have_run

    def on_reset(self, call: Callable[[], Awaitable[None]]) -> None:
        """Have ``call`` forget what a dialect remembers of the episode, in each reset."""
        self.resets.steps.hooks.append(call)

    def kill_warden(self) -> None:
        """Kill the warden, and with the warden all user code in a PID namespace. Any thread may
        call this, for an end of the process in which the event loop does not run."""
        if (pid := self.warden.pid) is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    async def signals_sent(self) -> None:
        """Return once the warden has received every signal sent before, or is lost."""
        await asyncio.wait((self.warden.confirm_sent(),))

    def stop_by(self, share: float) -> float:
        """Return the time, on the loop's clock, when this share of the shutdown timeout is over."""
        return self._parts.shutdown.ends_at(share)

    # Facts.

    @property
    def is_ready(self) -> bool:
        """Whether a command sent now would run."""
        return self.obstacle is None

    @property
    def obstacle(self) -> Obstacle | None:
        """The reason why a command that is sent now would not run; None: the command would run."""
        if self.is_draining:
            return Obstacle("draining", "draining; use another sandbox")
        if self.episodes.is_closed:
            return Obstacle("reset", RESET_WORDS)
        if self.is_preparing:
            return Obstacle("checkpoint", PREPARING)
        if not self.warden.up.is_set():
            return Obstacle("warden", "no warden at the moment; repeat the request")
        if trouble := self._parts.default_shell.trouble:
            return Obstacle(
                "shell",
                f"commands have no shell: {trouble}; repair the file, or use another sandbox",
            )
        return None

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def stats(self) -> Stats:
        return read_stats(self._parts, uptime_seconds=self.uptime_seconds, is_ready=self.is_ready)

    def capabilities(self) -> dict[str, Any]:
        return capabilities(self._parts)

    def read_usage(self) -> SandboxUsage:
        """Return what the sandbox uses of its CPUs and its memory. Does not wait for a sample."""
        stats = self.stats()
        cpu_count = self.config.pod_cpus or float(os.cpu_count() or 1)
        seconds = (stats.cpu.daemon_seconds, stats.cpu.warden_seconds, stats.cpu.trees_seconds)
        total_bytes = stats.memory.pod_size_bytes or _machine_memory_bytes()
        return SandboxUsage(
            cpu_count=cpu_count,
            cpu_percent=self._usage.percent(
                self.uptime_seconds, sum(value or 0.0 for value in seconds), cpu_count
            ),
            memory_size_bytes=total_bytes,
            memory_used_bytes=min(stats.memory.pod_used_bytes or 0, total_bytes),
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that every program gets."""
        return self._parts.environment.variables

    @property
    def owner(self) -> tuple[int, int]:
        """The uid and the gid of programs and file operations."""
        identity = self._parts.identity
        return (
            os.geteuid() if identity.uid is None else identity.uid,
            os.getegid() if identity.gid is None else identity.gid,
        )

    def find_program(self, name: str) -> str | None:
        """Return the path of a program, by the daemon's PATH of programs. A caller's PATH does not
        count: a caller means the caller's own programs by that, and not the shell."""
        return shutil.which(name, path=self.variables["PATH"])

    def add_variables(self, variables: Mapping[str, str]) -> None:
        """Give every later program these variables too. Raises InvalidArgument."""
        commands.check_environment(dict(variables))
        self._parts.environment.add(variables)

    # Parts that only some dialects use: made, and their modules imported, at the first use.

    @functools.cached_property
    def bash_sessions(self) -> BashSessions:
        from execd.engine.bash_sessions import BashSessions

        temporary_dir = self._parts.temporary_dir
        return BashSessions(
            lambda command, after: self.submit(Submission(command, after=after)).execution,
            self.tree_files,
            temporary_dir,
            bash=self.find_program("bash") or "bash",
            max_waiting=self.config.max_queued,
        )

    @functools.cached_property
    def terminals(self) -> Terminals:
        from execd.engine.terminals import Terminals

        return Terminals(
            lambda command: self.submit(Submission(command)).execution,
            lambda name: self._registry.get(name) is not None,
            bash=self.find_program("bash") or "bash",
        )

    @property
    def checkpoints(self) -> Checkpoints:
        return self._parts.checkpoints

    # Commands.

    def submit(self, submission: Submission) -> Submitted:
        """Run or queue the command or the cell, or return the execution of the same request made
        before. A repeated request is answered even if its session is gone.

        Raises InvalidArgument, NotFound for a session, IdempotencyMismatch, ResourceExhausted if
        the queue is full, SessionBusy, and Unavailable while draining.
        """
        request_key = submission.request_key
        joined = None if request_key is None else self._registry.joinable(request_key)
        if joined is not None:
            return Submitted(joined, False)
        if submission.is_named and (earlier := self._idempotency.repeated(submission)) is not None:
            return earlier
        if self.episodes.is_closed:
            raise Unavailable(RESET_WORDS)
        if submission.cell is not None:
            return self._submit_cell(submission, submission.cell)
        command = self._complete(submission.command)
        if self.is_draining:
            raise Unavailable("execd is shutting down; repeat the request when execd is back")
        if self.is_preparing:
            raise Unavailable(PREPARING)
        context = self._parts
        names = self._idempotency.register(submission, is_kept=command.may_be_detached)
        runner = CommandRunner(context, self._parts.starts, names.id, submission.after)
        execution = Execution(names, command, context, self.retention, runner)
        return self._idempotency.add(execution.begin(), request_key)

    def _submit_cell(self, submission: Submission, options: CellOptions) -> Submitted:
        if self.is_preparing:
            raise Unavailable(PREPARING)
        command, session = submission.command, self.sessions.find(options.session_id)
        is_new = session is None and options.makes_session
        if is_new:
            session = self.sessions.declare(
                session_id=options.session_id,
                env=command.env if options.keeps_env else {},
                limits=command.limits,
            )
            if options.keeps_env:
                command = msgspec.structs.replace(command, env={})
        else:
            session = session or self.sessions.get(str(options.session_id))
            if command.limits != NO_LIMITS:
                raise InvalidArgument(
                    f"limits: the limits belong to the session, and session {session.id!r} has "
                    "its limits already; leave limits out, or make another session with "
                    "these limits",
                    field="limits",
                )
        on_disconnect = command.on_disconnect or self.config.on_disconnect
        names = self._idempotency.register(
            submission, is_kept=command.detached or on_disconnect == "detach"
        )
        try:
            execution = self.sessions.begin_cell(session, command, options, names)
        except ExecdError:
            if is_new:
                self.sessions.forget(session)
            raise
        submitted = self._idempotency.add(execution)
        if is_new:
            self.sessions.forget_unless_used(session, execution)
        if options.is_last:
            self.sessions.end_after(session, execution)
        return submitted

    async def with_account(self, command: Command) -> Command:
        """Replace the name of a user by the numbers, and add the variables that name the user,
        under the command's own. Raises InvalidArgument for an unknown name."""
        if command.user is None:
            return command
        user, env = await self.files.run(functools.partial(passwd.resolve, command.user))
        env = {} if command.clears_env else env
        return msgspec.structs.replace(command, user=user, env={**env, **command.env})

    def _complete(self, command: Command) -> Command:
        """Add the session's cwd and environment and the daemon's limits. Raises InvalidArgument,
        NotFound for the session."""
        if command.session_id is not None:
            session = self.sessions.get(command.session_id)
            command = msgspec.structs.replace(
                command,
                cwd=os.path.join(session.cwd or "", command.cwd or "") or None,
                env=command.env
                if command.clears_env
                else {**session.own_environment, **command.env},
            )
        return commands.complete(self.config, command)

    # Executions.

    def get(self, execution_id: str) -> Execution:
        """Raises NotFound."""
        execution = self._registry.get(execution_id)
        if execution is None:
            raise NotFound(f"there is no execution {execution_id!r}")
        return execution

    def list(
        self, *, state: State | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Execution], str | None]:
        """Return executions, the newest first, and a cursor for the next page. Raises
        InvalidArgument for a cursor that the engine did not make."""
        found = sorted(self._registry, key=_age, reverse=True)
        if state is not None:
            found = [execution for execution in found if execution.state is state]
        if cursor is not None:
            last = page_cursor.decode(cursor)
            found = [execution for execution in found if _age(execution) < last]
        page = found[:limit]
        return page, page_cursor.encode(*_age(page[-1])) if len(found) > limit else None

    def running_commands(self) -> Sequence[Execution]:
        """Return the commands whose program runs, the oldest first."""
        return [
            execution
            for execution in self._registry.live
            if execution.pid is not None and execution.cell is None
        ]

    def find_command(
        self, *, pid: int | None = None, tag: str | None = None, ended_within_seconds: float = 0.0
    ) -> Execution:
        """Return the newest command that runs with this pid, or with this tag. If none runs: the
        newest that has ended within ``ended_within_seconds``. Raises NotFound.

        A pid is as user code sees it; after the loss of the warden, pids repeat.
        """
        assert (pid is None) != (tag is None), "one of the two names the command"

        def is_meant(execution: Execution) -> bool:
            return (
                execution.pid == pid if tag is None else execution.command.tag == tag
            ) and execution.cell is None

        running = list(filter(is_meant, self.running_commands()))
        if running:
            return running[-1]
        since = asyncio.get_running_loop().time() - ended_within_seconds
        ended = [
            execution
            for execution in filter(is_meant, self._registry)
            if execution.state is State.EXITED and execution.ended_monotonic >= since
        ]
        if not ended:
            what = f"the pid {pid}" if tag is None else f"the tag {tag!r}"
            raise NotFound(f"no command with {what} runs")
        return max(ended, key=_age)

    async def forget(self, execution: Execution) -> None:
        """End the execution with its tree, and forget the execution."""
        execution.end(ExitReason.CANCELED, self.config.cancel_grace_seconds)
        with contextlib.suppress(ExecdError):  # of an execution that never ran
            await execution.wait()
            await execution.end_rest(self.config.cancel_grace_seconds)
        await self.retention.forget(execution)


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _age(execution: Execution) -> tuple[float, str]:
    return execution.created_at, execution.id
