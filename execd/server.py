"""Composition: settings, engine, application, listeners; signals and shutdown.

Shutdown, on SIGTERM or SIGINT:

    1. /readyz is 503, and no new execution is taken; `GET /` still answers;
    2. running commands get TERM, then KILL, and their callers get answers;
    3. the listeners close, and connections in the middle of a reply get a moment;
    4. the warden ends, and with the warden all user code;
    5. exit code 143 after SIGTERM, as of a program that the signal ended (a 0 would make Kubernetes
       count an evicted pod as "Succeeded"); 0 after SIGINT, the Ctrl-C of a person.

With ``-- CMD`` the daemon runs the image's own program (``engine/entrypoint.py``), and passes its
signals on to CMD. SIGTERM also begins the shutdown, and CMD has as long as running commands. CMD's
end begins the shutdown too, and CMD's exit code is the daemon's.

All steps share the shutdown timeout: each step ends by a deadline that leaves time for the next. If
a step hangs nevertheless, for example on a dead disk, a thread ends the process at the deadline,
with the same exit code. The first signal decides; later signals change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import uvloop

from execd import __version__, lean_imports, logging_setup, own_tree, places
from execd.allocator import give_back_memory, limit_arenas
from execd.config import EXIT_USAGE, ConfigError
from execd.engine.assembly import CONNECTIONS_SHARE, EXECUTIONS_SHARE, CannotStart
from execd.engine.engine import Engine
from execd.engine.entrypoint import FORWARDED, Entrypoint, release_terminal
from execd.engine.executions.command import parse_identity
from execd.engine.executions.environment import restore_locale
from execd.engine.files.service import make_base_dir
from execd.engine.store.state_dir import StateDirError
from execd.errors import ExecdError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execd.api.wire.auth import TokenGate
    from execd.api.wire.port import PortServer
    from execd.config import Config
    from execd.dialects import ChosenDialect
    from execd.engine.restores import Restore

log = logging.getLogger(__name__)

EXIT_CANNOT_START = 1
EXIT_CODES = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGINT: 0}
"""By the signal that ends the daemon."""
# As many as Linux allows by default (somaxconn, listen(2)). The kernel drops a connection beyond
# the backlog, and its peer, perhaps the kubelet, tries again after 1 s.
BACKLOG = 4096
CLOSE_SECONDS, CLOSE_SHARE = 1.0, 0.1
# Python's defaults are 700, 10 and 10. A collection looks at all young objects, and an object that
# lives no longer than its request is better freed before any collection. Remembered executions are
# many objects, in no circles, and a full collection looks at all of them: 40 ms with 2,000
# executions, or 5 % of the CPU of small cells.
COLLECTION_THRESHOLDS = 5_000, 10, 7


def serve(
    config: Config,
    dialects: Sequence[ChosenDialect] = (),
    *,
    command: Sequence[str] = (),
    on_listening: Callable[[], None] | None = None,
) -> NoReturn:
    """Run until a signal, or until the end of ``command``, the image's own program; and end the
    process. ``on_listening`` is called when all ports are open and the log says so."""
    limit_arenas()
    _open_stdio()
    restore_locale(os.environ)
    try:
        config = places.choose(config, os.environ, own_tree.root())
    except ConfigError as error:
        print(f"execd: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    _make_base_dir(config.base_dir, config.run_as)
    flush_log = logging_setup.setup(config.log_level, config.log_fd)
    soft_open_files = _raise_open_files()
    gives_terminal = bool(command) and release_terminal()

    def announce() -> None:
        if on_listening is not None:
            flush_log()
            on_listening()

    async def run() -> int:
        entrypoint = None
        if command:
            entrypoint = Entrypoint(command, soft_open_files, gives_terminal=gives_terminal)
        return await _serve(config, dialects, entrypoint, flush_log, announce)

    exit_code = uvloop.run(run())
    flush_log()
    assert 0 <= exit_code < 256, "anything else would be cut by the kernel"
    # Not sys.exit: the interpreter would wait for threads, and a thread may hang on a dead disk or
    # a stalled reader of the log.
    os._exit(exit_code)


def _make_base_dir(path: str, run_as: str | None) -> None:
    """Make the base dir, or end the process. Later the engine makes the base dir again whenever it
    is gone; a failure at the start means a wrong setting.

    A new base dir belongs to the user of the commands. An existing base dir keeps its owner.
    """
    try:
        make_base_dir(path, parse_identity(run_as))
    except OSError as error:
        reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
        if isinstance(error, PermissionError):
            where = "" if error.filename in (None, path) else f" at {error.filename}"
            user = "" if run_as is None else f" for the user of --run-as {run_as}"
            reason = f"{reason}{where}{user}"
        print(f"execd: --base-dir: {path}: {reason}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _open_stdio() -> None:
    """Open /dev/null in the place of a descriptor that the caller has closed: else a socket of the
    daemon would get the number, and with the number the image's program."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number


