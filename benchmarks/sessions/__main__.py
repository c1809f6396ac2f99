"""Sessions beside jupyter_client and ipykernel, in the same run, natively and inside gVisor: start,
cells, memory, forks.

    python -m benchmarks.sessions [--rounds N] [--runsc PATH] [--only native|gvisor]

As in ``benchmarks``, rounds take turns, the table shows medians over the rounds, and ratios matter.
Both sides use the same interpreter and the same IPython. Cells are a millisecond long, and a
virtual machine has slow and fast seconds: both sides run cells in turns, a few at a time. In gVisor
the kernels have no server, so their client runs inside with the kernels. The client of execd runs
outside, as a pod's callers do. A session is ready when the 201 has come over HTTP and the session
can run a cell; a kernel is ready when jupyter_client says so.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import venv
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.environments import REPOSITORY
from benchmarks.machine import machine
from benchmarks.servers import Place, Server

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
MANY = 200
BIG_BYTES = 1 << 30
FORKS = 5
TURNS, CELLS_A_TURN = 20, 20

ROWS = [
    ("start to the first use, p50, ms", "create_ms", "{:.2f}"),
    ("the same, back to back, without the pool's help, p50, ms", "burst_ms", "{:.2f}"),
    ("`1+1`, p50, ms", "cell_ms", "{:.2f}"),
    ("first cell of a session, p50, ms", "first_ms", "{:.2f}"),
    ("memory of its own, idle, MiB", "memory_mib", "{:.1f}"),
    ("delete, p50, ms", "delete_ms", "{:.2f}"),
    (f"{MANY} sessions at once: memory of everything, MiB", "many_mib", "{:.0f}"),
    ("fork of a session that holds 1 GiB in one block, p50, ms", "fork_ms", "{:.1f}"),
    ("… in small objects, p50, ms", "fork_small_ms", "{:.1f}"),
]


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def call(self, method: str, path: str, **body: Any) -> tuple[dict[str, Any], float]:
        """The reply, and the milliseconds until the reply."""
        began = time.perf_counter()
        self._connection.request(
            method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"}
        )
        reply = self._connection.getresponse()
        content = reply.read()
        took_ms = (time.perf_counter() - began) * 1000
        assert reply.status < 300, content
        return (json.loads(content) if content else {}), took_ms

    def create(self) -> tuple[str, float]:
        reply, took_ms = self.call("POST", "/v1/sessions")
        return f"/v1/sessions/{reply['id']}", took_ms

    def run(self, session: str, code: str) -> float:
        reply, took_ms = self.call("POST", f"{session}/execute", code=code, timeout_seconds=120)
        assert reply["status"] == "success", reply
        return took_ms


def cells(client: Client, ask_kernel: Callable[[str], str]) -> tuple[float, float]:
    """Ours and theirs, p50, in ms."""
    session, _ = client.create()
    mine: list[float] = []
    theirs: list[float] = []
    for turn in range(TURNS + 2):
        if turn == 2:  # the turns before are for warming up
            mine.clear()
            theirs.clear()
        mine += [client.run(session, "1+1") for _ in range(CELLS_A_TURN)]
        theirs += json.loads(ask_kernel(str(CELLS_A_TURN)))
    client.call("DELETE", session)
    return statistics.median(mine), statistics.median(theirs)


def measure(server: Server, in_gvisor: bool) -> dict[str, float]:
    client = Client(server.port)
    found: dict[str, list[float]] = defaultdict(list)
    first, _ = client.create()
    pause = threading.Event()
    for _ in range(15):
        pause.wait(0.2)  # sessions come singly: the pool is full again
        session, took_ms = client.create()
        found["create_ms"].append(took_ms)
        found["first_ms"].append(client.run(session, "1+1"))
        found["delete_ms"].append(client.call("DELETE", session)[1])
    sessions = []
    before = sandbox_bytes(client) if in_gvisor else 0
    for _ in range(MANY):
        session, took_ms = client.create()
        sessions.append(session)
        found["burst_ms"].append(took_ms)
        client.run(session, "x = 1")
    if in_gvisor:
        found["memory_mib"] = [(sandbox_bytes(client) - before) / MANY / (1 << 20)]
    else:
        processes = [
            psutil.Process(server.pid),
            *psutil.Process(server.pid).children(recursive=True),
        ]
        memory = [process.memory_full_info() for process in processes]
        found["many_mib"] = [sum(figures.pss for figures in memory) / (1 << 20)]
        found["memory_mib"] = [statistics.median(figures.uss for figures in memory) / (1 << 20)]
    for session in sessions:
        client.call("DELETE", session)
    # A float takes 24 bytes, and 8 in the list.
    for name, big in (
        ("fork_ms", f"b'x' * {BIG_BYTES}"),
        ("fork_small_ms", f"[float(n) for n in range({BIG_BYTES // 32})]"),
    ):
        client.run(first, f"big = None; big = {big}")
        for _ in range(FORKS):
            reply, took_ms = client.call("POST", f"{first}/fork")
            found[name].append(took_ms)
            client.call("DELETE", f"/v1/sessions/{reply['sessions'][0]['id']}")
    return {name: statistics.median(values) for name, values in found.items()}


def sandbox_bytes(client: Client) -> int:
    """The memory in use by the whole sandbox, as the sandbox's kernel reports."""
    reply, _ = client.call("POST", "/v1/executions", command="cat /proc/meminfo")
    found = dict(re.findall(r"^(\w+): +(\d+) kB$", reply["stdout"], re.MULTILINE))
    return (int(found["MemTotal"]) - int(found["MemFree"])) * 1024


