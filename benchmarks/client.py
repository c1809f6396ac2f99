"""The load generator: one loop for one connection or many, with or without pauses.

    python -m benchmarks.client PROBER      (a JSON object: see ``probe_meanwhile``)

Latency is the time from the first byte sent to the last byte of the reply received. A period begins
and ends without a command in flight, so the CPU of a period belongs to the commands of the period.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.dialects import DIALECTS, Dialect, http_request
from benchmarks.wires import Http11, UnexpectedReply, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REPOSITORY = Path(__file__).resolve().parents[1]
ANSWER_SECONDS = 60.0
PROBE_PAUSE_SECONDS = 0.01
PROBER_STARTS_SECONDS = 0.6
"""From the start of the probing process to the first probe that counts."""
_CLONE_NEWNET = 0x40000000


class Silence(Exception):
    """No answer came in time."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    network_of: int | None = None
    """The process in whose network namespace the address is; None: the client's own."""


@dataclass(frozen=True)
class Target:
    """A subject, as a client sees it."""

    dialect: str
    commands: Address
    probes: Address

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Target:
        found = json.loads(text)
        return cls(found["dialect"], Address(**found["commands"]), Address(**found["probes"]))

    def speak(self) -> Dialect:
        return DIALECTS[self.dialect]


@contextmanager
def _network(pid: int | None) -> Iterator[None]:
    """Sockets made meanwhile are in the network namespace of the process, and stay there."""
    if pid is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as own, open(f"/proc/{pid}/ns/net") as other:
        if libc.setns(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns into a subject's network namespace")
        try:
            yield
        finally:
            if libc.setns(own.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns back")


def connect(address: Address) -> socket.socket:
    with _network(address.network_of):
        made = socket.create_connection((address.host, address.port), timeout=ANSWER_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Connection:
    """Sends the payloads in turn, again and again."""

    def __init__(
        self,
        address: Address,
        wire: Wire,
        payloads: Sequence[bytes],
        is_success: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self.socket = connect(address)
        self._wire, self._payloads = wire, itertools.cycle(payloads)
        self._is_success = is_success
        self._sent_at = 0.0
        if opening := wire.opening():
            self.socket.sendall(opening)

    def close(self) -> None:
        self.socket.close()

    def send(self) -> None:
        request = self._wire.request(next(self._payloads))
        self._sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> tuple[float, bytes] | None:
        """The seconds since the request and the reply, if the reply is complete."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the subject has closed the connection")
        answers, reply = self._wire.receive(data)
        if answers:
            self.socket.sendall(answers)
        if reply is None:
            return None
        took = time.perf_counter() - self._sent_at
        if not self._is_success(reply):
            raise UnexpectedReply(reply[:500].decode(errors="replace"))
        return took, reply

    def exchange(self, within_seconds: float = ANSWER_SECONDS) -> tuple[float, bytes]:
        """One request and its reply. Raises Silence."""
        self.socket.settimeout(within_seconds)
        self.send()
        try:
            while (received := self.receive()) is None:
                pass
        except TimeoutError:
            raise Silence from None
        return received


@dataclass(frozen=True)
class Period:
    latencies: list[float]
    """Seconds, one for each reply."""
    seconds: float


def drive(connections: Sequence[Connection], seconds: float, pause_seconds: float = 0.0) -> Period:
    """Keep every connection busy, each with this pause between reply and request, until the time
    is over and the last reply has come. Raises Silence."""
    latencies: list[float] = []
    poller = select.epoll()
    with contextlib.closing(poller):
        by_fd = {each.socket.fileno(): each for each in connections}
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        waiting: list[tuple[float, Connection]] = []  # due times rise, for all pauses are equal
        began = time.perf_counter()
        for each in connections:
            each.send()
        busy = len(connections)
        while busy or waiting:
            limit = max(waiting[0][0] - time.perf_counter(), 0.0) if waiting else ANSWER_SECONDS
            events = poller.poll(limit)
            now = time.perf_counter()
            if not events and not waiting:
                raise Silence
            is_over = now - began >= seconds
            for fd, _ in events:
                received = by_fd[fd].receive()
                if received is None:
                    continue
                latencies.append(received[0])
                busy -= 1
                if is_over:
                    continue
                if pause_seconds:
                    waiting.append((now + pause_seconds, by_fd[fd]))
                else:
                    by_fd[fd].send()
                    busy += 1
            if is_over:
                waiting.clear()
            while waiting and waiting[0][0] <= now:
                waiting.pop(0)[1].send()
                busy += 1
        return Period(latencies, time.perf_counter() - began)


@contextmanager
def command_connections(
    target: Target, count: int, commands: Sequence[str]
) -> Iterator[list[Connection]]:
    """Connections that send these command lines; the lines of neighbours are shifted by one."""
    dialect = target.speak()
    payloads = [dialect.payload(command) for command in commands]
    with ExitStack() as ends:
        made = []
        for number in range(count):
            turn = number % len(payloads)
            shifted = payloads[turn:] + payloads[:turn]
            made.append(Connection(target.commands, dialect.wire(), shifted, dialect.is_success))
            ends.callback(made[-1].close)
        yield made


@contextmanager
def get_connection(address: Address, path: str) -> Iterator[Connection]:
    made = Connection(address, Http11(), [http_request("GET", path)])
    with contextlib.closing(made):
        yield made


def run_command(target: Target, command: str, within_seconds: float = ANSWER_SECONDS) -> bytes:
    """The command's output. Raises UnexpectedReply unless the exit code is 0."""
    with command_connections(target, 1, [command]) as [connection]:
        return target.speak().output(connection.exchange(within_seconds)[1])


def probe_meanwhile(target: Target, seconds: float) -> subprocess.Popen[str]:
    """A process that asks the health route like a kubelet, but more often, on a fresh connection
    each time. Its output is a JSON list of seconds."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.client", target.to_json(), str(seconds)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )


def _probe(target: Target, seconds: float) -> list[float]:
    with contextlib.suppress(OSError):  # a client without the privilege shares the CPUs equally
        os.nice(-15)
    path = target.speak().probe_path
    request = http_request("GET", path, more="Connection: close\r\n")
    found = []
    begin = time.perf_counter() + PROBER_STARTS_SECONDS / 2
    while (began := time.perf_counter()) < begin + seconds:
        with contextlib.closing(Connection(target.probes, Http11(), [request])) as connection:
            connection.exchange()
        if began >= begin:
            found.append(time.perf_counter() - began)
        time.sleep(PROBE_PAUSE_SECONDS)
    return found


if __name__ == "__main__":
    print(json.dumps(_probe(Target.from_json(sys.argv[1]), float(sys.argv[2]))))
