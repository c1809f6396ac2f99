"""Assembly of an engine: every part is made in one order, and ended in the reverse order.

The order is: state dir, files, reaper, retention, sessions, warden, housekeeping. Each step puts
its end on an exit stack before the next step begins, so what was begun is ended even if a later
step fails.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import resource
import time
from typing import TYPE_CHECKING

from execd import own_tree
from execd.allocator import MemoryReturn
from execd.engine import surroundings
from execd.engine.disk.disk_guard import DiskGuard
from execd.engine.disk.volume import Volume, Volumes
from execd.engine.episodes import Episodes
from execd.engine.executions.command import parse_identity
from execd.engine.executions.context import EngineContext
from execd.engine.executions.default_shell import DefaultShell
from execd.engine.executions.direct_exec import DirectExec
from execd.engine.executions.environment import (
    PYTHON_NAMES,
    ChildEnvironment,
    is_virtual_environment,
)
from execd.engine.executions.interpreters import certificates_for_tree
from execd.engine.executions.interpreters import find as find_interpreters
from execd.engine.executions.limits import own_limits
from execd.engine.executions.registry import Registry
from execd.engine.executions.retention import Retention
from execd.engine.executions.starts import Starts
from execd.engine.executions.submission import Idempotency
from execd.engine.files.service import Files, choose_temporary_dir
from execd.engine.housekeeping import Housekeeper
from execd.engine.in_flight import InFlight
from execd.engine.memory_notes import MemoryNotes
from execd.engine.metrics.counters import Counters
from execd.engine.output.held_pipes import HeldPipes
from execd.engine.restores import Restores
from execd.engine.sessions.manager import Sessions
from execd.engine.spec_environment import SpecEnvironment
from execd.engine.store.journal import DaemonEnded, MemoryRecovered
from execd.engine.store.state_dir import StateDir
from execd.files.archive.tree import UnpackingLimits
from execd.files.paths import sandboxd_readings
from execd.files.root import Root
from execd.proc import pod_memory
from execd.proc.client import WardenClient
from execd.proc.namespaces import SHM
from execd.proc.reaper import Reaper
from execd.proc.spawn import StepFailed, request_short_turns

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping

    from execd.config import Config
    from execd.engine.checkpoints import Checkpoints
    from execd.engine.restores import Readings, Restore
    from execd.proc.pod_memory import PodMemory

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""The folder of the state dir (``files.checkpoints.shelf``)."""
WARDEN_MODULE = "execd.warden.main"


# When a step must be over, as a share of the shutdown timeout: running executions, connections, and
# everything else.
EXECUTIONS_SHARE, CONNECTIONS_SHARE, WHOLE_SHARE = 0.7, 0.85, 0.95


class ShutdownClock:
    """The timeout runs from the first question, so an engine that ends without a drain has the
    whole timeout."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._began_at: float | None = None

    def ends_at(self, share: float) -> float:
        """Return the time, on the loop's clock, when this share of the timeout is over."""
        now = asyncio.get_running_loop().time()
        if self._began_at is None:
            self._began_at = now
        return self._began_at + share * self._timeout_seconds

    def seconds_left(self) -> float:
        """Return the seconds left for everything that must end."""
        return max(0.0, self.ends_at(WHOLE_SHARE) - asyncio.get_running_loop().time())