def interpreter() -> Path:
    """Of an environment with the requirements, made on first use."""
    folder = REPOSITORY / ".cache" / "benchmarks-sessions"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command: list[str | Path] = [
            folder / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "-r",
            HERE / "requirements.txt",
        ]
        subprocess.run(command, check=True)
        (folder / "complete").touch()
    return folder / "bin" / "python"


def table(place: Place, count: int, python: Path) -> str:
    sessions: dict[str, list[float]] = defaultdict(list)
    others: dict[str, list[float]] = defaultdict(list)
    kernels = [str(python), str(HERE / "kernels.py")]
    for number in range(count):
        print(f"{place.name}: round {number + 1} of {count}", file=sys.stderr)
        with place.serving("execd", f"--python={python}") as server:
            with place.conversation([*kernels, "cells"]) as ask_kernel:
                mine, theirs = cells(Client(server.port), ask_kernel)
                sessions["cell_ms"].append(mine)
                others["cell_ms"].append(theirs)
            for name, figure in measure(server, place.runsc is not None).items():
                sessions[name].append(figure)
        said = place.run([*kernels, "starts", "5", *(["meminfo"] if place.runsc else [])])
        for name, figure in json.loads(said.splitlines()[-1]).items():
            others[name].append(figure)
    lines = [f"| {place.name} | execd | ipykernel | ipykernel / execd |", "|---|--:|--:|--:|"]
    for row, name, form in ROWS:
        if name in sessions:
            mine = statistics.median(sessions[name])
            other = ratio = ""
            if name in others:
                theirs = statistics.median(others[name])
                other, ratio = form.format(theirs), f"{theirs / mine:.1f}"
            lines.append(f"| {row} | {form.format(mine)} | {other} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--runsc", default=os.environ.get("RUNSC") or shutil.which("runsc"), help="default: on PATH"
    )
    parser.add_argument("--only", choices=["native", "gvisor"])
    args = parser.parse_args()
    if args.only == "gvisor" and not args.runsc:
        parser.error("--only gvisor needs --runsc")
    python = interpreter()
    print(
        f"{machine()}; both sides share its CPUs with who measures them. Medians of {args.rounds} "
        "rounds.\n"
    )
    if args.only != "gvisor":
        print(table(Place(), args.rounds, python) + "\n", flush=True)
    if args.runsc and args.only != "native":
        print(table(Place(args.runsc), args.rounds, python) + "\n", flush=True)
    if not args.runsc:
        print("Nothing was measured in gVisor: no runsc on PATH, in RUNSC or --runsc.")


if __name__ == "__main__":
    main()
