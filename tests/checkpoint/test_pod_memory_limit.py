"""A sandbox in a memory cgroup, as the kubelet makes one for a pod. gVisor's own memory counts
there too, and is in no file of the sandbox: the kernel kills the whole pod for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.sandbox import Sandbox, ended
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_BYTES = 2 << 30
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
ASK = """
import json, urllib.request
def ask(method, path, **fields):
    request = urllib.request.Request(
        "http://127.0.0.1:8888" + path, method=method,
        data=json.dumps(fields).encode() if fields else None,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read() or b"null")
hog = "python3 -c 'held = []\\nwhile True: held.append(bytes([1]) * (8 << 20))'"
"""
HOG = "python3 -c 'held = []\nwhile True: held.append(bytearray(20_000_000))'"
BOMBS = """
for _ in range(3):
    made = [ask("POST", "/v1/executions", command=hog, detach=True)["id"] for _ in range(8)]
    print(json.dumps([ask("GET", f"/v1/executions/{each}?wait_seconds=60") for each in made]))
"""
TASKS = """
before = ask("GET", "/v1/stats")
for number in range(400):
    assert ask("POST", "/v1/executions", command="echo $(true) task")["stdout"] == "task\\n"
    if number % 4 == 0:
        ask("POST", "/v1/code", session_id=f"s{number}", code="1+1")
        ask("DELETE", f"/v1/sessions/s{number}")
after = ask("GET", "/v1/stats")
print(json.dumps([before, after, ask("POST", "/v1/executions", command=hog)]))
"""


class Cgroup:
    """A memory cgroup of version 1 or 2. ``remove`` ends it."""

    def __init__(self) -> None:
        self._is_v1 = V1.is_dir()
        self.path = (V1 if self._is_v1 else V2) / f"execd-test-{os.getpid()}"
        self.path.mkdir()
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (self.path / name).write_text(str(LIMIT_BYTES))

    def figure(self, name: str, key: str) -> int:
        lines = (self.path / name).read_text().splitlines()
        return int(dict(line.split() for line in lines)[key])

    @property
    def n_killed(self) -> int:
        return self.figure("memory.oom_control" if self._is_v1 else "memory.events", "oom_kill")

    @property
    def runtime_bytes(self) -> int:
        """The memory of the host's processes: the sandbox's own is in a memfd."""
        return self.figure("memory.stat", "total_rss" if self._is_v1 else "anon")

    def remove(self) -> None:
        wait_until(lambda: not (self.path / "cgroup.procs").read_text(), 20)
        self.path.rmdir()


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    made = Cgroup()
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def pod(cgroup: Cgroup, tmp_path: Path) -> Iterator[Sandbox]:
    flags = ("--pod-memory-bytes", str(LIMIT_BYTES))
    with ended(Sandbox.make(tmp_path, *flags, cgroup=cgroup.path)) as sandbox:
        sandbox.wait_ready()
        yield sandbox


def test_eight_memory_bombs_at_once_end_and_the_pod_does_not(pod: Sandbox) -> None:
    """The kernel's OOM killer may still take the host's process behind a bomb: that is not asked
    here."""
    rounds = [json.loads(line) for line in pod.run_inside(ASK + BOMBS).splitlines()]
    assert len(rounds) == 3
    ends = [(done["exit_reason"], done["exit_code"]) for each in rounds for done in each]
    assert all(exit_code != 0 for _, exit_code in ends), rounds
    assert ends.count(("memory_limit", 137)) >= 8, rounds
    assert pod.ask("POST", "/v1/executions", command="echo alive")["stdout"] == "alive\n"


def test_a_hog_ends_in_a_container_of_gvisor_whose_limit_no_setting_tells(tmp_path: Path) -> None:
    """20 MB at a time: what once filled a machine, and kept the answer of the timeout away.

    The limit is twice that of the others. A tenth stays free, and the kernel's limit is in force
    too: beside other tests the hog may fill a tenth of 2 GiB between two looks of the guard.
    """
    limit_bytes = 2 * LIMIT_BYTES
    with ended(Sandbox.make(tmp_path, limit_bytes=limit_bytes)) as sandbox:
        sandbox.wait_ready()
        told = sandbox.ask("GET", "/v1/capabilities")["pod_memory"]
        assert (told["source"], told["size_bytes"]) == ("node", limit_bytes)
        done = sandbox.ask("POST", "/v1/executions", command=HOG, timeout_seconds=40)
        assert done["exit_reason"] == "memory_limit", done
        assert sandbox.ask("POST", "/v1/executions", command="echo alive")["stdout"] == "alive\n"


def test_hog_after_400_tasks_ends_and_the_pod_does_not(pod: Sandbox, cgroup: Cgroup) -> None:
    before, after, done = json.loads(pod.run_inside(ASK + TASKS))
    assert done["exit_reason"] == "memory_limit", done
    assert cgroup.n_killed == 0
    told: list[int] = [each["memory"]["pod_runtime_bytes"] for each in (before, after)]
    assert told[0] < told[1]
    assert told[1] >= cgroup.runtime_bytes