class CannotStart(Exception):
    """No warden can be started. ``step`` is the step of the start that failed (spawn.STEP_NAMES),
    or "warden"; ``path`` is the path it failed at, if there is one."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error) or "it did not get ready in time")
        self.step = error.step if isinstance(error, StepFailed) else "warden"
        self.path: str | None = error.filename


class Parts(EngineContext):
    """The parts of an engine: made by ``__init__``, started by ``start``, ended by ``ends``."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        ends: contextlib.AsyncExitStack,
        *,
        reap_orphans: bool,
        clocks: Callable[[], Readings],
    ) -> None:
        """``clocks`` shows restores (``restores``). Raises StateDirError."""
        request_short_turns()
        self._ends = ends
        self.config = config
        self.identity = parse_identity(config.run_as)
        tree = own_tree.root()
        self.interpreters = find_interpreters(
            config, environment.get("PATH", os.defpath), own_tree.own_python(tree)
        )
        self.certificates = certificates_for_tree(tree)
        self.counters = Counters()
        self.housekeeper = Housekeeper()
        self.shutdown = ShutdownClock(config.shutdown_timeout)
        self.in_flight = InFlight()
        self.starts = Starts(config)
        self._open_files(ends)
        self.reaper = Reaper(everything=reap_orphans)
        ends.callback(self.reaper.close)
        self.pod_memory = _find_pod_memory(config)
        self.warden = WardenClient(
            lambda: self.store.folder.view()._replace(base_dir=config.base_dir),
            self.reaper,
            module=WARDEN_MODULE,
            policy=config.namespaces,
            ping_seconds=config.warden_ping_seconds,
            dead_seconds=config.warden_dead_seconds,
            configuration=self.pod_memory.configuration(),
            record_lag=self.counters.loop_lag_seconds.observe,
            on_memory=lambda: self.memory_notes.look(),
        )
        self.disk_guard = DiskGuard(self.volumes, self.warden, lambda: self.registry.live)
        self.restores = Restores(
            lambda: self.registry.has_live, clocks, SpecEnvironment(config).changes
        )
        self.held_pipes = HeldPipes(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0], on_growth=self.housekeeper.plan_soon
        )
        self.on_run = self._note_run
        self.may_have_run = False
        """Whether any user code may have run under this daemon."""
        self.look_for_restore = self.restores.look
        self._make_environment(environment)
        self._open_retention(ends)
        self.idempotency = Idempotency(self.registry, self.retention)
        self.memory_notes: MemoryNotes = MemoryNotes(
            self.pod_memory,
            lambda: self.warden.runtime_bytes,
            self.retention.note,
            self.housekeeper.plan_soon,
        )
        ends.callback(self.memory_notes.close)
        self.sessions = Sessions(self, self.retention, self.in_flight.lease, self.housekeeper.plan)
        ends.push_async_callback(lambda: self.sessions.close(self.shutdown.seconds_left()))

    def _open_files(self, ends: contextlib.AsyncExitStack) -> None:
        """The files of the daemon and of callers."""
        config, python = self.config, self.interpreters[0].path
        has_links = os.path.isabs(python) and not is_virtual_environment(python)
        self.store = StateDir(
            config.state_dir,
            config.state_bytes,
            dict.fromkeys(PYTHON_NAMES, python) if has_links else {},
            self._is_uncovered,
            commands_uid=self.identity.uid,
            on_failure=self.housekeeper.plan_soon,
        )
        ends.callback(lambda: self.store.close(self.shutdown.seconds_left()))
        assert self.store.journal.state.episode is not None, "the state dir begins an episode"
        self.episodes = Episodes(self.store.journal.state.episode)
        self.volumes: list[Volume] = []
        """The directories with a limit."""
        if config.base_dir_bytes:
            self.volumes.append(Volume("base_dir_bytes", config.base_dir, config.base_dir_bytes))
        if config.tmp_dir_bytes:
            self.volumes.append(Volume("tmp_dir_bytes", "/tmp", config.tmp_dir_bytes))
        self.files = Files(
            config.base_dir,
            state_dir=self.store.folder.anchor,
            max_upload_bytes=config.max_upload_bytes,
            unpacking=UnpackingLimits(config.max_unpacked_bytes, config.max_unpacked_entries),
            identity=self.identity,
            syncs_uploads=config.fsync == "uploads",
            rooms=Volumes(self.volumes) if self.volumes else None,
        )
        ends.callback(self.files.close)
        places = (config.base_dir, self.store.folder.anchor)
        self.sandboxd_files = self.files.with_root(Root(*places, sandboxd_readings))
        """The same files for sandboxd, which reads a path in its own way."""
        self.tree_files = self.files.with_root(Root.whole_tree(*places))
        """The same files with paths as user code reads them."""
        self._checkpoint_root = Root.whole_tree(*places)

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Made, and the modules imported, at the first use."""
        from execd.engine.checkpoints import Checkpoints

        made = Checkpoints(
            self.store,
            self._checkpoint_root,
            self.identity,
            self.config.checkpoint_bytes,
        )
        self._ends.callback(made.close)
        return made

    def _is_uncovered(self) -> bool:
        """Whether user code can see the state dir. False also while there is no warden: the next
        warden may have namespaces."""
        warden = self.warden
        return warden.up.is_set() and warden.started is not None and warden.started.shape == "none"

    def _make_environment(self, environment: Mapping[str, str]) -> None:
        """What every program begins with. ``environment``: the daemon's own."""
        config = self.config
        self.loop = self.warden.loop
        self.ensure_base_dir = self.files.ensure_base_dir
        self.ensure_temporary_dir = self.files.ensure_temporary_dir
        self.temporary_dir = choose_temporary_dir(config.base_dir, self.identity)
        self.environment = ChildEnvironment(
            config,
            environment,
            bin_dir=self.store.bin_dir,
            python=self.interpreters[0].path,
            temporary_dir=self.temporary_dir,
            python_variables=self.certificates if self.interpreters[0].origin == "own" else {},
        )
        self.default_shell = DefaultShell()
        self.direct_exec = DirectExec(
            self.warden,
            self.environment,
            self.identity,
            own_limits(config),
            is_on=config.direct_exec == "on",
        )

    def _note_run(self) -> None:
        self.may_have_run = True
        self.disk_guard.mark_running()
        self.restores.mark_busy()

    def _open_retention(self, ends: contextlib.AsyncExitStack) -> None:
        """Make the memory of executions, and fill the memory from the journal."""
        config = self.config
        self.registry = Registry(
            max_plain=config.retention_count,
            max_kept=config.keyed_retention_count,
            max_memory_bytes=config.retention_bytes,
            plain_seconds=config.retention_seconds,
            kept_seconds=config.keyed_retention_seconds,
        )
        self.retention = Retention(
            self.registry,
            self.store,
            config.base_dir,
            self.held_pipes,
            self.housekeeper.plan_soon,
        )
        ends.push_async_callback(lambda: self.retention.close(self.shutdown.seconds_left()))
        # After the warden, and with the warden all writers.
        ends.push_async_callback(lambda: self.held_pipes.close(self.shutdown.seconds_left()))
        self.retention.restore(self)
        if (shortage := self.store.former_shortage) is not None:
            log.warning(
                "memory was nearly full when the former daemon died",
                extra={
                    "left_bytes": shortage.left_bytes,
                    "size_bytes": shortage.size_bytes,
                    "seconds_ago": round(time.time() - shortage.noted_at, 1),
                },
            )
            self.retention.note(MemoryRecovered())

    async def start(self, ends: contextlib.AsyncExitStack, meanwhile: Callable[[], None]) -> None:
        """Start the parts that run by themselves. For ``meanwhile`` see ``WardenClient.start``.

        Raises ExecdError (the base dir cannot be used), CannotStart.
        """
        await self.ensure_base_dir()
        if self.store.folder.has(CHECKPOINTS) or self.config.checkpoint_at_start:
            await self.checkpoints.load()
        # Beside the start of the warden: no user code runs yet.
        looking = asyncio.ensure_future(asyncio.to_thread(surroundings.look, self.identity))
        try:
            await _start_warden(self.warden, meanwhile)
        finally:
            self.surroundings = await looking
        assert self.warden.started is not None, "a warden was started"
        if self.warden.started.has_own_shm:
            for files in (self.files, self.sandboxd_files, self.tree_files):
                files.hide(SHM)
            self._checkpoint_root.own_dirs += (SHM,)
        # After the end of the warden, which ends user code.
        ends.callback(lambda: self.retention.note(DaemonEnded()))
        ends.push_async_callback(lambda: self.warden.close(self.shutdown.seconds_left()))
        ends.push_async_callback(self.direct_exec.close)
        await self.direct_exec.start()
        self.disk_guard.start()
        ends.push_async_callback(self.disk_guard.close)
        ends.callback(self.restores.subscribe(self._go_on))
        self.restores.start()
        ends.callback(self.restores.close)
        # Before the warden ends, and with the warden all that sessions and executions still have.
        ends.callback(self.sessions.refuse_all)
        ends.callback(self.starts.close)
        memory_return = MemoryReturn()
        self.housekeeper.start(lambda: self._keep_house(memory_return))
        ends.push_async_callback(self.housekeeper.close)

    def _go_on(self, restore: Restore, _spared: object) -> None:
        """The sandbox was restored from a checkpoint, perhaps in a pod of another size: go on as if
        no time had passed."""
        self.registry.postpone(restore.frozen_seconds, asyncio.get_running_loop().time())
        for execution in self.registry.live:
            execution.postpone(restore.frozen_seconds)
            execution.outlive_callers()
        self.sessions.note_restore(restore.frozen_seconds)
        if "pod_memory_bytes" in restore.changes:
            self.pod_memory.become(pod_memory.find(restore.changes["pod_memory_bytes"]))
            self.warden.reconfigure(self.pod_memory.configuration())

    async def _keep_house(self, memory_return: MemoryReturn) -> float:
        """Do a round of housekeeping; return when the next round is due."""
        self.sessions.evict_idle()
        await self.retention.tidy()
        return min(
            self.sessions.next_eviction(),
            self.retention.next_round(),
            self.memory_notes.step(),
            memory_return.step(asyncio.get_running_loop().time()),
        )


def _find_pod_memory(config: Config) -> PodMemory:
    memory = pod_memory.find(config.pod_memory_bytes)
    if memory.source == "unknown":
        log.warning("nothing guards the pod's memory: /proc/meminfo cannot be read")
    elif memory.source == "node":
        log.warning(
            "the pod's memory limit is unknown, so only the node's memory is guarded: set "
            "EXECD_POD_MEMORY_BYTES to the pod's memory limit"
        )
    return memory


async def _start_warden(warden: WardenClient, meanwhile: Callable[[], None]) -> None:
    try:
        await warden.start(meanwhile)
    except OSError as error:  # TimeoutError is a subclass
        raise CannotStart(error) from error
    assert warden.started is not None
    if warden.started.refusal is not None:
        log.warning("user code runs without namespaces", extra={"refusal": warden.started.refusal})