def _raise_open_files() -> int:
    """Raise the soft limit of descriptors to the hard limit: hundreds of executions hold two pipes
    each. Soft limits are often 1024 for the sake of select(2), which execd does not call. Return
    the soft limit of before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def _exit_after(
    engine: Engine,
    within_seconds: float,
    flush_log: Callable[[], None],
    find_exit_code: Callable[[], int],
) -> None:
    """End the process ``within_seconds`` from now, in any state."""

    def end() -> None:
        log.error("not everything has ended within the shutdown timeout")
        exit_code = find_exit_code()
        engine.kill_warden()
        flush_log()
        os._exit(exit_code)

    assert within_seconds > 0
    timer = threading.Timer(within_seconds, end)
    timer.daemon = True
    timer.start()


def load_api() -> None:
    """Import the api, the larger half of all imports, while the warden's interpreter starts."""
    with lean_imports.own_hashes():
        import execd.api.app  # noqa: F401


async def _serve(
    config: Config,
    dialects: Sequence[ChosenDialect],
    entrypoint: Entrypoint | None,
    flush_log: Callable[[], None],
    on_listening: Callable[[], None],
) -> int:
    """Serve until a signal or until the end of the image's program, and return the exit code."""
    stop = _take_signals(entrypoint)
    async with contextlib.AsyncExitStack() as ends:
        try:
            engine = await ends.enter_async_context(
                Engine.open(config, reap_orphans=True, meanwhile=load_api)
            )
        except StateDirError as error:
            print(f"execd: {error}", file=sys.stderr)
            return EXIT_USAGE
        except ExecdError as error:  # the base dir existed a moment ago
            print(f"execd: --base-dir: {error.message}", file=sys.stderr)
            return EXIT_USAGE
        except CannotStart as error:
            fields = {"step": error.step, "path": error.path, "error": str(error)}
            log.error("cannot start", extra=fields)
            return EXIT_CANNOT_START
        servers: list[PortServer] = []
        ends.push_async_callback(_close_connections, servers, engine)
        exit_code = await _listen(servers, engine, dialects)
        if exit_code is not None:
            return exit_code
        if not await _make_checkpoint(engine, stop):
            return EXIT_USAGE
        on_listening()
        # Exempt the present objects from garbage collection: a full collection takes 30 ms with
        # them and 15 ms without.
        gc.freeze()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        give_back_memory()  # that the start took, and the daemon at rest does not need
        if entrypoint is not None and not stop.done():
            await engine.start_entrypoint(entrypoint)
        engine.prepare_sessions()
        by_signal = await stop

        def find_exit_code() -> int:
            return by_signal if entrypoint is None else entrypoint.exit_code(by_signal)

        log.info("shutting down")
        _exit_after(engine, config.shutdown_timeout, flush_log, find_exit_code)
        await engine.drain()
        if entrypoint is not None:
            await entrypoint.wait(engine.stop_by(EXECUTIONS_SHARE))
        return find_exit_code()


async def _make_checkpoint(engine: Engine, stop: asyncio.Future[int]) -> bool:
    """Make the checkpoint of the start, unless a signal ends the daemon before. Return False, with
    a message, if there can be none."""
    making = asyncio.ensure_future(engine.make_start_checkpoint())
    await asyncio.wait((making, stop), return_when=asyncio.FIRST_COMPLETED)
    if not making.done():
        making.cancel()
        await asyncio.wait((making,))
        return True
    try:
        making.result()
    except ExecdError as error:
        print(f"execd: --checkpoint-at-start: {error.message}", file=sys.stderr)
        return False
    return True


