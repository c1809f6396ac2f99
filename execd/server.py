"""Composition: settings -> engine -> app -> listener; signals; the way down.

The way down, on SIGTERM or SIGINT:
  1. say so: /readyz is 503, no new execution is taken; `GET /` still answers;
  2. running commands get TERM, then KILL, and their callers their answers;
  3. the listener closes, connections that are still answering get a moment;
  4. the warden goes, and with it whatever user code is left;
  5. exit 0.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import uvloop
from aiohttp import web

from execd import __version__
from execd import log as logs
from execd.api.app import make_runner
from execd.api.connections import ConnectionLimits
from execd.engine import CannotStart, Engine
from execd.engine.own_paths import make_base_dir
from execd.engine.runs import parse_identity
from execd.engine.state_dir import StateDirError
from execd.errors import ExecdError

if TYPE_CHECKING:
    from execd.config import Config

log = logging.getLogger(__name__)

EXIT_CANNOT_START = 1
EXIT_USAGE = 2
BACKLOG = 1024
CLOSE_SECONDS = 1.0


def serve(config: Config) -> NoReturn:
    """Run until told to stop, and end the process."""
    _make_base_dir(config.base_dir, config.run_as)
    flush_log = logs.setup(config.log_level)
    _raise_open_files()
    exit_code = uvloop.run(_serve(config))
    flush_log()
    # Not sys.exit: the interpreter would wait for threads, and one may hang on a dead disk or a stalled reader of the log.
    os._exit(exit_code)


def _make_base_dir(path: str, run_as: str | None) -> None:
    """Ends the process if there can be none. The engine makes it again whenever it is gone; here a setting is at fault.

    One that is made here is the user's who is to work in it; one that is there is whose it is.
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


def _raise_open_files() -> None:
    """Hundreds of executions hold two pipes each; soft limits are often 1024 for the sake of select(2), which nobody calls here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: Config) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(config, reap_strangers=True)
    try:
        await engine.start()
    except StateDirError as error:
        print(f"execd: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ExecdError as error:  # the base dir was there a moment ago
        print(f"execd: --base-dir: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except CannotStart as error:
        log.error("cannot start", extra={"step": error.step, "path": error.path, "error": str(error)})
        return EXIT_CANNOT_START
    try:
        limits = ConnectionLimits.of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        runner = make_runner(engine, limits, shutdown_timeout=CLOSE_SECONDS)
        await runner.setup()
        try:
            for what, wanted in (("listening for sandboxd REST", config.sandboxd_rest_port), ("listening", config.port)):
                if wanted is None:
                    continue
                try:
                    await web.TCPSite(runner, config.host, wanted, backlog=BACKLOG).start()
                except socket.gaierror as error:
                    print(f"execd: --host: {config.host}: {error.strerror}", file=sys.stderr)
                    return EXIT_USAGE
                except OSError as error:
                    print(f"execd: cannot listen on {config.host}:{wanted}: {error.strerror}", file=sys.stderr)
                    return EXIT_CANNOT_START
                host, port = runner.addresses[-1][:2]
                log.info(what, extra={"host": host, "port": port, "version": __version__, "base_dir": config.base_dir})
            gc.freeze()  # what is there by now stays: each full collection would look at all of it again, for 30 ms and not 15
            await stop.wait()
            log.info("shutting down")
            await engine.drain()
        finally:
            await runner.cleanup()
    finally:
        await engine.stop()
    return 0
