"""A scrape of the metrics, beside `GET /`; and the series before and after many executions.

    python -m benchmarks.scrape [--executions N] [--rounds N] [--only native|gvisor] [--runsc RUNSC]

N requests for executions of all kinds (exits, signals, timeouts, failed starts, floods, cells)
come first; a tenth is refused and is no execution. Then each round asks for `GET /` and
`GET /metrics` in turns on one connection. The first table has the medians of the rounds; the CPU
time is that of the daemon alone, natively.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from typing import TYPE_CHECKING

import aiohttp
import psutil

from benchmarks.servers import parse_with_places
from benchmarks.transfers import content_length

if TYPE_CHECKING:
    from benchmarks.servers import Server

PATHS = ("/", "/v1/stats", "/metrics")
REQUESTS, AT_ONCE = 500, 8
KINDS = [
    ("/execute", {"command": "true"}),
    ("/execute", {"command": "exit 3"}),
    ("/execute", {"command": "sleep 9", "timeout_seconds": 0.01}),
    ("/v1/executions", {"argv": ["echo", "a"]}),
    ("/v1/executions", {"argv": ["/no/such/program"]}),
    ("/v1/executions", {"command": "kill -9 $$"}),
    (
        "/v1/executions",
        {"command": "yes", "limits": {"log_bytes": 9999}, "on_output_limit": "kill"},
    ),
    ("/v1/executions", {"command": 5}),
    ("/v1/sessions/a/execute?create=true", {"code": "1"}),
    ("/v1/sessions/a/execute?create=true", {"code": "1 / 0"}),
]


async def run_mixed(port: int, count: int) -> None:
    numbers = iter(range(count))

    async def work(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            path, body = KINDS[number % len(KINDS)]
            async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as answer:
                await answer.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(work(session) for _ in range(AT_ONCE)))


def ask(connection: socket.socket, path: str) -> bytes:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 20)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    while len(body) < content_length(head):
        body += connection.recv(1 << 20)
    return body


def series(port: int) -> tuple[set[str], dict[str, int]]:
    """The names with labels, and the executions by name."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        lines = ask(connection, "/metrics").decode().splitlines()
    rows = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ended = {name: int(n) for name, n in rows.items() if name.startswith("execd_executions_total")}
    return set(rows), ended


def measure(server: Server, rounds: int, *, has_cpu: bool) -> None:
    times: dict[str, list[float]] = {path: [] for path in PATHS}
    used: dict[str, list[float]] = {path: [] for path in PATHS}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            for path in PATHS:
                before = sum(psutil.Process(server.pid).cpu_times()[:2])
                found = []
                for _ in range(REQUESTS):
                    began = time.perf_counter()
                    ask(connection, path)
                    found.append((time.perf_counter() - began) * 1e6)
                times[path].append(statistics.median(found))
                used[path].append(
                    (sum(psutil.Process(server.pid).cpu_times()[:2]) - before) / REQUESTS * 1e6
                )
    for path in PATHS:
        ratio = statistics.median(
            one / base for one, base in zip(times[path], times["/"], strict=True)
        )
        cpu = f"{statistics.median(used[path]):.0f} µs" if has_cpu else ""
        print(f"| `GET {path}` | {statistics.median(times[path]):.0f} µs | {ratio:.1f} | {cpu} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    asked, places = parse_with_places(parser)
    for place in places:
        with place.serving("execd") as server:
            before, _ = series(server.port)
            began = time.perf_counter()
            asyncio.run(run_mixed(server.port, asked.executions))
            seconds = time.perf_counter() - began
            after, ended = series(server.port)
            kinds = {name: n for name, n in ended.items() if n}
            print(f"{place.name}: {sum(kinds.values())} executions in {seconds:.0f} s")
            print(json.dumps(kinds, indent=1))
            print(f"series: {len(before)} before, {len(after)} after, new: {after - before}")
            print("| | p50 | ratio | CPU of the daemon |\n|---|--:|--:|--:|")
            server.wait_idle()
            measure(server, asked.rounds, has_cpu=place.runsc is None)


if __name__ == "__main__":
    main()
