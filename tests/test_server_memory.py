"""A daemon in a separate memory cgroup, and on a machine without configuration: the processes that
end when memory runs out."""

from __future__ import annotations

import contextlib
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.conformance.target import Target
from tests.conformance.target import start as start_daemon
from tests.test_server import start as start  # a fixture
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'

needs_cgroups = pytest.mark.skipif(
    not (V1 / "memory.limit_in_bytes").exists(), reason="no memory cgroups of version 1 here"
)

HOG = """
kept = []
for _ in range(500):
    kept.append(bytearray(b"x") * (4 << 20))
print("survived")
"""
# Six times 40 MB, each smaller than the daemon.
CROWD = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        kept = []
        for _ in range(6):
            kept.append(bytearray(b"x") * (4 << 20))
            time.sleep(0.05)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


class Cgroup:
    """A memory cgroup of this machine's."""

    def __init__(self, limit_bytes: int) -> None:
        self.path = V1 / f"execd-test-{secrets.token_hex(4)}"
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def below(self) -> list[str]:
        """The command prefix that runs a command inside this cgroup."""
        return ["/bin/sh", "-c", ENTER, str(self.path)]

    def remove(self) -> None:
        wait_until(lambda: not (self.path / "cgroup.procs").read_text(), 10)
        self.path.rmdir()


@pytest.fixture
def cgroup() -> Iterator[Callable[[int], Cgroup]]:
    made: list[Cgroup] = []

    def make(limit_bytes: int) -> Cgroup:
        made.append(Cgroup(limit_bytes))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@contextlib.contextmanager
def daemon(
    folder: Path, *flags: str, below: list[str] | None = None
) -> Iterator[tuple[Target, httpx.Client]]:
    target = start_daemon(folder, *flags, below=below or [])
    try:
        with httpx.Client(base_url=target.url, timeout=90, trust_env=False) as client:
            yield target, client
            assert client.get("/").status_code == 200
            assert client.get("/v1/capabilities").json()["warden_restarts"] == 0, target.log_text()
    finally:
        if target.process is not None and target.process.poll() is None:
            target.stop()


