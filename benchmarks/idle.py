"""An idle daemon: wake-ups a minute and share of a CPU.

    python -m benchmarks.idle [--seconds S] [--only native|gvisor] [--runsc RUNSC]

Natively: all processes of execd, with a worker in the pool, without and with a live session. In
gVisor: all processes of the sandbox on the host, the sandbox's kernel included; beside a sandbox
that runs nothing but sleep(1), in the same period. Wake-ups are the waits of threads that the
kernel has counted; in gVisor they are those of the sandbox's kernel, which has timers of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import threading
import urllib.request
from typing import TYPE_CHECKING

import psutil

from benchmarks.servers import Place, Server, parse_with_places
from tests.wake_ups import count_waits, new_waits

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLE_SECONDS = 15.0
"""Longer than the start of a zygote, and than the pauses between two scans or pings."""


def open_session(server: Server) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/sessions/idle/execute?create=true",
        data=b'{"code": "1 + 1"}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


@contextlib.contextmanager
def sleeping(place: Place) -> Iterator[Server]:
    """A program that does nothing, where the servers run."""
    process = subprocess.Popen(
        place.command(["sleep", "1000000"], {}, []),
        env=dict(os.environ) | ({"RUNSC": place.runsc} if place.runsc else {}),
        stdin=subprocess.DEVNULL,
    )
    try:
        yield Server(0, process.pid, 0.0)
    finally:
        process.terminate()
        process.wait()


def measure(servers: dict[str, Server], seconds: float) -> None:
    """Print a row for each server; all are measured in the same period."""
    pause = threading.Event()
    pause.wait(SETTLE_SECONDS)
    waits = {name: count_waits(server.pid) for name, server in servers.items()}
    used = {name: server.cpu_seconds() for name, server in servers.items()}
    pause.wait(seconds)
    for name, server in servers.items():
        share = (server.cpu_seconds() - used[name]) / seconds
        n_waits = sum(new_waits(waits[name], count_waits(server.pid)).values())
        print(f"| {name} | {n_waits * 60 / seconds:,.0f} | {share:.2%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    asked, places = parse_with_places(parser)
    print(f"{psutil.cpu_count()} processors, {asked.seconds:g} s")
    print("| | wake-ups a minute | share of a CPU |\n|---|--:|--:|")
    for place in places:
        with (
            place.serving("execd") as idle,
            place.serving("execd") as busy,
            sleeping(place) as bare,
        ):
            open_session(busy)
            measure(
                {
                    f"{place.name}: no session": idle,
                    f"{place.name}: a live session": busy,
                    f"{place.name}: sleep(1) alone": bare,
                },
                asked.seconds,
            )


if __name__ == "__main__":
    main()
