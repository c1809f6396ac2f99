"""Stand-ins for the daemon and the warden around a real zygote: control socket, pipes, greetings,
waiting."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar, NamedTuple

import psutil

from execd.engine.sessions import zygote_process
from execd.kernel import frames
from tests.kernel.worker_frames import FROM_WORKER
from tests.patience import patience

DEADLINE_SECONDS = 30.0
PYTHON = os.environ.get("EXECD_TEST_PYTHON", sys.executable)
"""The user's interpreter. The tests of this folder run with any interpreter with IPython 8 or 9."""


class Gone(Exception):
    """The peer has closed the connection."""


class Fault(Gone):
    """The worker sent "failed" and ends: an error of the worker, or a state broken by user code."""


class Peer:
    """The daemon's end of a protocol socket."""

    def __init__(self, end: socket.socket, direction: Any) -> None:
        self.socket = end
        self.socket.settimeout(DEADLINE_SECONDS)
        self._decoder = frames.FrameDecoder(direction)
        self._frames: list[dict[str, Any]] = []

    def send(self, kind: str, descriptors: list[int] | None = None, **fields: Any) -> None:
        data = frames.encode({"type": kind, **fields})
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        sent = self.socket.sendmsg([data], rights)
        # Sending even nothing to a worker killed by the first part raises.
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def receive(self) -> dict[str, Any]:
        while not self._frames:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                raise Gone from None
            if not data:
                raise Gone
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def expect(self, kind: str) -> dict[str, Any]:
        frame = self.receive()
        assert frame["type"] == kind, frame
        return frame


class Cell(NamedTuple):
    """All frames and output of a cell."""

    frames: list[dict[str, Any]]
    stdout: str
    stderr: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == kind]

    @property
    def done(self) -> dict[str, Any]:
        return self.frames[-1]

    @property
    def text(self) -> str | None:
        """The result's plain text."""
        results = self.of("result")
        return None if not results else str(results[-1]["data"]["text/plain"])

    @property
    def error(self) -> dict[str, Any] | None:
        errors = self.of("error")
        return errors[0] if errors else None


class Ends:
    """Both sides of the four descriptors of a new worker."""

    def __init__(self) -> None:
        self.protocol, theirs = socket.socketpair()
        self.greeting, greeting = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.greeting.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self._sockets = [theirs, greeting]
        self.sent = [theirs.fileno(), stdout, stderr, greeting.fileno()]

    def close_sent(self) -> None:
        for end in self._sockets:
            end.close()
        os.close(self.sent[1])
        os.close(self.sent[2])


