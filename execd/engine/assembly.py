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
from typing import TYPE_CHECKING, NamedTuple

from execd.allocator import MemoryReturn
from execd.engine.disk.disk_guard import DiskGuard
from execd.engine.disk.volume import Volume, Volumes
from execd.engine.executions.command_run import parse_identity
from execd.engine.executions.context import EngineContext
from execd.engine.executions.default_shell import DefaultShell
from execd.engine.executions.direct_exec import DirectExec
from execd.engine.executions.environment import (
    PYTHON_NAMES,
    ChildEnvironment,
    find_python,
    is_virtual_environment,
)
from execd.engine.executions.limits import own_limits
from execd.engine.executions.registry import Registry
from execd.engine.executions.retention import Retention
from execd.engine.executions.starts import Starts
from execd.engine.executions.submission import Idempotency
from execd.engine.files.service import Files
from execd.engine.housekeeping import Housekeeper
from execd.engine.in_flight import InFlight
from execd.engine.memory_notes import MemoryNotes
from execd.engine.metrics.counters import Counters
from execd.engine.output.held_pipes import HeldPipes
from execd.engine.restores import Restores
from execd.engine.sessions.manager import Sessions
from execd.engine.shutdown import ShutdownClock
from execd.engine.spec_environment import SpecEnvironment
from execd.engine.store.journal import MemoryRecovered
from execd.engine.store.state_dir import StateDir
from execd.files.archive.tree import UnpackingLimits
from execd.files.paths import sandboxd_readings
from execd.files.root import Root
from execd.proc import pod_memory
from execd.proc.client import WardenClient
from execd.proc.reaper import Reaper
from execd.proc.spawn import StepFailed, request_short_turns

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping

    from execd.config import Config
    from execd.engine.restore_detector import Readings, Restore
    from execd.engine.store.journal import MemoryShortage
    from execd.proc.pod_memory import PodMemory

log = logging.getLogger(__name__)

WARDEN_MODULE = "execd.warden.main"


