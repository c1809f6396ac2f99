"""One zygote, as the daemon holds the process: start, link, and the reason of a failed start.

The start has two bounds. An interpreter that does not begin to run the zygote's program within
BEGIN_SECONDS is said to hang; the start goes on, because a slow disk looks the same. After
START_SECONDS the start has failed.

The interpreter is the user's, and must find the user's modules as if execd were absent. The program
loads ``execd.kernel`` by path under the usual name, and the zygote removes the name again. So
``import execd`` in a cell finds the user's package of that name, or fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

from execd import kernel
from execd.engine.executions.environment import MARKER
from execd.engine.executions.limits import own_limits
from execd.engine.output.pump import Pump
from execd.engine.sessions import interpreter_refusal
from execd.engine.sessions.interpreter_refusal import Footprint, Refusal
from execd.engine.sessions.link import Link, LinkTurns
from execd.engine.sessions.session_worker import lasting_rlimits
from execd.kernel import frames
from execd.proc.child import Lost
from execd.proc.client import SpawnError
from execd.proc.messages import NULL_DEVICE, Spawn
from execd.proc.program_block import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from execd.engine.executions.context import EngineContext
    from execd.engine.sessions.session_worker import SessionWorker
    from execd.model import Interpreter
    from execd.proc.child import Child

log = logging.getLogger(__name__)

# Time to start the interpreter. Shorter than the queue's wait, so a first caller learns the reason.
BEGIN_SECONDS = 15.0
# Time to import IPython and the preloads from a cold disk, in gVisor.
START_SECONDS = 120.0
# An interpreter that is slower than this may have been stopped.
SLOW_SECONDS = 1.0
# Between the end of the link and the warden's report of the end of the process.
END_SECONDS = 5.0
STDERR_TAIL_BYTES = 4096
# More output than that of a Python that warns about each import.
MAX_START_OUTPUT_BYTES = 1024 * 1024


# Python 2.7 can run this text up to the exit, too: the frame "began" tells the daemon the version.
# Before the first import: '' in sys.path is the working directory, and a user's file there could
# take the place of a module of the standard library.
_PROGRAM = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json, os, struct, types
began = json.dumps(
    {"type": "began", "version": list(sys.version_info[:3]), "folders": sys.path}
).encode()
os.write(3, struct.pack(">I", len(began)) + began)
if sys.version_info < (3, 9):
    sys.exit()
for name, path in ("execd", []), ("execd.kernel", [sys.argv[1]]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from execd.kernel import zygote
zygote.main(*json.loads(sys.argv[2]))
"""

# Variables forbidden for the zygote: the zygote loads the interpreter's own modules only. A worker
# gets the session's variables when the worker is configured.
_LEFT_OUT = {
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONSAFEPATH",
    "MPLBACKEND",
}

