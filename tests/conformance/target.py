"""The daemon under test, and ways to talk to the daemon that an HTTP library would not allow.

One suite, two cases. With EXECD_URL set, the daemon runs elsewhere (in a container, in gVisor), and
the suite knows only the wire. Without EXECD_URL the suite starts a daemon here, natively, in a
separate directory. In both cases the suite looks inside only through ``POST /execute``, so the
suite needs none of execd's code.

Settings, all optional:

    EXECD_URL                        the daemon, when the daemon runs elsewhere
    EXECD_CONFORMANCE_PORTS          the ports of the daemon's dialects, for tests/sdk and
                                     tests/dialects: "sandboxd_grpc=19090 opensandbox=..."
    EXECD_PID                        the pid, when visible from here; the suite then also checks
                                     memory and descriptors
    EXECD_LOG                        the file of the daemon's log, when visible from here
    EXECD_STATE_DIR                  the daemon's state dir: commands must not reach the dir
    EXECD_CONFORMANCE_SECRET         a value in the daemon's environment, hidden from commands
    EXECD_CONFORMANCE_LAUNCHER       how to start more daemons beside the daemon under test, for
                                     tests of settings and restarts:
                                     LAUNCHER [--bind DIR]... [--env NAME=VALUE]... -- COMMAND
                                     FLAG... runs a daemon to the end, in sight of the directories;
                                     SIGTERM is handed on to the daemon, SIGQUIT as SIGKILL
    EXECD_CONFORMANCE_COMMAND        the launcher's COMMAND; takes the flags of `execd serve`
    EXECD_CONFORMANCE_CROWD          how many commands hang at once (default 100)
    EXECD_CONFORMANCE_STORM          how many commands, each with ten descendants, time out in the
                                     same second (default 100; 30 for a daemon elsewhere: gVisor
                                     takes 2 ms to kill and reap a process)
    EXECD_CONFORMANCE_PROGRAMS       how many programs run at once, each with a reader (default 500;
                                     200 for a daemon elsewhere: gVisor starts some 40 a second,
                                     so 500 take half a minute)
    EXECD_CONFORMANCE_NAMESPACES     1: fail, rather than skip, where user code is not kept in
                                     namespaces
    EXECD_CONFORMANCE_PACKAGES       packages that the sessions' interpreter must have, blanks
                                     between: "pandas pip"
    EXECD_CONFORMANCE_PROBES         a file: each test that probes GET / beside an attack adds a
                                     line: the slowest answer in seconds, the name of the test
    EXECD_CONFORMANCE_LARGE          1: also 2 GiB files and 10 GB of output
"""

from __future__ import annotations

import http.client
import io
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..free_port import free_port
from ..patience import patience
from .contract import RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CROWD = int(os.environ.get("EXECD_CONFORMANCE_CROWD", "100"))
STORM = int(
    os.environ.get("EXECD_CONFORMANCE_STORM", "30" if os.environ.get("EXECD_URL") else "100")
)
PROGRAMS = int(
    os.environ.get("EXECD_CONFORMANCE_PROGRAMS", "200" if os.environ.get("EXECD_URL") else "500")
)
NAMESPACES = os.environ.get("EXECD_CONFORMANCE_NAMESPACES") == "1"
LARGE = os.environ.get("EXECD_CONFORMANCE_LARGE") == "1"
LAUNCHER = shlex.split(os.environ.get("EXECD_CONFORMANCE_LAUNCHER", ""))
COMMAND = shlex.split(os.environ.get("EXECD_CONFORMANCE_COMMAND", ""))

ANSWER_SECONDS = 0.5
"""An answer comes within the command's deadline plus this many seconds (docs/behaviour.md)."""

READ_SECONDS = 60.0
"""How long the suite waits for any answer at all; a command's own limit comes on top."""

START_SECONDS = 60.0
STOP_SECONDS = 30.0
TERMINATED = 128 + signal.SIGTERM
"""The daemon's exit code after SIGTERM."""
REPOSITORY = Path(__file__).resolve().parents[2]


