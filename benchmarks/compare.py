"""Two checkouts of execd side by side: does a change of the code make anything slower?

    python -m benchmarks.compare OLD NEW [--rounds N] [--runsc PATH] [--only native|gvisor]
                                 [--old-python PATH] [--new-python PATH] [--json PATH]

OLD and NEW are folders of two checkouts. Each has an environment in ``.venv``, unless a flag names
another interpreter. The benchmark starts each server with the interpreter of the server's checkout
and checks that the server runs the code of the checkout.

A round starts both servers afresh and measures figure after figure for both, within seconds: first,
second, second, first, and quick figures twice so. Even drift in these seconds and the cost of the
order cancel out of the round's ratio. Rounds take turns at the server measured first. The value of
a figure in a round is the median of the figure's measurements.

A ratio is the cost of NEW over the cost of OLD. For figures per second the quotient is turned
round: above 1 NEW is always slower. The ratio in the table is the median of the rounds' ratios. The
bounds are the 2.5th and 97.5th percentile of the median in a bootstrap over the rounds' log ratios
(20,000 resamples, fixed seed). Two rounds are a trial: the bounds mean something from about eight
rounds on.

In gVisor CPU and memory are measured for the whole sandbox, the commands included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import client, transfers, usage
from benchmarks.client import Address, Connection, Period, Target, drive
from benchmarks.dialects import http_request
from benchmarks.environments import REPOSITORY
from benchmarks.machine import machine
from benchmarks.servers import Checkout, Place, Server
from benchmarks.sessions.__main__ import Client, sandbox_bytes
from benchmarks.spread import quantile
from benchmarks.wires import Http11

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
FILE_BYTES = 256 * MIB
PERIOD_SECONDS, CROWD_SECONDS, CROWD, CREATED, BURST = 0.8, 3.0, 32, 10, 20
RESAMPLES = 20_000

Figures = dict[str, float]
Rounds = dict[str, list[tuple[float, float]]]
"""By figure, for each round: the value of OLD, and of NEW."""


@dataclass(frozen=True)
class Subject:
    """A server and the methods to measure the server."""

    place: Place
    server: Server

    def memory(self) -> Figures:
        if self.place.runsc:
            return {"idle memory of the sandbox, MiB": sandbox_bytes(self.sessions()) / MIB}
        figures = [process.memory_full_info() for process in self.server.processes()]
        return {
            "idle memory of the daemon (RSS), MiB": figures[0].rss / MIB,
            "idle memory of all processes (PSS), MiB": sum(each.pss for each in figures) / MIB,
        }

    def sessions(self) -> Client:
        return Client(self.server.port)

    def address(self) -> Address:
        return Address("127.0.0.1", self.server.port)

    def target(self) -> Target:
        return Target("python_runtime", self.address(), self.address())

    def repeat(self, request: bytes) -> Period:
        """The request on one connection, again and again, after a warm-up."""
        with contextlib.closing(Connection(self.address(), Http11(), [request])) as connection:
            drive([connection], PERIOD_SECONDS / 10)
            return drive([connection], PERIOD_SECONDS)

    def probe(self) -> Figures:
        period = self.repeat(http_request("GET", "/"))
        return {"`GET /` p50, ms": statistics.median(period.latencies) * 1000}

    def command(self) -> Figures:
        with client.command_connections(self.target(), 1, ["true"]) as connections:
            drive(connections, PERIOD_SECONDS / 10)
            before = usage.read(self.server.pid)
            period = drive(connections, PERIOD_SECONDS)
            used = usage.used(before, usage.read(self.server.pid))
        # In gVisor a command's processes are the sandbox's.
        seconds = used.with_commands_seconds if self.place.runsc else used.own_seconds
        ordered = sorted(period.latencies)
        return {
            "`POST /execute` true p50, ms": statistics.median(ordered) * 1000,
            "`POST /execute` true p95, ms": quantile(ordered, 0.95) * 1000,
            "CPU for a command, ms": seconds * 1000 / len(ordered),
        }

    def crowd(self) -> Figures:
        with client.command_connections(self.target(), CROWD, ["true"]) as connections:
            drive(connections, CROWD_SECONDS / 10)
            period = drive(connections, CROWD_SECONDS)
        self.server.wait_idle()  # the next server must not pay for the last commands' end
        rate = len(period.latencies) / period.seconds
        return {f"true on {CROWD} connections, per second": rate}

    def cell(self) -> Figures:
        sessions = self.sessions()
        session, _ = sessions.create()
        sessions.run(session, "1+1")  # also checks the reply
        body = json.dumps({"code": "1+1"}).encode()
        period = self.repeat(http_request("POST", f"{session}/execute", body))
        sessions.call("DELETE", session)
        return {"cell `1+1` p50, ms": statistics.median(period.latencies) * 1000}

    def creation(self) -> Figures:
        sessions, alone = self.sessions(), []
        for _ in range(CREATED):
            time.sleep(0.2)  # the pool of workers is full again
            session, took_ms = sessions.create()
            alone.append(took_ms)
            sessions.call("DELETE", session)
        burst = [sessions.create() for _ in range(BURST)]
        for session, _ in burst:
            sessions.call("DELETE", session)
        return {
            "creation of a session p50, ms": statistics.median(alone),
            "back to back, p50, ms": statistics.median(took_ms for _, took_ms in burst),
        }

    def stream(self) -> Figures:
        return {"stream of output, MB/s": transfers.stream(self.server.port)["mb_per_second"]}

    def files(self) -> Figures:
        os.sync()  # no measurement pays for the disk writes of an earlier upload
        up = transfers.upload(self.server.port, FILE_BYTES)["mb_per_second"]
        down = [transfers.download(self.server.port, FILE_BYTES)["mb_per_second"] for _ in range(3)]
        return {"upload, MB/s": up, "download, MB/s": statistics.median(down)}


def check_code(place: Place, checkout: Checkout) -> None:
    """The interpreter imports the checkout's own execd, in the server's place and manner. Natively
    the modules are compiled first: on gVisor's read-only root each start would compile the modules
    again."""
    compiling = [str(checkout.python), "-m", "compileall", "-q", "execd"]
    subprocess.run(compiling, cwd=checkout.root, check=True)
    program = "import execd.proc.spawn; print(execd.__file__)"
    file = Path(place.run([str(checkout.python), "-c", program], checkout).splitlines()[-1])
    if file != checkout.root / "execd" / "__init__.py":
        raise SystemExit(f"{checkout.python} imports {file}, not what is in {checkout.root}")


def check_running(server: Server, checkout: Checkout) -> None:
    """The library loaded by the server's processes is the checkout's own."""
    maps = "".join(Path(f"/proc/{each.pid}/maps").read_text() for each in server.processes())
    if f"{checkout.root}/execd/proc/_spawn." not in maps:
        raise SystemExit(f"the server does not run the code in {checkout.root}")


def measure_round(place: Place, checkouts: tuple[Checkout, Checkout], first: int) -> Rounds:
    """``first``: the index of the checkout measured first."""
    turns = (first, 1 - first, 1 - first, first)
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))

    def keep(side: int, figures: Figures) -> None:
        for name, value in figures.items():
            found[name][side].append(value)

    for side in turns:
        with place.serving("execd", checkout=checkouts[side]) as server:
            keep(side, {"start to first answer, s": server.start_seconds})
            server.wait_idle()
    with ExitStack() as stack:
        subjects: dict[int, Subject] = {}
        for side in turns[:2]:
            checkout = checkouts[side]
            flags = [f"--python={checkout.python}"]
            server = stack.enter_context(place.serving("execd", *flags, checkout=checkout))
            subjects[side] = Subject(place, server)
            server.wait_idle()
            if place.runsc is None:
                check_running(server, checkout)
        for side in turns[:2]:
            keep(side, subjects[side].memory())
        scenarios: list[Callable[[Subject], Figures]] = [
            *(Subject.probe, Subject.command, Subject.crowd, Subject.cell),
            *(Subject.creation, Subject.stream, Subject.files),
        ]
        for scenario in scenarios:
            slow = scenario in (Subject.crowd, Subject.creation)
            for side in turns if slow else turns * 2:
                keep(side, scenario(subjects[side]))
    median = statistics.median
    return {name: [(median(old), median(new))] for name, (old, new) in found.items()}


def compare(name: str, values: list[tuple[float, float]]) -> Figures:
    """The cost of NEW over the cost of OLD, and the bounds of this ratio."""
    turned = -1 if name.endswith(("per second", "/s")) else 1
    logs = [turned * math.log(new / old) for old, new in values]
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    return {
        "old": statistics.median(old for old, _ in values),
        "new": statistics.median(new for _, new in values),
        "ratio": math.exp(statistics.median(logs)),
        "lower": math.exp(medians[int(RESAMPLES * 0.025)]),
        "upper": math.exp(medians[int(RESAMPLES * 0.975)]),
    }


def table(place: Place, rounds: Rounds) -> str:
    lines = [f"| {place.name} | old | new | new / old | 95 % bounds |", "|---|--:|--:|--:|--:|"]
    for name, values in rounds.items():
        row = compare(name, values)
        bounds = f"{row['lower']:.3f} to **{row['upper']:.3f}**"
        lines.append(
            f"| {name} | {row['old']:.4g} | {row['new']:.4g} | {row['ratio']:.3f} | {bounds} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--old-python", type=Path, help="default: OLD/.venv/bin/python")
    parser.add_argument("--new-python", type=Path, help="default: NEW/.venv/bin/python")
    parser.add_argument("--json", type=Path, default=REPOSITORY / ".cache" / "compare.json")
    parser.add_argument(
        "--runsc", default=os.environ.get("RUNSC") or shutil.which("runsc"), help="default: on PATH"
    )
    parser.add_argument("--only", choices=["native", "gvisor"])
    args = parser.parse_args()
    if args.only == "gvisor" and not args.runsc:
        parser.error("--only gvisor needs --runsc")
    checkouts = (
        Checkout(args.old.resolve(), _interpreter(args.old, args.old_python)),
        Checkout(args.new.resolve(), _interpreter(args.new, args.new_python)),
    )
    places = [Place()] if args.only != "gvisor" else []
    if args.runsc and args.only != "native":
        places.append(Place(args.runsc))
    print(f"{machine()}; servers and load generator share its CPUs. {args.rounds} rounds.\n")
    found: dict[str, object] = {"old": str(args.old), "new": str(args.new)}
    for place in places:
        for checkout in checkouts:
            check_code(place, checkout)
        rounds: Rounds = defaultdict(list)
        for number in range(args.rounds):
            began = time.monotonic()
            for name, values in measure_round(place, checkouts, number % 2).items():
                rounds[name] += values
            took = time.monotonic() - began
            print(f"{place.name}: round {number + 1}, {took:.0f} s", file=sys.stderr, flush=True)
        print(table(place, rounds) + "\n", flush=True)
        found[place.name] = {
            name: compare(name, values) | {"rounds": values} for name, values in rounds.items()
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


def _interpreter(root: Path, given: Path | None) -> Path:
    """Absolute, but not resolved: the link's place identifies the environment."""
    return (given or root / ".venv" / "bin" / "python").absolute()


if __name__ == "__main__":
    main()
