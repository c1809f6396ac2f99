"""``python -m benchmarks.soak [--seconds 1200] [--gvisor RUNSC]``: the slopes after a warm-up.

Exit code 1: a slope is not level, or a reply was wrong. Natively the samples are psutil's, of the
daemon, the warden and the kernel's processes. In gVisor the processes are out of sight, so the
memory is that of the whole sandbox, and descriptors and threads are not sampled.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.servers import Place, Server

from .slopes import fit
from .traffic import Traffic, lag_seconds

FLAGS = ("--retention-seconds=5", "--keyed-retention-seconds=5", "--retention-count=64")
"""Executions that nobody deletes are forgotten within the warm-up."""
WARM_UP = 0.25
"""Of the time: caches and allocators fill."""
SAMPLE_SECONDS = 2.0
ALLOWED = {
    "descriptors of the daemon": 2.0,
    "descriptors of the warden": 2.0,
    "threads of the daemon": 2.0,
    "processes": 3.0,
    "zombies": 1.0,
    "files in the state dir": 3.0,
    "names in the base dir": 3.0,
    "RSS of the daemon, MiB": 2.0,
    "RSS of the warden, MiB": 1.0,
    "RSS of the sandbox, MiB": 16.0,
    "GET /, ms": 5.0,
}
"""The rise that counts as level, in the unit of the series, whatever the swing."""


def sample(server: Server, place: Place, url: str) -> dict[str, float]:
    found = {"GET /, ms": 1000 * lag_seconds(url)}
    if place.runsc:
        resident = 0
        for process in server.processes():
            try:
                resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return {**found, "RSS of the sandbox, MiB": resident / (1 << 20)}
    daemon = psutil.Process(server.pid)
    [warden] = daemon.children()
    below = warden.children(recursive=True)
    zombies = 0
    for process in below:
        try:
            zombies += process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
    base_dir, state_dir = _folders(daemon)
    return {
        **found,
        "descriptors of the daemon": daemon.num_fds(),
        "descriptors of the warden": warden.num_fds(),
        "threads of the daemon": daemon.num_threads(),
        "processes": len(below),
        "zombies": zombies,
        "files in the state dir": sum(1 for _ in state_dir.rglob("*")),
        "names in the base dir": sum(1 for _ in base_dir.iterdir()),
        "RSS of the daemon, MiB": daemon.memory_info().rss / (1 << 20),
        "RSS of the warden, MiB": warden.memory_info().rss / (1 << 20),
    }


def _folders(daemon: psutil.Process) -> tuple[Path, Path]:
    words = dict(word.split("=", 1) for word in daemon.cmdline() if "=" in word)
    return Path(words["--base-dir"]), Path(words["--state-dir"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--seconds", type=float, default=1200, help="default: 1200")
    parser.add_argument("--clients", type=int, default=4, help="default: 4")
    parser.add_argument("--gvisor", metavar="RUNSC", help="soak inside gVisor")
    options = parser.parse_args()
    if not options.gvisor and os.geteuid() != 0:
        parser.error("natively only root can count the warden's descriptors; or use --gvisor RUNSC")
    place = Place(options.gvisor)
    series: dict[str, list[float]] = defaultdict(list)
    times: list[float] = []
    with place.serving("execd", *FLAGS) as server:
        url = f"http://127.0.0.1:{server.port}"
        traffic = Traffic(url, options.clients)
        began = time.monotonic()
        try:
            while time.monotonic() < began + options.seconds:
                if traffic.failed.wait(SAMPLE_SECONDS):
                    break
                if time.monotonic() > began + WARM_UP * options.seconds:
                    for name, value in sample(server, place, url).items():
                        series[name].append(value)
                    times.append(time.monotonic())
        finally:
            traffic.stop()
        n_requests = traffic.n_requests
    print(f"{place.name}: {n_requests} requests in {options.seconds:.0f} s, all replies right")
    print(f"{'':28}{'mean':>10}{'rise':>10}{'error':>10}")
    is_level = True
    for name, values in series.items():
        slope = fit(times, values)
        word = "" if slope.is_level(ALLOWED[name]) else "  NOT LEVEL"
        is_level = is_level and not word
        print(f"{name:28}{slope.mean:10.2f}{slope.rise:10.2f}{slope.rise_error:10.2f}{word}")
    return 0 if is_level else 1


if __name__ == "__main__":
    sys.exit(main())