def wait_until(condition: Callable[[], object], deadline_seconds: float, what: str) -> None:
    """Ask until the condition holds. Fail, naming the fact, when patience with
    ``deadline_seconds`` is over."""
    pause = threading.Event()
    began = time.monotonic()
    while not condition():
        patience.check(began, deadline_seconds, what)
        pause.wait(0.02)


@dataclass
class Answer:
    """An HTTP answer read from a bare socket."""

    http_status: int
    headers: http.client.HTTPMessage
    content: bytes
    elapsed_seconds: float
    is_whole: bool = True

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Target:
    url: str
    pid: int | None = None
    state_dir: str | None = None
    secret: str | None = None
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    must_have_namespaces: bool = NAMESPACES
    _capabilities: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return parts.hostname, parts.port or 80

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = {},  # never changed
    ) -> Answer:
        """Send one request on a separate connection, with the path byte for byte as given."""
        (answer,) = self.request_at_once([request_bytes(method, path, body, headers)])
        return answer

    def request_at_once(
        self, requests: Iterable[bytes], deadline_seconds: float = 120.0
    ) -> list[Answer]:
        """Send each request on a separate connection, all before the first answer is read. The
        answers come in the same order."""
        asked = list(requests)
        connections: list[socket.socket] = []
        received: list[bytearray] = []
        ended: dict[int, float] = {}
        started: list[float] = []
        with selectors.DefaultSelector() as selector:
            try:
                for number, request in enumerate(asked):
                    started.append(time.monotonic())
                    connection = self.connect()
                    connections.append(connection)
                    received.append(bytearray())
                    connection.sendall(request)
                    selector.register(connection, selectors.EVENT_READ, number)
                end = time.monotonic() + patience.seconds(deadline_seconds)
                while len(ended) < len(connections):
                    ready = selector.select(max(0.0, end - time.monotonic()))
                    assert ready, (
                        f"{len(connections) - len(ended)} of {len(connections)} "
                        "requests were never answered"
                    )
                    for key, _ in ready:
                        number = key.data
                        data = connections[number].recv(1 << 20)
                        received[number] += data
                        if not data:
                            ended[number] = time.monotonic()
                            selector.unregister(connections[number])
            finally:
                for connection in connections:
                    connection.close()
        answers = [
            _parse(bytes(received[n]), ended[n] - started[n]) for n in range(len(connections))
        ]
        for request, answer in zip(asked, answers, strict=True):
            self._record(request, answer)
        return answers

    def _record(self, request: bytes, answer: Answer) -> None:
        method, path, *_ = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        reply = RECORDER.begin(method, self.address, path, answer.http_status, headers)
        if reply is not None:
            reply.add(answer.content)
            reply.is_whole = answer.is_whole

    def capabilities(self, afresh: bool = False) -> dict[str, Any]:
        """The daemon's report of the features of the kernel. Empty for a server without the
        route."""
        if afresh or self._capabilities is None:
            answer = self.request("GET", "/v1/capabilities")
            self._capabilities = answer.json() if answer.http_status == 200 else {}
        return self._capabilities

    def claims_namespaces(self) -> bool:
        """A server without the route claims nothing; a server with the route must say yes or no."""
        capabilities = self.capabilities()
        return bool(capabilities) and bool(capabilities["namespaces"])

    def resident_bytes(self) -> int:
        """RSS of the daemon process; only where the pid is known."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def descriptor_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stop(self) -> int:
        """Send SIGTERM, return the exit code. A daemon that does not exit is killed, and the test
        fails."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience.seconds(STOP_SECONDS))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running {STOP_SECONDS:g} s after SIGTERM\n{self.log_text()}"
            ) from None

    def kill(self) -> None:
        """SIGKILL: the daemon has no time to say anything."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT if LAUNCHER else signal.SIGKILL)
        self.process.wait(patience.seconds(STOP_SECONDS))

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log else ""

    def log_errors(self) -> list[str]:
        """The log's lines about what must not happen: errors, and tracebacks outside of a line."""
        return [
            line
            for line in self.log_text().splitlines()
            if '"level":"error"' in line or "Traceback" in line
        ]