class CannotStart(Exception):
    """No warden can be started. ``step`` is the step of the start that failed (spawn.STEP_NAMES),
    or "warden"; ``path`` is the path it failed at, if there is one."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error) or "it did not get ready in time")
        self.step = error.step if isinstance(error, StepFailed) else "warden"
        self.path: str | None = error.filename


class Parts(NamedTuple):
    """The parts of a running engine."""

    context: EngineContext
    warden: WardenClient
    store: StateDir
    files: Files
    sandboxd_files: Files
    """The same files for sandboxd, which reads a path in its own way."""
    tree_files: Files
    """The same files with paths as user code reads them."""
    registry: Registry
    retention: Retention
    idempotency: Idempotency
    sessions: Sessions
    starts: Starts
    in_flight: InFlight
    held_pipes: HeldPipes
    shutdown: ShutdownClock
    pod_memory: PodMemory
    housekeeper: Housekeeper
    disk_guard: DiskGuard
    restores: Restores


class Storage(NamedTuple):
    """The files of callers and of the daemon."""

    store: StateDir
    files: Files
    sandboxd_files: Files
    tree_files: Files
    volumes: list[Volume]
    """The directories with a limit."""
    python: str
    temporary_dir: str


async def assemble(
    config: Config,
    environment: Mapping[str, str],
    ends: contextlib.AsyncExitStack,
    *,
    reap_orphans: bool,
    clocks: Callable[[], Readings],
    meanwhile: Callable[[], None],
) -> Parts:
    """Make and start all parts; ``ends`` ends them. ``clocks`` shows restores (``restores``). For
    ``meanwhile`` see ``WardenClient.start``.

    Raises StateDirError, ExecdError (the base dir cannot be used), CannotStart.
    """
    request_short_turns()
    housekeeper, shutdown = Housekeeper(), ShutdownClock(config.shutdown_timeout)
    # The state dir asks for the warden later, and the warden for the notes.
    storage = await _open_storage(
        config, environment, ends, shutdown, housekeeper, lambda: _is_uncovered(warden)
    )
    reaper = Reaper(everything=reap_orphans)
    ends.callback(reaper.close)
    memory, counters = _find_pod_memory(config), Counters()
    warden = _make_warden(
        config, storage.store, reaper, memory, counters, on_memory=lambda: memory_notes.look()
    )
    registry = _make_registry(config)
    disk_guard = DiskGuard(storage.volumes, warden, lambda: registry.live)
    restores = Restores(lambda: registry.has_live, clocks, SpecEnvironment(config).changes)
    held_pipes = HeldPipes(
        resource.getrlimit(resource.RLIMIT_NOFILE)[0], on_growth=housekeeper.plan_soon
    )
    context = _make_context(
        config, environment, warden, storage, held_pipes, counters, disk_guard, restores
    )
    retention = _open_retention(registry, context, ends, shutdown, housekeeper)
    memory_notes = MemoryNotes(
        memory, lambda: warden.runtime_bytes, retention.note, housekeeper.plan_soon
    )
    ends.callback(memory_notes.close)
    in_flight = InFlight()
    sessions = Sessions(context, retention, in_flight.lease, housekeeper.plan)
    ends.push_async_callback(lambda: sessions.close(shutdown.seconds_left()))
    parts = Parts(
        context=context,
        warden=warden,
        store=storage.store,
        files=storage.files,
        sandboxd_files=storage.sandboxd_files,
        tree_files=storage.tree_files,
        registry=registry,
        retention=retention,
        idempotency=Idempotency(registry, retention),
        sessions=sessions,
        starts=Starts(config),
        in_flight=in_flight,
        held_pipes=held_pipes,
        shutdown=shutdown,
        pod_memory=memory,
        housekeeper=housekeeper,
        disk_guard=disk_guard,
        restores=restores,
    )
    await _start(parts, memory_notes, ends, meanwhile)
    return parts


async def _open_storage(
    config: Config,
    environment: Mapping[str, str],
    ends: contextlib.AsyncExitStack,
    shutdown: ShutdownClock,
    housekeeper: Housekeeper,
    is_uncovered: Callable[[], bool],
) -> Storage:
    files = _make_files(config)
    sandboxd_files = files.with_root(Root(config.base_dir, config.state_dir, sandboxd_readings))
    tree_files = files.with_root(Root.whole_tree(config.base_dir, config.state_dir))
    python = find_python(config, environment.get("PATH", os.defpath))
    store = StateDir(
        config.state_dir,
        config.state_bytes,
        {} if is_virtual_environment(python) else dict.fromkeys(PYTHON_NAMES, python),
        is_uncovered,
        commands_uid=parse_identity(config.run_as).uid,
        on_failure=housekeeper.plan_soon,
    )
    ends.callback(lambda: store.close(shutdown.seconds_left()))
    ends.callback(files.close)
    volumes = _find_volumes(config)
    for view in (files, sandboxd_files, tree_files):
        view.hide_state_dir(store.anchor)
        if volumes:
            view.limit_room(Volumes(volumes))
    temporary_dir = await files.choose_temporary_dir()
    return Storage(store, files, sandboxd_files, tree_files, volumes, python, temporary_dir)


def _is_uncovered(warden: WardenClient) -> bool:
    """Whether user code can see the state dir. False also while there is no warden: the next warden
    may have namespaces."""
    return warden.up.is_set() and warden.started is not None and warden.started.shape == "none"


def _open_retention(
    registry: Registry,
    context: EngineContext,
    ends: contextlib.AsyncExitStack,
    shutdown: ShutdownClock,
    housekeeper: Housekeeper,
) -> Retention:
    """Make the memory of executions, and fill the memory from the journal."""
    store, held_pipes = context.store, context.held_pipes
    retention = Retention(
        registry, store, context.config.base_dir, held_pipes, housekeeper.plan_soon
    )
    ends.push_async_callback(lambda: retention.close(shutdown.seconds_left()))
    # After the warden, and with the warden all writers.
    ends.push_async_callback(lambda: held_pipes.close(shutdown.seconds_left()))
    retention.restore(context)
    if store.former_shortage is not None:
        _tell_former_shortage(store.former_shortage)
        retention.note(MemoryRecovered())
    return retention


async def _start(
    parts: Parts,
    memory_notes: MemoryNotes,
    ends: contextlib.AsyncExitStack,
    meanwhile: Callable[[], None],
) -> None:
    """Start the parts that run by themselves."""
    warden, sessions, restores = parts.warden, parts.sessions, parts.restores
    direct_exec = parts.context.direct_exec
    await parts.files.ensure_base_dir()
    await _start_warden(warden, meanwhile)
    ends.push_async_callback(lambda: warden.close(parts.shutdown.seconds_left()))
    ends.push_async_callback(direct_exec.close)
    await direct_exec.start()
    parts.disk_guard.start()
    ends.push_async_callback(parts.disk_guard.close)
    ends.callback(restores.subscribe(functools.partial(_go_on, parts.registry, sessions)))
    ends.callback(restores.subscribe(functools.partial(_resize, parts.pod_memory, warden)))
    restores.start()
    ends.callback(restores.close)
    # Before the warden ends, and with the warden all that sessions and executions still have.
    ends.callback(sessions.refuse_all)
    ends.callback(parts.starts.close)
    parts.housekeeper.start(
        functools.partial(_keep_house, sessions, parts.retention, memory_notes, MemoryReturn())
    )
    ends.push_async_callback(parts.housekeeper.close)


def _make_warden(
    config: Config,
    store: StateDir,
    reaper: Reaper,
    memory: PodMemory,
    counters: Counters,
    on_memory: Callable[[], None],
) -> WardenClient:
    return WardenClient(
        store.view,
        reaper,
        module=WARDEN_MODULE,
        policy=config.namespaces,
        ping_seconds=config.warden_ping_seconds,
        dead_seconds=config.warden_dead_seconds,
        configuration=memory.configuration(),
        record_lag=counters.loop_lag_seconds.observe,
        on_memory=on_memory,
    )


def _make_context(
    config: Config,
    environment: Mapping[str, str],
    warden: WardenClient,
    storage: Storage,
    held_pipes: HeldPipes,
    counters: Counters,
    disk_guard: DiskGuard,
    restores: Restores,
) -> EngineContext:
    identity = parse_identity(config.run_as)
    child_environment = ChildEnvironment(
        config,
        environment,
        bin_dir=storage.store.bin_dir,
        python=storage.python,
        temporary_dir=storage.temporary_dir,
    )

    def on_run() -> None:
        disk_guard.mark_running()
        restores.mark_busy()

    return EngineContext(
        config=config,
        loop=warden.loop,
        warden=warden,
        identity=identity,
        python=storage.python,
        store=storage.store,
        environment=child_environment,
        direct_exec=DirectExec(
            warden,
            child_environment,
            identity,
            own_limits(config),
            is_on=config.direct_exec == "on",
        ),
        held_pipes=held_pipes,
        default_shell=DefaultShell(),
        temporary_dir=storage.temporary_dir,
        ensure_base_dir=storage.files.ensure_base_dir,
        ensure_temporary_dir=storage.files.ensure_temporary_dir,
        counters=counters,
        on_run=on_run,
        look_for_restore=restores.look,
        settle_restore=restores.settle,
    )


def _make_registry(config: Config) -> Registry:
    return Registry(
        max_plain=config.retention_count,
        max_kept=config.keyed_retention_count,
        max_memory_bytes=config.retention_bytes,
        plain_seconds=config.retention_seconds,
        kept_seconds=config.keyed_retention_seconds,
    )


def _make_files(config: Config) -> Files:
    return Files(
        config.base_dir,
        state_dir=config.state_dir,
        max_upload_bytes=config.max_upload_bytes,
        unpacking=UnpackingLimits(config.max_unpacked_bytes, config.max_unpacked_entries),
        identity=parse_identity(config.run_as),
        syncs_uploads=config.fsync == "uploads",
    )


def _find_volumes(config: Config) -> list[Volume]:
    """The directories with a limit."""
    volumes = []
    if config.base_dir_bytes:
        volumes.append(Volume("base_dir_bytes", config.base_dir, config.base_dir_bytes))
    if config.tmp_dir_bytes:
        volumes.append(Volume("tmp_dir_bytes", "/tmp", config.tmp_dir_bytes))
    return volumes


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


def _tell_former_shortage(shortage: MemoryShortage) -> None:
    log.warning(
        "memory was nearly full when the former daemon died",
        extra={
            "left_bytes": shortage.left_bytes,
            "size_bytes": shortage.size_bytes,
            "seconds_ago": round(time.time() - shortage.noted_at, 1),
        },
    )


def _go_on(registry: Registry, sessions: Sessions, restore: Restore, _spared: object) -> None:
    """The sandbox was restored from a checkpoint: go on as if no time had passed."""
    registry.postpone(restore.frozen_seconds, asyncio.get_running_loop().time())
    for execution in registry.live:
        execution.postpone(restore.frozen_seconds)
        execution.outlive_callers()
    sessions.note_restore(restore.frozen_seconds)


def _resize(memory: PodMemory, warden: WardenClient, restore: Restore, _spared: object) -> None:
    """The sandbox was restored, perhaps in a pod of another size."""
    if "pod_memory_bytes" in restore.changes:
        memory.become(pod_memory.find(restore.changes["pod_memory_bytes"]))
        warden.reconfigure(memory.configuration())


async def _keep_house(
    sessions: Sessions,
    retention: Retention,
    memory_notes: MemoryNotes,
    memory_return: MemoryReturn,
) -> float:
    """Do a round of housekeeping; return when the next round is due."""
    sessions.evict_idle()
    await retention.tidy()
    return min(
        sessions.next_eviction(),
        retention.next_round(),
        memory_notes.step(),
        memory_return.step(asyncio.get_running_loop().time()),
    )