IPYTHON_FOLDERS = os.path.join(sys.prefix, "share", "execd", "ipython")
"""For interpreters without IPython: a folder for each range of Python versions, made by
``image/make-ipython``. A plain ``pip install`` of execd makes none."""

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Put large blocks of malloc into transparent huge pages (glibc 2.35, MADV_HUGEPAGE), as numpy does
with arrays. For the reason see ``kernel.double_fork``. C libraries except glibc ignore this."""


def zygote_argv(python: str, preload: Sequence[str] = ()) -> list[str]:
    """Return the zygote's command line. Descriptor 3 is the control channel.

    ``python``: path of the user's interpreter. ``preload``: names of modules to import before the
    first fork. An interpreter without IPython gets the IPython of a folder in IPYTHON_FOLDERS.
    """
    return [
        python,
        "-c",
        _PROGRAM,
        kernel.__path__[0],
        json.dumps([IPYTHON_FOLDERS, list(preload)]),
    ]


def zygote_environment(env: Mapping[str, str], *, is_own: bool = False) -> dict[str, str]:
    """Return the zygote's environment, made from ``env``, the environment of a session. ``is_own``:
    for execd's own Python, which no variable for the image's Python may change.

    Variables that could load user code are left out, because all sessions are forked from this
    interpreter. Programs of sessions do not inherit the zygote's environment; a worker has the
    environment of the configuration.
    """
    kept = {
        name: value
        for name, value in env.items()
        if name not in _LEFT_OUT and not (is_own and name.startswith("PYTHON"))
    }
    tunables = ":".join(filter(None, (env.get("GLIBC_TUNABLES"), HUGE_PAGES)))
    return {**kept, "PYTHONUSERBASE": "/nonexistent", "GLIBC_TUNABLES": tunables}


class ZygoteLost(Exception):
    """The zygote ended before its ``ready``. The message is for people."""


class InterpreterRefused(Exception):
    """No start of this interpreter can succeed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class ZygoteProcess:
    """One zygote: its process, link and standard error. ``close`` ends all of them."""

    def __init__(self, turns: LinkTurns, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.footprint = Footprint(interpreter.path)
        self._python = interpreter.path
        self._version: list[int] | None = None
        """The interpreter's version. None: the interpreter has not begun."""
        self._failure: dict[str, Any] | None = None
        self._output_bytes = 0
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.started_at = time.monotonic()
        self._stderr_tail = bytearray()
        self._child: Child | None = None
        self._next_id = 1
        ours, self._child_end = socket.socketpair()
        self._link = Link(
            ours,
            frames.FrameDecoder(frames.FROM_ZYGOTE).decode,
            turns,
            self._on_frame,
            self._on_lost,
        )
        read_end, self._stderr_fd = os.pipe2(os.O_CLOEXEC)
        self._pump = Pump(read_end, self._keep_stderr)
        self._pump.start()

    async def start(self, context: EngineContext, on_hang: Callable[[Refusal], None]) -> None:
        """Start the process, and return when the zygote can fork.

        ``on_hang``: called if the interpreter does not begin in time. Raises SpawnError,
        WardenLost, ZygoteLost, InterpreterRefused.
        """
        assert self._child is None, "started twice"
        identity = context.identity
        env, marker = await context.build_environment("zygote", {})
        # Workers inherit the environment, and would inherit the zygote's marker.
        del env[MARKER]
        # ``launch`` closes the descriptors, even if the launch fails.
        descriptors = [self._child_end.detach(), self._stderr_fd]
        self._stderr_fd = -1
        limits = lasting_rlimits(
            own_limits(context.config), in_namespace=context.warden.has_namespace
        )
        request = Spawn(
            tag=context.warden.new_tag(),
            program=pack(
                zygote_argv(self._python, context.config.preload),
                zygote_environment(env, is_own=self.interpreter.origin == "own"),
                context.config.base_dir,
            ),
            stdio=[NULL_DEVICE, 1, 1, 0],
            terminal=False,
            limits=limits,
            processes=0,
            marker=marker,
            uid=identity.uid,
            gid=identity.gid,
            groups=None if identity.groups is None else list(identity.groups),
            is_idle=True,
        )
        try:
            self._child = await context.warden.launch(request, descriptors, lambda *_: None)
        except SpawnError as error:
            if (refusal := interpreter_refusal.of_spawn_error(error)) is not None:
                raise InterpreterRefused(refusal) from error
            raise
        begin_timer = asyncio.get_running_loop().call_later(
            BEGIN_SECONDS, self._report_hang, on_hang
        )
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await self._wait_for_start(lost)
        finally:
            lost.cancel()
            begin_timer.cancel()
        if not self.ready.done():
            refusal = await self._refusal()
            if refusal is not None:
                raise InterpreterRefused(refusal)
            raise ZygoteLost(self._last_words() or "it did not become ready")

    async def _wait_for_start(self, lost: asyncio.Future[Literal[True]]) -> None:
        """Return when the zygote is ready or lost, or START_SECONDS are over.

        User code may stop the zygote, and a stopped interpreter must not count as one that hangs.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + START_SECONDS
        while (seconds_left := until - loop.time()) > 0:
            done, _ = await asyncio.wait(
                (self.ready, lost),
                timeout=min(SLOW_SECONDS, seconds_left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                return
            self.resume()

    def _report_hang(self, on_hang: Callable[[Refusal], None]) -> None:
        if self._version is None and not self.lost.is_set():
            on_hang(
                Refusal(
                    "hangs",
                    f"{self._python} has not begun to run Python within {BEGIN_SECONDS:g} s",
                )
            )

    async def _refusal(self) -> Refusal | None:
        """Judge the interpreter after a failed start. None: the trouble may pass."""
        assert self._child is not None
        if self._failure is not None:
            cause, message = self._failure["cause"], self._failure["message"]
            return None if cause == "no_resources" else Refusal(cause, message)
        if self._output_bytes > MAX_START_OUTPUT_BYTES or self._link.fault is not None:
            return Refusal(
                "garbage",
                f"{self._python} does not run the program of sessions, and prints: "
                f"{self._last_words() or self._link.fault}",
            )
        if self._version is not None:
            too_old = interpreter_refusal.of_version(self._python, self._version)
            if too_old is not None:
                return too_old
        if not self.lost.is_set():
            return Refusal(
                "hangs", f"{self._python} did not load IPython within {START_SECONDS:g} s"
            )
        await asyncio.wait((self._child.exited,), timeout=END_SECONDS)
        if not self._child.exited.done() or isinstance(self._child.exited.result(), Lost):
            return None
        self._pump.drain_now()
        ended = self._child.exited.result()
        assert not isinstance(ended, Lost)
        return interpreter_refusal.of_end(
            self._python, ended, has_begun=self._version is not None, stderr=self._last_words()
        )

    def _last_words(self) -> str:
        return self._stderr_tail.decode("utf-8", "replace").strip()[-1000:]

    def fork(self, worker: SessionWorker) -> None:
        """Ask the zygote to fork. The warden reports the success, by the adoption."""
        assert worker.child_ends, "forked twice"
        child_ends, worker.child_ends = worker.child_ends, []
        self._link.send({"type": "fork", "id": self._next_id}, child_ends)
        self._next_id += 1

    def _on_frame(self, frame: dict[str, Any], _: int) -> bool:
        """Handle a frame. Return False for frames rarely sent by an honest zygote."""
        match frame["type"]:
            case "ready" if not self.ready.done():
                self.ready.set_result(frame)
                return True
            case "began" if self._version is None:
                self._version = frame["version"]
                self.footprint.include(frame["folders"])
                return True
            case "failed" if self._failure is None and not self.ready.done():
                self._failure = frame
                self._keep_stderr(frame["message"].encode("utf-8", "replace"))
                return True
            case "fork_failed":
                log.warning("a worker cannot be forked: %s", frame["message"])
        return False

    def _on_lost(self) -> None:
        self.lost.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._output_bytes += len(data)
        if self._output_bytes > MAX_START_OUTPUT_BYTES and not self.ready.done():
            self.kill()
        self._stderr_tail += data
        del self._stderr_tail[:-STDERR_TAIL_BYTES]

    def resume(self) -> None:
        """Send SIGCONT: the zygote is slow, and user code may have stopped the zygote."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT, scope="leader")

    def kill(self) -> None:
        """Kill the process, and report the loss."""
        if self._child is not None:
            self._child.kill(0.0)
        self.lost.set()

    def close(self) -> None:
        """Kill the process and close the descriptors."""
        if self._child is not None:
            self._child.kill(0.0)
            self._child.release()
        self._link.close()
        self._child_end.close()
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)
        self._pump.close()
