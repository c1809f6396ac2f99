"""A whole daemon that shares a tenth of a CPU with the commands. A cgroup's quota throttles the
daemon, as in Kubernetes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from ..patience import patience
from .attack import probing
from .target import READ_SECONDS, TERMINATED, Target, elsewhere, execute_bytes, start

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root  # only root can give a process less CPU

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000
QUOTA_MICROSECONDS = PERIOD_MICROSECONDS // 10

PROBE_SECONDS = 3.0
"""In each period all processes may be stopped for 90 ms, and the daemon gets a share of the
rest."""
TIMES = 5
"""How much longer than promised an answer may take."""


def make_cgroup() -> Path:
    """An empty cgroup with the quota. Raises OSError."""
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    parent = CGROUPS if is_v2 else CGROUPS / "cpu"
    if is_v2:
        (parent / "cgroup.subtree_control").write_text("+cpu")
    cgroup = parent / f"execd-test-{os.getpid()}"
    cgroup.mkdir()
    if is_v2:
        (cgroup / "cpu.max").write_text(f"{QUOTA_MICROSECONDS} {PERIOD_MICROSECONDS}")
    else:
        (cgroup / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (cgroup / "cpu.cfs_quota_us").write_text(str(QUOTA_MICROSECONDS))
    return cgroup


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if elsewhere():
        pytest.skip("the daemon runs elsewhere: a cgroup is made around a native one")
    try:
        cgroup = make_cgroup()
    except OSError as error:
        pytest.skip(f"no cgroup for the CPU can be made: {error}")
    join = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]
    with contextlib.ExitStack() as ends:
        ends.callback(cgroup.rmdir)
        target = start(tmp_path_factory.mktemp("daemon"), below=join)
        ends.callback(lambda: target.process and target.process.poll() is None and target.kill())
        yield target
        assert target.stop() == TERMINATED, target.log_text()


@pytest.fixture(scope="module")
def own_client(daemon: Target) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.url, timeout=READ_SECONDS, trust_env=False) as made:
        yield made


@pytest.fixture(scope="module")
def neighbours(daemon: Target, own_client: httpx.Client) -> Iterator[None]:
    """A command that sleeps and a session with state; no test harms either."""
    sleeper = own_client.post(
        "/v1/executions", json={"argv": ["sleep", "3000"], "detach": True}
    ).json()["id"]
    session = own_client.post("/v1/sessions", json={}).json()["id"]
    assert (
        own_client.post(f"/v1/sessions/{session}/execute", json={"code": "x = 41"}).json()[
            "exit_reason"
        ]
        == "exited"
    )
    yield
    assert own_client.get(f"/v1/executions/{sleeper}").json()["state"] == "RUNNING"
    assert (
        own_client.post(f"/v1/sessions/{session}/execute", json={"code": "x + 1"}).json()["result"][
            "data"
        ]["text/plain"]
        == "42"
    )
    assert daemon.capabilities(afresh=True)["warden_restarts"] == 0


@pytest.fixture
def untouched(daemon: Target, neighbours: None) -> Iterator[None]:
    with probing(daemon, PROBE_SECONDS):
        yield


def test_the_daemon_knows_its_quota(daemon: Target) -> None:
    facts = daemon.capabilities()["commands"]
    assert (facts["cpus"], facts["max_starting"], facts["starting_seconds"]) == (0.1, 2, 1.0)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("command", "timeout_seconds", "reason"),
    [
        pytest.param("exit 3", 30, "exited", id="ends by itself"),
        pytest.param("kill -9 $$", 30, "signaled", id="killed"),
        pytest.param("sleep 60", 2, "timeout", id="sleeps"),
        pytest.param("while :; do :; done", 3, "timeout", id="computes"),
        pytest.param("yes 1234567890", 3, "timeout", id="floods"),
        pytest.param("f() { f | f & }; f; sleep 100", 60, "process_limit", id="forks"),
    ],
)
def test_commands_end_with_the_right_reason_on_a_tenth_of_a_cpu(
    own_client: httpx.Client, command: str, timeout_seconds: float, reason: str
) -> None:
    wish = {"command": command, "timeout_seconds": timeout_seconds, "limits": {"processes": 100}}
    said = own_client.post("/v1/executions", json=wish).json()
    assert said["exit_reason"] == reason, said
    if reason == "timeout":
        assert said["duration_seconds"] < patience(timeout_seconds + TIMES)


@pytest.mark.usefixtures("untouched")
def test_crowd_on_a_tenth_of_a_cpu_is_answered_or_sent_away(daemon: Target) -> None:
    sent = ["echo a", "echo a | cat", "echo a; sleep 0.1", "echo a >&2; echo a"] * 6
    answers = daemon.request_at_once([execute_bytes(command) for command in sent])
    assert {answer.http_status for answer in answers} <= {200, 429}
    right = [answer for answer in answers if answer.http_status == 200]
    assert {(answer.json()["exit_code"], answer.json()["stdout"]) for answer in right} == {
        (0, "a\n")
    }
    assert len(right) >= len(sent) // 2
