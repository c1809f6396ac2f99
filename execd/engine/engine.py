"""The engine: what execd can do, in its own words. Dialects call it; it alone combines processes,
files and state.

Start and stop are one order, read forwards and backwards: state dir, reaper, warden, files; then
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec

from execd.engine.executions import command as commands
from execd.engine.executions import command_run
from execd.engine.executions.command_run import CommandRun
from execd.engine.executions.context import EngineContext
from execd.engine.executions.environment import (
    PYTHON_NAMES,
    ChildEnvironment,
    find_python,
    is_virtual_environment,
)
from execd.engine.executions.execution import new_id
from execd.engine.executions.idempotency import Idempotency, Submitted
from execd.engine.executions.registry import Registry
from execd.engine.executions.retention import Retention
from execd.engine.executions.starts import Starts
from execd.engine.files.service import Files
from execd.engine.in_flight import InFlight
from execd.engine.sessions.manager import Sessions, check_id
from execd.engine.store.state_dir import StateDir
from execd.errors import ExecdError, InvalidArgument, NotFound, Unavailable
from execd.files.archive.tree import UnpackingLimits
from execd.files.paths import sandboxd_readings
from execd.files.root import Root
from execd.model import ExitReason
from execd.proc import pod_memory
from execd.proc.client import WardenClient
from execd.proc.reaper import Reaper
from execd.proc.spawn import ROOT_CAPABILITIES, StepFailed, ask_for_short_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from execd.config import Config
    from execd.engine.executions.execution import Execution
    from execd.engine.sessions.manager import CellWish
    from execd.engine.sessions.session import Session
    from execd.model import Command, State

log = logging.getLogger(__name__)

WARDEN_MODULE = "execd.warden.main"
HOUSEKEEPING_SECONDS = 2.0

# Until when, of the shutdown timeout: running executions have ended, connections are closed, the
# rest has gone.
EXECUTIONS_SHARE, CONNECTIONS_SHARE, WHOLE_SHARE = 0.7, 0.85, 0.95


class CannotStart(Exception):
    """No warden can be started. ``step`` is the step of the start that failed (spawn.STEP_NAMES),
    or "warden"; ``path`` is the path it failed at, if there is one."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error) or "it did not get ready in time")
        self.step = error.step if isinstance(error, StepFailed) else "warden"
        self.path: str | None = error.filename