def request_bytes(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] = {},  # never changed
) -> bytes:
    """A whole HTTP/1.1 request with ``Connection: close``."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def execute_bytes(command: str, timeout_seconds: float | None = None, **headers: str) -> bytes:
    body: dict[str, Any] = {"command": command}
    if timeout_seconds is not None:
        body["timeout_seconds"] = timeout_seconds
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request_bytes(
        "POST", "/execute", json.dumps(body).encode(), {"Content-Type": "application/json"} | named
    )


class _Received:
    """The socket methods that ``http.client.HTTPResponse`` needs, over bytes already received."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def _parse(data: bytes, elapsed_seconds: float) -> Answer:
    # With "HEAD" as the method no body would be read; a HEAD answer has none to read anyway.
    response = http.client.HTTPResponse(_Received(data))  # type: ignore[arg-type]
    response.begin()
    is_whole = True
    try:
        content = response.read()
    except http.client.IncompleteRead as cut:
        content, is_whole = cut.partial, False
    return Answer(response.status, response.headers, content, elapsed_seconds, is_whole)


def dialect_ports(*names: str) -> dict[str, int]:
    """The ports of these dialects: of the daemon elsewhere, or free ports for a daemon here. A name
    is that of the setting, without ``_port``."""
    given = os.environ.get("EXECD_CONFORMANCE_PORTS")
    if given is None:
        return {name: free_port() for name in names}
    found = dict(pair.split("=") for pair in given.split())
    return {name: int(found[name]) for name in names}


def start(
    directory: Path,
    *flags: str,
    environment: Mapping[str, str] = {},  # never changed
    below: Iterable[str] = (),
) -> Target:
    """Start a daemon in ``directory``; the caller ends the daemon with ``stop`` or ``kill``.
    ``below`` is the command that runs the daemon's command, where the started process is not the
    daemon."""
    base_dir, state_dir, log = directory / "base", directory / "state", directory / "stderr"
    for made in (base_dir, state_dir):
        made.mkdir(parents=True, exist_ok=True)
    port = free_port()
    secret = os.urandom(12).hex()
    environment = {"EXECD_CONFORMANCE_SECRET": secret, **environment}
    if LAUNCHER:
        for shared in (base_dir, state_dir):
            shared.chmod(0o777)  # like an emptyDir: the daemon is another user there
        places = [f"--bind={shared}" for shared in (base_dir, state_dir)]
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        command = [*LAUNCHER, *places, *variables, "--", *below, *COMMAND]
    else:
        command = [*below, sys.executable, "-m", "execd", "serve"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [
                *command,
                "--host=127.0.0.1",
                f"--port={port}",
                f"--base-dir={base_dir}",
                f"--state-dir={state_dir}",
                *flags,
            ],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    pid = None if LAUNCHER else process.pid
    target = Target(f"http://127.0.0.1:{port}", pid, str(state_dir), secret, process, log)

    def answers() -> bool:
        assert process.poll() is None, f"the daemon ended at start\n{target.log_text()}"
        try:
            return target.request("GET", "/").http_status == 200
        except OSError:
            return False

    try:
        wait_until(answers, START_SECONDS, "a new daemon answers GET /")
    except BaseException:
        target.kill()
        raise
    return target


def can_start() -> bool:
    """Whether the suite can start daemons beside the daemon under test."""
    return bool(LAUNCHER) or elsewhere() is None


def elsewhere() -> Target | None:
    """The daemon that EXECD_URL names, if set."""
    url = os.environ.get("EXECD_URL", "").rstrip("/")
    if not url:
        return None
    pid = os.environ.get("EXECD_PID")
    return Target(
        url,
        int(pid) if pid else None,
        os.environ.get("EXECD_STATE_DIR") or None,
        os.environ.get("EXECD_CONFORMANCE_SECRET") or None,
        log=Path(log) if (log := os.environ.get("EXECD_LOG")) else None,
    )
