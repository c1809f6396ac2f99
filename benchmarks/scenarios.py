"""What is measured of a running subject. Every subject takes the same way through this module."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import client, figures, usage
from benchmarks.client import Connection, Period, drive
from benchmarks.dialects import http_request
from benchmarks.spread import quantile
from benchmarks.wires import Http11, UnexpectedReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Found
    from benchmarks.subjects import Running

WARM_UP_SHARE = 0.15
MIX = [
    "true",
    "ls",
    "seq 200 | sort -n | tail -1",
    'python3 -c \'import argparse, json, re; print(json.dumps(re.findall("a", "banana")))\'',
]
"""Commands as agents send them: nothing, a look, a pipeline, a script."""
SLEEP = "sleep 25"
SLEEPER_ANSWERS_SECONDS, IN_GVISOR_SECONDS = 3.0, 15.0
"""Within this time a command must be answered beside commands that sleep. gVisor starts 40 to 50
programs a second, so there is no time for more than MOST_IN_GVISOR."""
MOST_IN_GVISOR = 64
CHECK, CHECKED = "echo $((6*7))", b"42"


@dataclass(frozen=True)
class Bench:
    """A subject in a round. ``scale`` shortens all periods alike."""

    running: Running
    found: Found
    in_gvisor: bool
    scale: float = 1.0

    def keep(self, key: str, value: float) -> None:
        self.found.keep(self.running.subject.name, key, value)

    def keep_latency(self, key: str, latencies: Sequence[float]) -> None:
        ordered = sorted(latencies)
        self.keep(f"{key} p50_ms", statistics.median(ordered) * 1000)
        self.keep(f"{key} p99_ms", quantile(ordered, 0.99) * 1000)

    def drive(self, connections: Sequence[Connection], seconds: float, pause: float = 0) -> Period:
        """After a warm-up."""
        drive(connections, seconds * self.scale * WARM_UP_SHARE, pause)
        return drive(connections, seconds * self.scale, pause)

    def drive_counted(
        self, key: str, connections: Sequence[Connection], seconds: float, pause: float = 0
    ) -> Period:
        """Also keep the subject's CPU and wake-ups for a command. The processes of a sandbox have
        no parts: in gVisor only the whole is kept, the commands included."""
        drive(connections, seconds * self.scale * WARM_UP_SHARE, pause)
        pid = self.running.pid
        before = usage.read(pid) if pid else {}
        period = drive(connections, seconds * self.scale, pause)
        if pid:
            used = usage.used(before, usage.read(pid))
            commands = len(period.latencies)
            self.keep(f"{key} all_cpu_ms", used.with_commands_seconds * 1000 / commands)
            if not self.in_gvisor:
                self.keep(f"{key} cpu_ms", used.own_seconds * 1000 / commands)
                self.keep(f"{key} wakeups", used.waits / commands)
        return period

    def get(self, path: str) -> Connection:
        """A connection that asks for the path; the caller closes the connection."""
        request = http_request("GET", path)
        return Connection(self.running.target.probes, Http11(), [request])


def check(bench: Bench) -> None:
    """The subject runs commands and returns their output. Raises UnexpectedReply."""
    output = client.run_command(bench.running.target, CHECK)
    if output.strip() != CHECKED:
        raise UnexpectedReply(f"{CHECK!r} printed {output!r}")


def loop(bench: Bench, command: str, seconds: float) -> None:
    key = f"{command} loop"
    with client.command_connections(bench.running.target, 1, [command]) as connections:
        bench.keep_latency(key, bench.drive_counted(key, connections, seconds).latencies)


def agent(bench: Bench) -> None:
    key, pause = "true agent", figures.AGENT_PAUSE_SECONDS
    with client.command_connections(bench.running.target, 1, ["true"]) as connections:
        bench.keep_latency(key, bench.drive_counted(key, connections, 1.5, pause).latencies)


def crowd(bench: Bench, count: int) -> None:
    key = f"connections {count}"
    with client.command_connections(bench.running.target, count, ["true"]) as connections:
        period = bench.drive_counted(key, connections, 1.5 if count == figures.CROWD else 0.7)
    bench.keep_latency(key, period.latencies)
    bench.keep(f"{key} per_second", len(period.latencies) / period.seconds)


def health(bench: Bench) -> None:
    with contextlib.closing(bench.get(bench.running.target.speak().probe_path)) as connection:
        bench.keep_latency("health idle", bench.drive([connection], 0.5).latencies)


def health_beside_mixed(bench: Bench) -> None:
    target, seconds = bench.running.target, 2.5 * bench.scale
    with client.command_connections(target, figures.MIXED_CONNECTIONS, MIX) as connections:
        prober = client.probe_meanwhile(target, seconds)
        with prober:
            while prober.poll() is None:
                drive(connections, 0.2)
            assert prober.stdout is not None
            said = prober.stdout.read()
    if prober.returncode:
        raise UnexpectedReply("the probe beside the mixed load has failed")
    bench.keep_latency("health mixed", json.loads(said))


def outputs(bench: Bench) -> None:
    for kib in figures.OUTPUT_KIB:
        command = f"head -c {kib * 1024} /dev/zero | tr '\\0' x"
        with client.command_connections(bench.running.target, 1, [command]) as connections:
            bench.keep_latency(f"output {kib}", bench.drive(connections, 0.4).latencies)


def live_executions(bench: Bench) -> None:
    """`true` beside more and more commands that sleep, each on a connection of its own. Raises
    Silence when the subject runs no more commands."""
    target, pid = bench.running.target, bench.running.pid
    own = usage.read(pid) if pid else {}
    try:
        with contextlib.ExitStack() as ends:
            asleep = 0
            for count in figures.LIVE:
                if bench.in_gvisor and count > MOST_IN_GVISOR:
                    break
                sleepers = client.command_connections(target, count - asleep, [SLEEP])
                for each in ends.enter_context(sleepers):
                    each.send()
                asleep = count
                within = IN_GVISOR_SECONDS if bench.in_gvisor else SLEEPER_ANSWERS_SECONDS
                client.run_command(target, "true", within)
                with client.command_connections(target, 1, ["true"]) as connections:
                    bench.keep_latency(f"live {count}", bench.drive(connections, 0.4).latencies)
                if pid and not bench.in_gvisor:
                    bench.keep(f"live {count} pss_mib", usage.proportional_mib(pid))
    finally:
        if pid and not bench.in_gvisor:
            usage.end_others(pid, own)


def pages(bench: Bench) -> None:
    """The daemon's memory after the routes that load more code."""
    for path in bench.running.subject.pages:
        with contextlib.closing(bench.get(path)) as connection:
            connection.exchange()
    if bench.running.subject.pages and bench.running.pid and not bench.in_gvisor:
        bench.keep("pages rss_mib", usage.resident_mib(bench.running.pid))


