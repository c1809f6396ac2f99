"""The pod's reserve in a sandbox that has a /proc/meminfo of its own. Each test has a daemon, and
so a sandbox, to itself.

Natively /proc/meminfo covers the whole machine, and no test can keep the machine still.
tests/proc/test_memory_limits.py tests the native case as far as possible.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import python
from .target import LAUNCHER, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .target import Target

MIB = 1 << 20
POD_MIB = 1000
RESERVE_MIB = 100  # as the daemon computes: a tenth, at least 96

HOLD = """
import sys
held = bytearray(b"x") * (SIZE << 20)
print("holding", flush=True)
sys.stdin.read()
print(sum(held[:10]))
"""
# Far more than the pod has: a program that is not stopped reports so. After 300 MiB at most 200 MiB
# a second: a machine that stands still for a moment is no reason to end a neighbour.
HOG = """
import time
kept = []
for step in range(500):
    kept.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.02 if step > 75 else 0)
print("survived")
"""
# Fills memory that no process maps; more than the pod has, less than the machine.
FILL = """
import os, sys
fd = OPEN
for _ in range(450):
    os.write(fd, b"x" * (4 << 20))
print("filled", flush=True)
sys.stdin.read()
"""
MEMFD = FILL.replace("OPEN", 'os.memfd_create("filled")')
TMPFS = FILL.replace(
    "OPEN", 'os.open("/tmp/filled", os.O_CREAT | os.O_RDWR); os.unlink("/tmp/filled")'
)
# Nine times the pages of a single process, as RSS counts.
FORKS = """
import os, sys
held = bytearray(b"x") * (200 << 20)
for _ in range(8):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print("forked", flush=True)
sys.stdin.read()
print(sum(held[:10]))
"""

pytestmark = pytest.mark.skipif(
    not LAUNCHER,
    reason="/proc/meminfo is this machine's, or no daemon can be started beside the other one",
)


class Pod:
    """A daemon that takes its pod for a pod of POD_MIB."""

    def __init__(self, daemon: Target) -> None:
        self.daemon = daemon

    def post(self, **fields: Any) -> dict[str, Any]:
        body = json.dumps(fields).encode()
        return self.daemon.request(
            "POST", "/v1/executions", body, {"Content-Type": "application/json"}
        ).json()

    def begin(self, program: str, said: str) -> str:
        """Start the program, wait for the expected output, return the path of the execution's
        URL."""
        begun = self.post(argv=["python3", "-c", program], stdin_open=True, detach=True)
        path = f"/v1/executions/{begun['id']}"
        wait_until(
            lambda: self.get(f"{path}/stdout") == said.encode() + b"\n", 30, f"it says {said}"
        )
        return path

    def get(self, path: str) -> bytes:
        return self.daemon.request("GET", path).content

    def end(self, path: str) -> dict[str, Any]:
        """Tell the program to end; return the result."""
        self.daemon.request("POST", f"{path}/stdin?eof=true")
        return json.loads(self.get(f"{path}?wait_seconds=20"))

    def short_of_memory(self) -> list[dict[str, Any]]:
        """The daemon's log lines about a memory shortage that no process caused."""
        # The daemon may be in the middle of the last line.
        whole = self.daemon.log_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if "memory is short" in line["message"]]


@pytest.fixture
def pod(own_daemon: Callable[..., Target]) -> Pod:
    return Pod(own_daemon(EXECD_POD_MEMORY_BYTES=str(POD_MIB * MIB)))


def assert_untouched(done: dict[str, Any], said: str) -> None:
    assert (done["exit_reason"], done["exit_code"], done["stdout"]) == (
        "exited",
        0,
        f"{said}\n1200\n",
    )