def _take_signals(entrypoint: Entrypoint | None) -> asyncio.Future[int]:
    """Take the signals that end the daemon, or that are for the image's program. Return a future
    for the request to end: the exit code, unless the image's program has one."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()
    if entrypoint is None:
        for number in EXIT_CODES:
            loop.add_signal_handler(number, _stop, stop, EXIT_CODES[number])
        return stop
    for number in FORWARDED:
        loop.add_signal_handler(number, entrypoint.forward, number)
    loop.add_signal_handler(signal.SIGTERM, _terminate, stop, entrypoint)
    entrypoint.ended.add_done_callback(lambda ended: _stop(stop, ended.result()))
    return stop


def _terminate(stop: asyncio.Future[int], entrypoint: Entrypoint) -> None:
    entrypoint.forward(signal.SIGTERM)
    _stop(stop, EXIT_CODES[signal.SIGTERM])


def _stop(stop: asyncio.Future[int], exit_code: int) -> None:
    """Ask for the end: the first request decides."""
    if not stop.done():
        stop.set_result(exit_code)


async def _listen(
    servers: list[PortServer], engine: Engine, dialects: Sequence[ChosenDialect]
) -> int | None:
    """Open the ports, and add their servers to ``servers``. Return an exit code if the address or a
    port cannot be used."""
    from execd.api.app import make_http_port
    from execd.api.wire.auth import TokenGate
    from execd.api.wire.connections import ConnectionLimits
    from execd.api.wire.port import PortContext

    config = engine.config
    gate = TokenGate(config.token_sha256)
    engine.restores.subscribe(functools.partial(_take_token, gate))
    context = PortContext(
        gate,
        ConnectionLimits.for_open_files(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0], n_ports=len(dialects) + 1
        ),
        # aiohttp waits this time twice: for handlers to end, and for cancelled handlers to end.
        min(CLOSE_SECONDS, config.shutdown_timeout * CLOSE_SHARE),
    )
    # All servers are made before a port is open, because a dialect may have all ports wait for an
    # init. Port 8888 comes last: "listening" is the line that everything is up.
    ports = []
    for dialect in dialects:
        try:
            servers.append(dialect.module.open(engine, dialect.settings, context))
        except ImportError as error:  # of another wing, or of a package that a wing needs
            print(f"execd: --dialect: {dialect.module.TITLE}: {error}", file=sys.stderr)
            return EXIT_CANNOT_START
        ports.append((dialect.module.TITLE, dialect.port))
    servers.append(make_http_port(engine, context))
    for server, (title, port) in zip(servers, [*ports, ("", config.port)], strict=True):
        exit_code = await _open(server, engine, title, port)
        if exit_code is not None:
            return exit_code
    return None


def _take_token(gate: TokenGate, restore: Restore, _spared: object) -> None:
    """The sandbox was restored, perhaps in a pod of another caller."""
    if "token_sha256" in restore.changes:
        gate.replace(restore.changes["token_sha256"])


async def _open(server: PortServer, engine: Engine, title: str, port: int) -> int | None:
    """Open a port. ``title``: of a dialect; empty for the daemon's own port."""
    config = engine.config
    try:
        bound_host, bound_port = await server.start(config.host, port, BACKLOG)
    except socket.gaierror as error:
        print(f"execd: --host: {config.host}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        reason = f"cannot listen on {config.host}:{port}: {error.strerror}"
        print(f"execd: {reason}", file=sys.stderr)
        return EXIT_CANNOT_START
    engine.own_ports.add(bound_port)
    facts = {"host": bound_host, "port": bound_port, "version": __version__}
    facts["base_dir"] = config.base_dir
    if title:
        log.info("listening for a dialect", extra={**facts, "dialect": title})
    else:
        log.info("listening", extra=facts)
    return None


async def _close_connections(servers: list[PortServer], engine: Engine) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(engine.stop_by(CONNECTIONS_SHARE)):
            ends = (server.cleanup() for server in servers)
            for error in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(error, Exception):
                    log.error("a port did not close in order", exc_info=error)