def run(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/executions", json=fields)
    assert answer.status_code in (200, 202), answer.text
    found: dict[str, Any] = answer.json()
    return found


def python(client: httpx.Client, program: str, **fields: Any) -> dict[str, Any]:
    return run(client, argv=["python3", "-c", program], **fields)


# Guarded by default.


@pytest.mark.root
@needs_cgroups
def test_without_a_setting_the_limit_of_the_cgroup_is_guarded_by_the_usage_of_the_cgroup(
    tmp_path: Path, cgroup: Callable[[int], Cgroup]
) -> None:
    with daemon(tmp_path, below=cgroup(512 * MIB).below()) as (_, client):
        guarded = client.get("/v1/capabilities").json()["pod_memory"]
        assert guarded == {
            "guarded": True,
            "source": "cgroup",
            "size_bytes": 512 * MIB,
            "reserve_bytes": 96 * MIB,
        }
        neighbour = run(client, argv=["sleep", "300"], detach=True)["id"]
        session = client.post("/v1/sessions", json={}).json()["id"]
        client.post(f"/v1/sessions/{session}/execute", json={"code": "x = 41"})
        for _ in range(3):
            hog = python(client, HOG)
            assert (hog["exit_reason"], hog["stdout"]) == ("memory_limit", "")
            assert hog["usage"]["peak_tree_bytes"] < 512 * MIB
        assert client.get(f"/v1/executions/{neighbour}").json()["state"] == "RUNNING"
        cell = client.post(f"/v1/sessions/{session}/execute", json={"code": "x + 1"}).json()
        assert (cell["result"]["data"]["text/plain"], cell["state_lost"]) == ("42", False)


@pytest.mark.root
@needs_cgroups
def test_image_s_own_program_that_fills_the_memory_is_killed_and_the_log_says_so(
    start: Any, cgroup: Callable[[int], Cgroup]
) -> None:
    daemon = start(*("--sessions=off", "--", "python3", "-c", HOG), under=cgroup(512 * MIB).below())
    assert daemon.process.wait(30) == 128 + signal.SIGKILL
    messages = [(line["message"], line.get("limit")) for line in daemon.log]
    assert ("the image's program is over a limit", "memory") in messages
    assert "survived" not in daemon.log_path.read_text()


@pytest.mark.root
@needs_cgroups
def test_page_cache_ends_nobody(tmp_path: Path, cgroup: Callable[[int], Cgroup]) -> None:
    """A file that is read twice is on the list of active pages, and the kernel reclaims active
    pages too."""
    with daemon(tmp_path, below=cgroup(512 * MIB).below()) as (_, client):
        read = (
            "head -c 450M /dev/zero > big; for n in 1 2 3; do cat big > /dev/null; done; "
            "sleep 1; rm big; echo fine"
        )
        done = run(client, command=read)
        assert (done["exit_reason"], done["stdout"]) == ("exited", "fine\n")


@pytest.mark.root
@needs_cgroups
def test_the_smallest_limit_above_the_daemon_is_guarded(
    tmp_path: Path, cgroup: Callable[[int], Cgroup]
) -> None:
    outer = cgroup(400 * MIB)
    inner = outer.path / "inner"
    inner.mkdir()
    try:
        with daemon(tmp_path, below=["/bin/sh", "-c", ENTER, str(inner)]) as (_, client):
            assert client.get("/v1/capabilities").json()["pod_memory"]["size_bytes"] == 400 * MIB
            assert python(client, HOG)["exit_reason"] == "memory_limit"
        wait_until(lambda: not (inner / "cgroup.procs").read_text(), 10)
    finally:
        inner.rmdir()


def test_without_a_setting_and_a_limit_the_machines_memory_is_guarded(tmp_path: Path) -> None:
    with daemon(tmp_path) as (_, client):
        guarded = client.get("/v1/capabilities").json()["pod_memory"]
        assert guarded["guarded"] is True
        assert guarded["source"] in ("machine", "cgroup")
        if guarded["source"] == "machine":
            assert guarded["reserve_bytes"] <= 512 * MIB
        done = python(client, "held = bytearray(b'x') * (300 << 20); print('fine')")
        assert (done["exit_reason"], done["stdout"]) == ("exited", "fine\n")


def test_zero_switches_the_guard_of_the_pods_memory_off(tmp_path: Path) -> None:
    with daemon(tmp_path, "--pod-memory-bytes=0") as (target, client):
        guarded = client.get("/v1/capabilities").json()["pod_memory"]
        assert guarded == {
            "guarded": False,
            "source": "off",
            "size_bytes": None,
            "reserve_bytes": None,
        }
        assert "guards" not in target.log_text(), "it was asked for"


# The kernel's choice.


def adjustment(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_user_code_is_the_kernels_first_choice_when_memory_ends(tmp_path: Path) -> None:
    """Commands, their children, sessions and the children of sessions."""
    own = adjustment("self")
    if own == 1000:
        pytest.skip("this process is the kernel's first choice itself, and so is what it starts")
    for flags in ((), ("--namespaces=off",)):
        with daemon(tmp_path / "-".join(("shape", *flags)), *flags) as (target, client):
            assert adjustment(target.pid or 0) == own
            show = "cat /proc/self/oom_score_adj; (sh -c 'cat /proc/$$/oom_score_adj')"
            assert run(client, command=show)["stdout"] == "1000\n1000\n"
            session = client.post("/v1/sessions", json={}).json()["id"]
            code = (
                "import subprocess\n"
                f"print(open('/proc/self/oom_score_adj').read(), subprocess.getoutput({show!r}))"
            )
            cell = client.post(f"/v1/sessions/{session}/execute", json={"code": code}).json()
            assert cell["stdout"].split() == ["1000"] * 3, cell
            wardens = [adjustment(child.pid) for child in psutil.Process(target.pid).children()]
            assert wardens == [own]


@pytest.mark.root
@needs_cgroups
@pytest.mark.parametrize("program", [HOG, CROWD], ids=["hog", "crowd"])
def test_kernels_oom_killer_spares_daemon_and_warden(
    tmp_path: Path, cgroup: Callable[[int], Cgroup], program: str
) -> None:
    """Without a guard of execd's own."""
    group = cgroup(512 * MIB)
    with daemon(tmp_path, "--pod-memory-bytes=0", below=group.below()) as (target, client):
        neighbour = run(client, argv=["sleep", "300"], detach=True)["id"]
        killed = python(client, program, timeout_seconds=8)
        counted = dict(
            line.split() for line in (group.path / "memory.oom_control").read_text().splitlines()
        )
        assert int(counted["oom_kill"]) > 0, "the kernel has killed"
        assert "survived" not in killed["stdout"]
        if program == HOG:
            assert (killed["exit_reason"], killed["exit_code"]) == (
                "signaled",
                128 + signal.SIGKILL,
            ), killed
        assert target.process is not None
        assert target.process.poll() is None
        assert client.get(f"/v1/executions/{neighbour}").json()["state"] == "RUNNING"
        assert run(client, command="echo fine")["stdout"] == "fine\n"
