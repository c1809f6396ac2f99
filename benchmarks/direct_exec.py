"""Command lines with and without a shell, beside the FastAPI server: latency, throughput and CPU.

    python -m benchmarks.direct_exec [--rounds N] [--runsc PATH] [--only native|gvisor]

The three servers run at the same time, and one of them is measured at a time: short batches of each
server in turn, in another order each time. So the drift of the machine hits all three alike. The
table has medians over the batches. CPU is of the server and of all that it has started: in gVisor
of the whole sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
from collections import defaultdict
from contextlib import ExitStack

from benchmarks import load
from benchmarks.servers import Place, Server

LINES = {"`ls /`": "ls /", "`ls / | cat`, which needs a shell": "ls / | cat", "`true`": "true"}
BATCH, CROWD, CROWD_SECONDS = 100, 32, 3.0
SERVERS = {"direct": ("execd", "--direct-exec=on"), "shell": ("execd", "--direct-exec=off")}

Figures = dict[tuple[str, str], list[float]]
"""By figure and server."""


async def crowd(port: int, request: bytes) -> float:
    """Commands per second on keep-alive connections that are never idle."""
    taken: list[float] = []
    transports = await load._open(port, request, taken, CROWD)
    await asyncio.sleep(0.5)
    taken.clear()
    await asyncio.sleep(CROWD_SECONDS)
    rate = len(taken) / CROWD_SECONDS
    for transport in transports:
        transport.abort()
    return rate


def measure(servers: dict[str, Server], rounds: int, found: Figures) -> None:
    names = list(servers)
    for number in range(rounds * len(names)):
        turn = number % len(names)
        for line, command in LINES.items():
            request = load.command_request(command)
            for name in names[turn:] + names[:turn]:
                server = servers[name]
                before = server.cpu_seconds(ended=True)
                taken = load.sequential(server.port, request, BATCH)
                used = server.cpu_seconds(ended=True) - before
                found[f"{line}, p50, ms", name].append(taken["p50_ms"])
                commands = BATCH + BATCH // 10
                found[f"{line}, CPU, ms", name].append(used * 1000 / commands)
        for name in names[turn:] + names[:turn]:
            rate = asyncio.run(crowd(servers[name].port, load.command_request("ls /")))
            found[f"`ls /`, {CROWD} connections, per second", name].append(rate)


def table(found: Figures, names: list[str]) -> str:
    lines = [
        "| | direct | shell | FastAPI | direct / shell | direct / FastAPI |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for figure in dict.fromkeys(figure for figure, _ in found):
        medians = [statistics.median(found[figure, name]) for name in names]
        direct = medians[0]
        cells = [f"{value:.2f}" for value in medians]
        ratios = [f"{direct / value:.2f}" if value else "-" for value in medians[1:]]
        lines.append(f"| {figure} | {' | '.join(cells + ratios)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.direct_exec")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runsc", default=shutil.which("runsc"))
    parser.add_argument("--only", choices=["native", "gvisor"])
    given = parser.parse_args()
    places = [Place()] if given.only != "gvisor" else []
    if given.only != "native" and given.runsc:
        places.append(Place(given.runsc))
    for place in places:
        found: Figures = defaultdict(list)
        with ExitStack() as ends:
            servers = {
                name: ends.enter_context(place.serving(kind, flag))
                for name, (kind, flag) in SERVERS.items()
            }
            servers["FastAPI"] = ends.enter_context(place.serving("baseline"))
            for server in servers.values():
                server.wait_idle()
            measure(servers, given.rounds, found)
        print(f"\n{place.name}\n\n{table(found, list(servers))}", flush=True)


if __name__ == "__main__":
    main()