def test_hog_ends_before_the_reserve_is_gone_and_its_neighbours_do_not(pod: Pod) -> None:
    neighbours = [pod.begin(HOLD.replace("SIZE", str(size)), "holding") for size in (20, 100)]
    hog = pod.post(argv=["python3", "-c", HOG])
    assert (hog["exit_reason"], hog["exit_code"], hog["stdout"]) == ("memory_limit", 137, "")
    assert hog["usage"]["peak_tree_bytes"] < (POD_MIB + RESERVE_MIB) * MIB, (
        "long before it had all of its two gigabytes"
    )
    for path in neighbours:
        assert_untouched(pod.end(path), "holding")
    again = pod.post(command=python('print("fine")'))
    assert (again["exit_reason"], again["stdout"]) == ("exited", "fine\n")


def test_two_hogs_end_each_for_itself_and_their_neighbour_does_not(pod: Pod) -> None:
    neighbour = pod.begin(HOLD.replace("SIZE", "50"), "holding")
    hogs = [pod.post(argv=["python3", "-c", HOG], detach=True)["id"] for _ in range(2)]
    for hog in hogs:
        done = json.loads(pod.get(f"/v1/executions/{hog}?wait_seconds=25"))
        assert (done["exit_reason"], done["stdout"]) == ("memory_limit", "")
    assert_untouched(pod.end(neighbour), "holding")


def test_forks_that_share_their_pages_are_not_blamed(pod: Pod) -> None:
    """The sum of RSS is nearly twice the pod; the memory in use is not."""
    forks = pod.begin(FORKS, "forked")
    neighbour = pod.begin(HOLD.replace("SIZE", "100"), "holding")
    assert pod.post(command="sleep 1")["exit_reason"] == "exited"
    for path, said in ((forks, "forked"), (neighbour, "holding")):
        assert_untouched(pod.end(path), said)
    assert pod.short_of_memory() == []


@pytest.mark.parametrize("program", [MEMFD, TMPFS], ids=["memfd", "tmpfs"])
def test_memory_that_no_process_maps_is_told_and_blamed_on_none(pod: Pod, program: str) -> None:
    neighbour = pod.begin(HOLD.replace("SIZE", "100"), "holding")
    filler = pod.begin(program, "filled")
    wait_until(pod.short_of_memory, 10, "the log says that memory is short")
    done = pod.end(filler)
    (said,) = pod.short_of_memory()
    # Most of what programs use. In gVisor its own memory, as estimated, takes up to a half.
    assert said["shared_bytes"] > POD_MIB * MIB // 4
    assert (done["exit_reason"], done["exit_code"]) == ("exited", 0)
    assert_untouched(pod.end(neighbour), "holding")


@pytest.mark.logs_errors("memory is nearly gone and the warden is silent", always=False)
def test_hog_that_stops_the_warden_ends_with_all_user_code_and_the_daemon_lives_on(
    pod: Pod,
) -> None:
    """A stopped warden cannot scan, and the daemon continues the warden in vain."""
    stopper = (
        "import os, time\nif os.fork() == 0:\n    while True: os.kill(1, 19)\ntime.sleep(0.3)\n"
    )
    done = pod.post(argv=["python3", "-c", stopper + HOG], timeout_seconds=30)
    # The warden may still have had the time to end the hog by itself.
    assert done["exit_reason"] in ("init_killed", "memory_limit"), (
        done,
        pod.daemon.log_text()[-3000:],
    )
    assert done["stdout"] == ""
    assert pod.post(command="echo alive")["stdout"] == "alive\n"


def test_in_gvisor_without_a_setting_the_memory_that_gvisor_shows_is_guarded_and_the_daemon_says_so(
    own_daemon: Callable[..., Target],
) -> None:
    """MemTotal is the node's in a pod."""
    daemon = own_daemon()
    total = Pod(daemon).post(command="awk '/MemTotal/ {print $2}' /proc/meminfo")["stdout"]
    told = daemon.capabilities()["pod_memory"]
    assert (told["guarded"], told["source"]) == (True, "node")
    assert told["size_bytes"] == int(total) * 1024
    assert told["reserve_bytes"] == told["size_bytes"] // 10
    warnings = [
        line for line in daemon.log_text().splitlines() if "memory limit is unknown" in line
    ]
    assert len(warnings) == 1
    assert "EXECD_POD_MEMORY_BYTES" in warnings[0]