class WorkerProcess:
    """A worker with the daemon's and the warden's ends. The pid comes from the kernel's stamp on
    the greeting."""

    def __init__(self, ends: Ends) -> None:
        self.peer = Peer(ends.protocol, FROM_WORKER)
        self.pid = self._greeted(ends.greeting)
        self._pipes = {ends.stdout: bytearray(), ends.stderr: bytearray()}
        self.stdout_fd, self.stderr_fd = ends.stdout, ends.stderr
        for fd in self._pipes:
            os.set_blocking(fd, False)
        self._last_id = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pump = threading.Thread(target=self._read_pipes, daemon=True)
        self._pump.start()
        self.exit_code: int | None = None

    @staticmethod
    def _greeted(greeting: socket.socket) -> int:
        with greeting:
            greeting.settimeout(DEADLINE_SECONDS)
            data, ancillary, _, _ = greeting.recvmsg(16, socket.CMSG_SPACE(12))
            assert data, "no greeting"
            [(_, kind, credentials)] = ancillary
            assert kind == socket.SCM_CREDENTIALS
            return int(struct.unpack("iII", credentials)[0])

    def _read_pipes(self) -> None:
        live = set(self._pipes)
        while live and not self._stop.is_set():
            for fd in select.select(list(live), [], [], 0.02)[0]:
                with self._lock:
                    if not self._take(fd):
                        live.discard(fd)

    def _take(self, fd: int) -> bool:
        """Read the pipe's present content. Return False at end of file."""
        try:
            while data := os.read(fd, 1 << 20):
                self._pipes[fd] += data
        except BlockingIOError:
            return True
        return False

    def _drained(self, fd: int) -> str:
        with self._lock:
            self._take(fd)
            text = bytes(self._pipes[fd]).decode()
            self._pipes[fd].clear()
        return text

    def output_so_far(self) -> str:
        with self._lock:
            return bytes(self._pipes[self.stdout_fd]).decode()

    def configure(
        self,
        cwd: str = "/",
        env: dict[str, str] | None = None,
        limits: list[list[int]] | None = None,
    ) -> dict[str, Any]:
        self.peer.send(
            "configure", cwd=cwd, env=environment() if env is None else env, limits=limits or []
        )
        return self.peer.receive()

    def start(
        self,
        code: str,
        *,
        allow_input: bool = False,
        store_history: bool = True,
        env: dict[str, str] | None = None,
    ) -> int:
        self._last_id += 1
        self.peer.send(
            "execute",
            id=self._last_id,
            code=code,
            allow_input=allow_input,
            store_history=store_history,
            **({} if env is None else {"env": env}),
        )
        return self._last_id

    def finish(self) -> Cell:
        received: list[dict[str, Any]] = []
        while not received or received[-1]["type"] != "done":
            received.append(self.peer.receive())
            if received[-1]["type"] == "failed":
                raise Fault(received[-1]["message"])
            if received[-1]["type"] != "done" and received[-1]["id"] < self._last_id:
                received.pop()  # a thread of user code has sent the frame late; the daemon drops it
                continue
            assert received[-1]["id"] == self._last_id
        return Cell(received, self._drained(self.stdout_fd), self._drained(self.stderr_fd))

    def run(self, code: str, **options: Any) -> Cell:
        self.start(code, **options)
        return self.finish()

    def request(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._last_id += 1
        self.peer.send(kind, id=self._last_id, **fields)
        return self.peer.expect("reply")

    def fork(self, count: int = 1) -> tuple[list[WorkerProcess], list[str]]:
        ends = [Ends() for _ in range(count)]
        self._last_id += 1
        self.peer.send(
            "fork", [fd for one in ends for fd in one.sent], id=self._last_id, count=count
        )
        for one in ends:
            one.close_sent()
        reply = self.peer.expect("reply")
        branches = [WorkerProcess(one) for one in ends]
        for branch in branches:
            branch.peer.expect("ready")
            assert branch.configure(cwd="", env={})["type"] == "configured"
        return branches, reply["warnings"] + reply["native_threads"]

    def answers_within(self, seconds: float) -> bool:
        """Return whether a frame comes in this time."""
        return bool(select.select([self.peer.socket], [], [], seconds)[0])

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def wait(self) -> int:
        """Return the worker's exit code, or the negative number of the fatal signal."""
        if self.exit_code is None:
            began = time.monotonic()
            while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                patience.check(began, DEADLINE_SECONDS, "the worker ends")
                time.sleep(0.002)
            self.exit_code = os.waitstatus_to_exitcode(ended[1])
        return self.exit_code

    def close(self) -> None:
        """End the worker and all processes of the worker's session. A second call does nothing."""
        if self._stop.is_set():
            return
        if self.exit_code is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.wait()
        self._stop.set()
        self._pump.join()
        self.peer.socket.close()
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)


def end_orphans() -> None:
    """End processes left behind by cells, now children of this process."""
    while left := [child for child in psutil.Process().children() if child.pid not in Zygote.alive]:
        for child in left:
            child.kill()
            child.wait()  # the child's children become ours


def environment() -> dict[str, str]:
    """Return the default environment of a session's cells."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/tmp", "EXECD_TEST": "1"}


class Zygote:
    """A zygote of ``python``, started as by the daemon."""

    alive: ClassVar[set[int]] = set()

    def __init__(
        self,
        python: str = PYTHON,
        preload: tuple[str, ...] = (),
        cwd: str = "/",
        *,
        leads_session: bool = True,
    ) -> None:
        """``leads_session``: True as natively; in gVisor the zygote leads a group in the warden's
        session."""
        control, theirs = socket.socketpair()

        def place() -> None:
            os.dup2(theirs.fileno(), 3)
            if leads_session:
                os.setsid()
            else:
                os.setpgid(0, 0)

        self._process = subprocess.Popen(
            zygote_process.zygote_argv(python, preload),
            env=zygote_process.zygote_environment(environment()),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            preexec_fn=place,
            pass_fds=[3],
        )
        self.alive.add(self._process.pid)
        theirs.close()
        self.control = Peer(control, frames.FROM_ZYGOTE)
        self.began = self.control.expect("began")
        self.ready = self.control.receive()
        self._last_id = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork_unconfigured(self) -> WorkerProcess:
        ends = Ends()
        self._last_id += 1
        self.control.send("fork", ends.sent, id=self._last_id)
        ends.close_sent()
        return WorkerProcess(ends)

    def fork(self, **options: Any) -> WorkerProcess:
        worker = self.fork_unconfigured()
        assert worker.configure(**options)["type"] == "configured"
        return worker

    def close(self) -> None:
        self.control.socket.close()
        code = self._process.wait(DEADLINE_SECONDS)
        self.alive.discard(self.pid)
        assert code == 0