class Engine:
    """Make it, ``await start()``, use it, ``await stop()``. All within one event loop."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str] = os.environ,
        *,
        reap_strangers: bool = False,
    ) -> None:
        self.config = config
        self.draining = False
        self.in_flight = InFlight()
        self.identity = command_run.parse_identity(config.run_as)
        self.files = Files(
            config.base_dir,
            state_dir=config.state_dir,
            max_upload_bytes=config.max_upload_bytes,
            unpacking=UnpackingLimits(config.max_unpacked_bytes, config.max_unpacked_entries),
            identity=self.identity,
            syncs_uploads=config.fsync == "uploads",
        )
        # The same files, for dialects that read a path otherwise: sandboxd's, and as user code sees
        # them.
        self.sandboxd_files = self.files.view(
            Root(config.base_dir, config.state_dir, sandboxd_readings)
        )
        self.tree_files = self.files.view(Root.whole_tree(config.base_dir, config.state_dir))
        self.warden: WardenClient
        self.sessions: Sessions
        self.retention: Retention
        self._environment = environment
        self._reap_strangers = reap_strangers
        self._starts = Starts(config)
        self._registry = Registry(
            max_finished=config.retention_count,
            max_memory_bytes=config.retention_bytes,
            plain_seconds=config.retention_seconds,
            kept_seconds=config.keyed_retention_seconds,
        )
        self._started_at = time.monotonic()
        self._stopping_since: float | None = None

    # Life.

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        config: Config,
        environment: Mapping[str, str] = os.environ,
        *,
        reap_strangers: bool = False,
    ) -> AsyncIterator[Self]:
        """An engine that is ready to run commands, for as long as the block. Raises what ``start``
        raises."""
        engine = cls(config, environment, reap_strangers=reap_strangers)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    async def start(self) -> None:
        """Ready to run commands on return; what was begun is ended if a later step fails.

        Raises StateDirError, ExecdError (the base dir cannot be used), CannotStart.
        """
        async with contextlib.AsyncExitStack() as ends:
            await self._begin(ends)
            self._ends = ends.pop_all()

    async def stop(self) -> None:
        """End everything that is left, at once, within what is left of the shutdown timeout."""
        self.stop_by(WHOLE_SHARE)
        await self._ends.aclose()

    async def _begin(self, ends: contextlib.AsyncExitStack) -> None:
        """Each step puts its end on the stack. The stack runs backwards, so the last step begun is
        the first ended."""
        ask_for_short_turns()
        python = find_python(self.config, self._environment.get("PATH", os.defpath))
        links = {} if is_virtual_environment(python) else dict.fromkeys(PYTHON_NAMES, python)
        store = self._state_dir = StateDir(
            self.config.state_dir,
            self.config.state_bytes,
            links,
            self._is_uncovered,
            commands_uid=self.identity.uid,
        )
        ends.callback(lambda: store.close(self._seconds_to_stop()))
        ends.callback(self.files.close)
        for files in (self.files, self.sandboxd_files, self.tree_files):
            files.guard(store.anchor)
        temporary_dir = await self.files.choose_temporary_dir()
        reaper = Reaper(everything=self._reap_strangers)
        ends.callback(reaper.close)
        self.pod_memory = pod_memory.find(self.config.pod_memory_bytes)
        if self.pod_memory.source == "unknown":
            log.warning(
                "nothing guards the pod's memory: set EXECD_POD_MEMORY_BYTES to the pod's memory "
                "limit"
            )
        self.warden = WardenClient(
            store.view,
            reaper,
            module=WARDEN_MODULE,
            policy=self.config.namespaces,
            ping_seconds=self.config.warden_ping_seconds,
            dead_seconds=self.config.warden_dead_seconds,
            configuration=self.pod_memory.configuration(),
        )
        self._context = EngineContext(
            config=self.config,
            warden=self.warden,
            identity=self.identity,
            python=python,
            store=store,
            environment=ChildEnvironment(
                self.config,
                self._environment,
                bin_dir=store.bin_dir,
                python=python,
                temporary_dir=temporary_dir,
            ),
            temporary_dir=temporary_dir,
            ensure_base_dir=self.files.ensure_base_dir,
            ensure_temporary_dir=self.files.ensure_temporary_dir,
        )
        self.retention = Retention(self._registry, store, self.config.base_dir)
        ends.push_async_callback(lambda: self.retention.close(self._seconds_to_stop()))
        self.retention.restore(self._context)
        self._once = Idempotency(self._registry, self.retention)
        self.sessions = Sessions(self._context, self.retention, self.in_flight.lease)
        ends.push_async_callback(lambda: self.sessions.close(self._seconds_to_stop()))
        await self.files.ensure_base_dir()
        try:
            await self.warden.start()
        except OSError as error:  # TimeoutError is one
            raise CannotStart(error) from error
        ends.push_async_callback(lambda: self.warden.close(self._seconds_to_stop()))
        assert self.warden.started is not None
        if self.warden.started.refusal is not None:
            log.warning(
                "user code runs without namespaces", extra={"refusal": self.warden.started.refusal}
            )
        self.sessions.start()
        # Before the warden ends, and with the warden all that sessions and executions still have.
        ends.callback(self.sessions.refuse_all)
        ends.callback(self._starts.close)
        housekeeper = asyncio.create_task(self._keep_house(), name="housekeeper")
        ends.push_async_callback(_cancel, housekeeper)

    def stop_by(self, share: float) -> float:
        """When this share of the shutdown timeout is over, on the loop's clock. The timeout runs
        from the first call."""
        now = asyncio.get_running_loop().time()
        if self._stopping_since is None:
            self._stopping_since = now
        return self._stopping_since + share * self.config.shutdown_timeout

    def _seconds_to_stop(self) -> float:
        return max(0.0, self.stop_by(WHOLE_SHARE) - asyncio.get_running_loop().time())

    async def drain(self) -> None:
        """Take nothing new; end what runs: TERM, then KILL, within its share of the shutdown
        timeout. Their callers still get answers: with what is known, if a tree does not end in
        time."""
        self.draining = True
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

    # Facts.

    @property
    def ready(self) -> bool:
        """Whether a command sent now would run."""
        return not self.draining and self.warden.up.is_set()

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def capabilities(self) -> dict[str, Any]:
        """What was found on this kernel, and which protections hold because of it."""
        started = self.warden.started
        assert started is not None
        namespaces = started.shape != "none"
        separate_user = self.identity.uid not in (None, os.geteuid())
        root_capabilities = [] if separate_user else self.warden.root_capabilities
        walls = namespaces and ROOT_CAPABILITIES.issuperset(root_capabilities)
        return {
            "namespaces": namespaces,
            "namespace_shape": started.shape,
            "namespaces_refused": started.refusal,
            "uid": os.geteuid(),
            "run_as_uid": self.identity.uid,
            "root_capabilities": root_capabilities,
            "warden_restarts": self.warden.restarts,
            "warden_missed_pings": self.warden.missed_pings,
            "sessions": self.sessions.facts(),
            "pod_memory": {
                "guarded": self.pod_memory.is_guarded,
                "source": self.pod_memory.source,
                "size_bytes": self.pod_memory.size_bytes or None,
                "reserve_bytes": self.pod_memory.reserve_bytes or None,
            },
            "commands": self._starts.facts(),
            "protections": {
                "daemon_invisible": walls,
                "daemon_unkillable": walls or separate_user,
                "daemon_environment_unreadable": walls or separate_user,
                "state_dir_unreadable": walls or separate_user,
                "nothing_survives_the_warden": namespaces,
            },
        }

    # Commands.

    def shell_command(
        self,
        command: str,
        *,
        timeout_seconds: float | None = None,
        queue_seconds: float | None = None,
        total_seconds: float | None = None,
        env: dict[str, str] | None = None,
    ) -> Command:
        """A command line for /bin/sh, with the daemon's own limits, whose events nobody reads.
        Raises InvalidArgument."""
        made = commands.make(
            self.config,
            commands.Wish(
                command=command,
                nul_is_a_result=True,
                env=env or {},
                timeout_seconds=timeout_seconds,
            ),
        )
        if queue_seconds is not None:
            made = msgspec.structs.replace(
                made, queue_seconds=min(queue_seconds, made.queue_seconds)
            )
        return msgspec.structs.replace(made, total_seconds=total_seconds, keeps_order=False)

    def command(self, wish: commands.Wish) -> Command:
        """What to run, within the daemon's limits. Raises InvalidArgument, naming the field and the
        rule; NotFound for its session."""
        if wish.session_id is not None:
            session = self.sessions.get(wish.session_id)
            cwd = os.path.join(session.cwd or "", wish.cwd or "") or None
            wish = msgspec.structs.replace(
                wish, cwd=cwd, env={**session.own_environment, **wish.env}
            )
        return commands.make(self.config, wish)

    def run(self, command: Command, *, request_key: bytes | None = None) -> Execution:
        """Start it, or queue it. A request key joins the run of the same key while that one's reply
        is still wanted.

        Raises ResourceExhausted if the queue is full, Unavailable while draining.
        """
        if request_key is not None:
            joined = self._registry.joinable(request_key)
            if joined is not None:
                return joined
        execution = self._admit(
            new_id(), command, key=None, payload="", is_kept=_may_be_detached(command)
        )
        self._registry.add(execution, request_key)
        return execution

    def submit(
        self,
        command: Command,
        *,
        execution_id: str | None = None,
        key: str | None = None,
        payload: bytes = b"",
    ) -> Submitted:
        """Start it exactly once: the same key, or id, and payload again gives the execution there
        is.

        Raises IdempotencyMismatch if the payload differs, and what ``run`` raises.
        """
        return self._once.submit(
            lambda own_id, key_digest, digest, is_kept: self._admit(
                own_id, command, key=key_digest, payload=digest, is_kept=is_kept
            ),
            is_kept=_may_be_detached(command),
            execution_id=execution_id,
            key=key,
            payload=payload,
        )

    def submit_cell(
        self,
        session: Session,
        wish: CellWish,
        *,
        execution_id: str | None = None,
        key: str | None = None,
        payload: bytes = b"",
    ) -> Submitted:
        """The same for a cell. Raises also SessionBusy."""
        return self._once.submit(
            lambda own_id, key_digest, digest, is_kept: self.sessions.cell(
                session, wish, execution_id=own_id, key=key_digest, payload=digest, is_kept=is_kept
            ),
            is_kept=wish.detached or (wish.on_disconnect or self.config.on_disconnect) == "detach",
            execution_id=execution_id,
            key=key,
            payload=payload,
        )

    def run_cell(
        self,
        session_id: str | None,
        wish: CellWish,
        *,
        create: bool = False,
        env: dict[str, str] | None = None,
        execution_id: str | None = None,
        key: str | None = None,
        payload: bytes = b"",
    ) -> Submitted:
        """In the session of that name; ``create``: one with ``env`` is made if there is none, and
        forgotten if the cell cannot run.

        One that is repeated is answered whether or not its session is still there. Raises NotFound,
        and what ``submit_cell`` raises.
        """
        earlier = self._once.repeated(execution_id, key, payload)
        if earlier is not None:
            return Submitted(earlier, False)
        session = self.sessions.find(session_id)
        if session is not None or not create:
            session = session or self.sessions.get(str(session_id))
            return self.submit_cell(
                session, wish, execution_id=execution_id, key=key, payload=payload
            )
        session = self.sessions.declare(session_id=session_id, env=env)
        try:
            submitted = self.submit_cell(
                session, wish, execution_id=execution_id, key=key, payload=payload
            )
        except ExecdError:
            self.sessions.forget(session)
            raise
        self.sessions.forget_unless_used(session, submitted.execution)
        return submitted

    def run_code(
        self,
        wish: CellWish,
        *,
        session_id: str | None,
        env: dict[str, str] | None,
        keep: bool,
        key: str | None = None,
        payload: bytes = b"",
    ) -> Submitted:
        """In the session of that name, which is made if there is none; without a name in one of its
        own, deleted afterwards unless kept.

        Raises what ``submit_cell`` raises.
        """
        if session_id is not None:
            check_id(session_id, "session_id")
        submitted = self.run_cell(session_id, wish, create=True, env=env, key=key, payload=payload)
        if submitted.is_new and session_id is None and not keep:
            assert submitted.execution.cell is not None
            self.sessions.delete_after(
                self.sessions.get(submitted.execution.cell.session_id), submitted.execution
            )
        return submitted

    def _admit(
        self, execution_id: str, command: Command, *, key: str | None, payload: str, is_kept: bool
    ) -> Execution:
        if self.draining:
            raise Unavailable("execd is shutting down")
        return CommandRun(
            execution_id,
            command,
            self._context,
            self.retention,
            self._starts,
            key=key,
            payload=payload,
            is_kept=is_kept,
        )

    def get(self, execution_id: str) -> Execution:
        """Raises NotFound."""
        execution = self._registry.get(execution_id)
        if execution is None:
            raise NotFound(f"there is no execution {execution_id!r}")
        return execution

    def list(
        self, *, state: State | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Execution], str | None]:
        """The newest first, and a cursor for what comes after them. Raises InvalidArgument for a
        cursor that we did not make."""
        found = sorted(self._registry, key=_age, reverse=True)
        if state is not None:
            found = [execution for execution in found if execution.state is state]
        if cursor is not None:
            created_at, _, execution_id = cursor.partition(":")
            try:
                last = (float(created_at), execution_id)
            except ValueError:
                raise InvalidArgument("cursor: not one of ours", field="cursor") from None
            found = [execution for execution in found if _age(execution) < last]
        page = found[:limit]
        following = f"{page[-1].created_at!r}:{page[-1].id}" if len(found) > limit else None
        return page, following

    async def forget(self, execution: Execution) -> None:
        """End it, tree and all, and forget it."""
        execution.end(ExitReason.CANCELED, self.config.cancel_grace_seconds)
        with contextlib.suppress(ExecdError):  # it never ran, and that is now no longer of interest
            await execution.wait()
            await execution.end_rest(self.config.cancel_grace_seconds)
        await self.retention.forget(execution)

    def _is_uncovered(self) -> bool:
        """False also while there is no warden: the next one may have namespaces."""
        return (
            self.warden.up.is_set()
            and self.warden.started is not None
            and self.warden.started.shape == "none"
        )

    # Housekeeping.

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            self.sessions.evict_idle()
            await self.retention.tidy()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _may_be_detached(command: Command) -> bool:
    """It is, or will be when its caller leaves."""
    return command.detached or command.on_disconnect == "detach"


def _age(execution: Execution) -> tuple[float, str]:
    return execution.created_at, execution.id