def _call(bench: Bench, method: str, path: str, **body: Any) -> Any:
    address = bench.running.target.probes
    with contextlib.closing(
        http.client.HTTPConnection(address.host, address.port, timeout=client.ANSWER_SECONDS)
    ) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        content = answer.read()
    if answer.status >= 300:
        raise UnexpectedReply(f"{method} {path}: {answer.status} {content[:300]!r}")
    return json.loads(content) if content else None


def sessions(bench: Bench) -> None:
    """`true`, a cell and the rest beside more and more idle sessions; a session more for cells."""
    pid = bench.running.pid
    made = [_new_session(bench)]
    body = json.dumps({"code": "1+1"}).encode()
    cell = http_request("POST", f"/v1/sessions/{made[0]}/execute", body)
    for count in figures.SESSIONS:
        while len(made) < count + 1:
            made.append(_new_session(bench))
        with client.command_connections(bench.running.target, 1, ["true"]) as connections:
            bench.keep_latency(f"sessions {count}", bench.drive(connections, 0.4).latencies)
        with contextlib.closing(
            Connection(bench.running.target.probes, Http11(), [cell], _is_success)
        ) as connection:
            taken = bench.drive([connection], 0.4).latencies
            bench.keep(f"sessions {count} cell_ms", statistics.median(taken) * 1000)
        if pid and not bench.in_gvisor:
            bench.keep(f"sessions {count} pss_mib", usage.proportional_mib(pid))
            before, seconds = usage.read(pid), max(bench.scale, 0.1)
            time.sleep(seconds)
            waits = usage.used(before, usage.read(pid)).waits
            bench.keep(f"sessions {count} wakeups", waits / seconds)
    for session in made:
        _call(bench, "DELETE", f"/v1/sessions/{session}")


def _is_success(reply: bytes) -> bool:
    return b'"status":"success"' in reply


def _new_session(bench: Bench) -> str:
    session = str(_call(bench, "POST", "/v1/sessions")["id"])
    _call(bench, "POST", f"/v1/sessions/{session}/execute", code="x = 1")
    return session


def logs(bench: Bench) -> None:
    """Writing and reading the log of a command by the routes of /v1."""
    for mib in figures.LOG_MIB:
        size = mib << 20
        began = time.perf_counter()
        ended = _call(
            *(bench, "POST", "/v1/executions"),
            command=f"head -c {size} /dev/zero | tr '\\0' x",
            limits={"log_bytes": size},
        )
        wrote_seconds = time.perf_counter() - began
        path = f"/v1/executions/{ended['id']}/stdout"
        read_seconds = _read_all(bench, path, size)
        request = http_request("GET", path, more="Range: bytes=-1024\r\n")
        address = bench.running.target.probes
        with contextlib.closing(Connection(address, Http11(), [request])) as connection:
            taken = bench.drive([connection], 0.2).latencies
        bench.keep(f"log {mib} write_mb_per_second", size / 1e6 / wrote_seconds)
        bench.keep(f"log {mib} read_mb_per_second", size / 1e6 / read_seconds)
        bench.keep(f"log {mib} tail_ms", statistics.median(taken) * 1000)
        if bench.running.pid and not bench.in_gvisor:
            bench.keep(f"log {mib} rss_mib", usage.resident_mib(bench.running.pid))
        _call(bench, "DELETE", f"/v1/executions/{ended['id']}")


def _read_all(bench: Bench, path: str, size: int) -> float:
    """Seconds for the whole log."""
    address, buffer = bench.running.target.probes, bytearray(1 << 20)
    connection = http.client.HTTPConnection(address.host, address.port)
    with contextlib.closing(connection):
        began = time.perf_counter()
        connection.request("GET", path)
        answer, received = connection.getresponse(), 0
        while count := answer.readinto(buffer):
            received += count
        took = time.perf_counter() - began
    if answer.status != 200 or received != size:
        raise UnexpectedReply(f"GET {path}: {answer.status}, {received} of {size} bytes")
    return took
