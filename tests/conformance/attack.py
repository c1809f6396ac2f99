"""Probes and neighbours that run beside an attack: a prober like kubelet's, and commands with known
answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..patience import IN_SANDBOX, patience
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from .target import Target

PROGRAMS = Path(__file__).with_name("attack_programs.c")

PROBE_SECONDS = 4.0 if IN_SANDBOX else 2.0
"""The slowest ``GET /`` on a quiet machine: twice the promise (docs/threat-model.md)."""

PROBES = os.environ.get("EXECD_CONFORMANCE_PROBES")

# So many equal counts in a row, 20 ms apart, are taken for the count of a daemon at rest.
STEADY_COUNTS = 10

# The prober is another process, so the test process cannot delay a probe. Natively the prober has
# a high priority like kubelet, where allowed.
_PROBER = """
import contextlib, os, select, socket, sys, time
with contextlib.suppress(OSError): os.nice(-15)
address, worst = (sys.argv[1], int(sys.argv[2])), 0.0
while not select.select([0], [], [], 0)[0]:
    began = time.monotonic()
    with socket.create_connection(address, timeout=150) as connection:
        connection.sendall(
            b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n"
        )
        answer = connection.recv(64)
    took = time.monotonic() - began
    if not answer.startswith(b"HTTP/1.1 200"): sys.exit(f"not 200: {answer!r}")
    worst = max(worst, took)
    time.sleep(max(0.0, 0.25 - took))
print(worst)
"""


def compiled(folder: Path) -> bytes:
    """The attack programs, for any Linux."""
    path = folder / "attack"
    subprocess.run(
        ["gcc", "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, PROGRAMS],
        check=True,
        capture_output=True,
        text=True,
    )
    return path.read_bytes()


@dataclass
class Prober:
    worst_seconds: float = 0.0
    """Of all probes; known when the block is over."""


@contextlib.contextmanager
def probing(target: Target, quiet_seconds: float = PROBE_SECONDS) -> Iterator[Prober]:
    """``GET /`` on a new connection four times a second, from another process, for as long as the
    block. Each answer is 200, and comes within the test's patience."""
    host, port = target.address
    process = subprocess.Popen(
        [sys.executable, "-c", _PROBER, host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found = Prober()
    try:
        yield found
    finally:
        said, _ = process.communicate("stop", timeout=200)
    assert process.returncode == 0, said
    found.worst_seconds = float(said)
    if PROBES is not None:
        test_name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].removesuffix(" (call)")
        with open(PROBES, "a") as figures:
            figures.write(f"{found.worst_seconds:7.3f}  {test_name}\n")
    assert found.worst_seconds < patience(quiet_seconds)


@dataclass
class Neighbours:
    """A sleeping command, a session with state, and a stream of small commands."""

    target: Target
    client: httpx.Client
    answers: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Start the neighbours; check at the end that no neighbour has changed."""
        sleeper = self.client.post(
            "/v1/executions", json={"argv": ["sleep", "300"], "detach": True}
        ).json()["id"]
        session = self.client.post("/v1/sessions", json={}).json()["id"]
        self._cell(session, "x = 41")
        restarts = self.target.capabilities(afresh=True)["warden_restarts"]
        before = self._steady_process_count()
        stop = threading.Event()
        stream = threading.Thread(target=self._stream, args=(stop,))
        stream.start()
        try:
            yield
        finally:
            stop.set()
            stream.join()
        assert {(said["exit_code"], said["stdout"]) for said in self.answers} == {(3, "a\n")}, (
            self.answers
        )
        assert self.client.get(f"/v1/executions/{sleeper}").json()["state"] == "RUNNING"
        cell = self._cell(session, "x + 1")
        assert (cell["result"]["data"]["text/plain"], cell["state_lost"]) == ("42", False)
        assert self.target.capabilities(afresh=True)["warden_restarts"] == restarts
        wait_until(
            lambda: self.process_count() <= before, 10, "the process count is what it was before"
        )
        self.client.delete(f"/v1/executions/{sleeper}")
        self.client.delete(f"/v1/sessions/{session}")

    def process_count(self) -> int:
        command = "set -- /proc/[0-9]*; echo $#"
        return int(self.client.post("/execute", json={"command": command}).json()["stdout"])

    def _is_pool_full(self) -> bool:
        return bool(self.client.get("/v1/stats").json()["sessions"]["pooled"])

    def _steady_process_count(self) -> int:
        """The count after the pool of workers has replaced the worker that the session took."""
        wait_until(self._is_pool_full, 20, "the pool has a worker again")
        counts = [self.process_count()]

        def is_steady() -> bool:
            counts.append(self.process_count())
            return len(set(counts[-STEADY_COUNTS:])) == 1 and len(counts) >= STEADY_COUNTS

        wait_until(is_steady, 10, f"{STEADY_COUNTS} counts of processes are equal")
        return counts[-1]

    def _cell(self, session: str, code: str) -> Any:
        answer = self.client.post(f"/v1/sessions/{session}/execute", json={"code": code}).json()
        assert answer["exit_reason"] == "exited", answer
        return answer

    def _stream(self, stop: threading.Event) -> None:
        host, port = self.target.address
        body = json.dumps({"command": "echo a | cat; exit 3"}).encode()
        over = False
        while not over:  # at least once: a bomb may end within the first tenth of a second
            connection = http.client.HTTPConnection(host, port, timeout=150)
            with contextlib.closing(connection):
                connection.request("POST", "/execute", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            # A busy sandbox may refuse a command; an accepted command gets the right answer.
            if answer.status != 429:
                self.answers.append(json.loads(said))
            over = stop.wait(0.1)


def attack(client: httpx.Client, *argv: str, **wish: Any) -> tuple[dict[str, Any], float]:
    """Run an attack to its end: the reply, and the seconds until the reply came."""
    began = time.monotonic()
    answer = client.post(
        "/v1/executions", json={"argv": ["./attack", *argv], **wish}, timeout=patience.seconds(150)
    )
    assert answer.status_code == 200, answer.text
    return answer.json(), time.monotonic() - began
