"""A daemon without user code: all processes of execd sleep."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.conformance.target import start as start_daemon
from tests.waiting import wait_until
from tests.wake_ups import Thread, count_waits, new_waits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.target import Target

PERIOD_SECONDS = 30.0
WAKE_UPS_IN_PERIOD = 2
N_PERIODS = 3
SETTLED_SECONDS = 3.0
"""Longer than any pause between two pings, scans or rounds of housekeeping."""


LEAST_WAIT_SECONDS = 0.005
"""A call of WAIT that takes longer is a wait. On a busy machine any other system call may take as
long."""
WAIT = re.compile(
    r"^\d+ +(<\.\.\. )?(epoll|futex|p?poll|p?select|\w*nanosleep|wait|read|recv|restart_)"
)


def rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def settle(pid: int) -> None:
    """Return when nothing has woken up for SETTLED_SECONDS."""

    def is_settled() -> bool:
        before = count_waits(pid)
        rest(SETTLED_SECONDS)
        return new_waits(before, count_waits(pid)) == {}

    wait_until(is_settled, 60)


@pytest.fixture(params=["require", "off"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A daemon with a worker in the pool and a guarded directory, in each shape."""
    flags = f"--namespaces={request.param}", "--session-pool=1", f"--base-dir-bytes={1 << 30}"
    target = start_daemon(tmp_path, *flags)
    yield target
    target.stop()


def run_all_kinds(client: httpx.Client) -> None:
    """Run a command that leaves output on the disk, a command that is kept, and a cell of a session
    that is deleted; probe."""
    assert client.post("/execute", json={"command": "seq 100000"}).json()["exit_code"] == 0
    kept = {"command": "true", "id": "kept"}
    assert client.post("/v1/executions", json=kept).json()["exit_code"] == 0
    assert client.post("/v1/sessions", json={"id": "s"}).status_code == 201
    cell = client.post("/v1/sessions/s/execute", json={"code": "1 + 1"})
    assert cell.status_code == 200, cell.text
    assert client.delete("/v1/sessions/s").is_success
    for path in ("/", "/healthz", "/readyz"):
        assert client.get(path).status_code == 200


def test_an_idle_pod_wakes_at_most_four_times_a_minute(daemon: Target) -> None:
    assert daemon.pid is not None
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as client:
        run_all_kinds(client)
    settle(daemon.pid)
    seen = []
    # A wait for a page or for Python's lock counts too, and a busy machine has both. What wakes the
    # pod by design does so in every period.
    for _ in range(N_PERIODS):
        before = count_waits(daemon.pid)
        rest(PERIOD_SECONDS)
        seen.append(new_waits(before, count_waits(daemon.pid)))
        if sum(seen[-1].values()) <= WAKE_UPS_IN_PERIOD:
            return
    raise AssertionError(seen)


@pytest.mark.root
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("daemon", ["require"], indirect=True)
def test_strace_sees_no_more_wake_ups_of_an_idle_pod_than_the_kernel_counts(
    daemon: Target, tmp_path: Path
) -> None:
    """Only root may trace the warden."""
    assert daemon.pid is not None
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as client:
        run_all_kinds(client)
    settle(daemon.pid)
    threads = count_waits(daemon.pid).keys()
    trace = tmp_path / "trace"
    attach = [f"--attach={pid}" for pid in {thread.pid for thread in threads}]
    with subprocess.Popen(
        ["strace", "--follow-forks", "--syscall-times", f"--output={trace}", *attach],
        stderr=subprocess.DEVNULL,
    ) as strace:
        wait_until(lambda: trace.exists() and threads_in(trace) >= {t.tid for t in threads}, 20)
        rest(PERIOD_SECONDS)
        strace.send_signal(signal.SIGINT)
    waits = [
        line
        for line in trace.read_text().splitlines()
        if WAIT.search(line)
        and (took := re.search(r"<([0-9.]+)>$", line))
        and float(took[1]) > LEAST_WAIT_SECONDS
    ]
    assert len(waits) <= WAKE_UPS_IN_PERIOD, waits


def threads_in(trace: Path) -> set[int]:
    """Return the ids of the threads with a line in the trace. strace adds a line for the system
    call in which the thread sleeps."""
    return {int(line.split()[0]) for line in trace.read_text().splitlines()}


def test_probes_wake_the_daemon_and_nobody_else(daemon: Target) -> None:
    """A probe starts no pings, no scans and no rounds of housekeeping."""
    assert daemon.pid is not None
    settle(daemon.pid)
    before = count_waits(daemon.pid)
    probes = ["/", "/healthz", "/readyz", "/v1/health"] * 5
    for path in probes:
        # As the kubelet probes: a connection each.
        assert httpx.get(f"{daemon.url}{path}", trust_env=False).status_code == 200
    settle(daemon.pid)
    found = new_waits(before, count_waits(daemon.pid))
    loop = found.pop(Thread(daemon.pid, daemon.pid), 0)
    assert loop >= len(probes)
    # The thread that writes the log may write a line for each probe.
    assert sum(found.values()) <= 2 * len(probes), found
    assert len(found) <= 1, found
