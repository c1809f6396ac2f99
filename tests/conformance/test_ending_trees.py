"""Each kind of hostile tree ends whole and with the right reason, while a neighbour command runs
on; memory figures and limits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ..patience import patience
from .conftest import python
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from .conftest import Run

pytestmark = pytest.mark.both_shapes

MIB = 1 << 20

FORK_BOMB = "f() { f & f & sleep MARK; }; f"
# In sessions of their own: no group or session holds them together.
SESSION_BOMB = """
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "MARK"])
        os._exit(0)
    os.wait()
"""
MEMORY_BOMB = """
import subprocess
child = subprocess.Popen(["sleep", "MARK"])
kept = []
for _ in range(700):
    kept.append(bytearray(b"x") * (4 << 20))
print("survived")
"""
FLOOD = "setsid sleep MARK & exec yes"
DEAF = (
    "trap '' TERM INT HUP; (trap '' TERM; "
    "while :; do sleep MARK; done) & while :; do sleep MARK; done"
)
DAEMONISER = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvpe("sleep", ["sleep", "MARK"], {"PATH": os.environ["PATH"]})
        os._exit(0)
    os.wait()
time.sleep(1000)
"""
# No process leaves the group or ends after a stop: gVisor would take the group for orphaned and
# send HUP to the group.
STOPPED = """
import os, signal
child = os.fork()
if child == 0:
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execvp("sleep", ["sleep", "MARK"])
os.waitpid(child, os.WUNTRACED)
if os.fork() == 0:
    os.execvp("sleep", ["sleep", "MARK"])
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""

TREES = {
    "fork bomb": (FORK_BOMB, {"limits": {"processes": 60}}, "process_limit"),
    "bomb of sessions": (SESSION_BOMB, {"limits": {"processes": 60}}, "process_limit"),
    "memory bomb": (MEMORY_BOMB, {"limits": {"memory_bytes": 256 * MIB}}, "memory_limit"),
    "output flood": (
        FLOOD,
        {"limits": {"log_bytes": 8 * MIB}, "on_output_limit": "kill"},
        "output_limit",
    ),
    "deaf to TERM": (DEAF, {"timeout_seconds": 1.0}, "timeout"),
    "daemoniser": (DAEMONISER, {"timeout_seconds": 1.5}, "timeout"),
    "stopped": (STOPPED, {"timeout_seconds": 1.0}, "timeout"),
}


@pytest.fixture
def execute(client: httpx.Client) -> Callable[..., dict[str, Any]]:
    def run(**fields: Any) -> dict[str, Any]:
        answer = client.post("/v1/executions", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return run


@pytest.fixture
def neighbour(client: httpx.Client) -> Iterator[Callable[[], dict[str, Any]]]:
    """A command that holds some memory and works until told to end; ``neighbour()`` ends the
    command and returns the result."""
    program = (
        "import sys\n"
        'held = bytearray(b"x") * (8 << 20)\n'
        'print("there", flush=True)\n'
        "sys.stdin.read(1)\n"
        "print(sum(held[:10]))"
    )
    begun = client.post(
        "/v1/executions", json={"command": python(program), "stdin_open": True, "detach": True}
    ).json()
    path = f"/v1/executions/{begun['id']}"
    wait_until(lambda: client.get(f"{path}/stdout").text == "there\n", 10, "the neighbour is there")

    def end() -> dict[str, Any]:
        client.post(f"{path}/stdin?eof=true", content=b"x")
        return client.get(f"{path}?wait_seconds=20").json()

    yield end
    client.delete(path)


@pytest.mark.parametrize("kind", TREES)
def test_hostile_tree_is_ended_completely_and_its_neighbour_is_untouched(
    execute: Callable[..., dict[str, Any]],
    neighbour: Callable[[], dict[str, Any]],
    run: Run,
    marker: str,
    kind: str,
) -> None:
    program, fields, reason = TREES[kind]
    program = program.replace("MARK", marker)
    done = execute(
        command=python(program) if program.lstrip().startswith("import") else program, **fields
    )
    assert (done["exit_reason"], done["state"]) == (reason, "EXITED")
    wait_until(lambda: run.count_alive(marker) == 0, 2, "no process of the tree is left")
    done = neighbour()
    assert (done["exit_reason"], done["exit_code"], done["stdout"]) == (
        "exited",
        0,
        "there\n1200\n",
    )


FORKS = """
import os, sys, time
size = SIZE << 20
data = bytearray(b"x") * size
read_end, write_end = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.close(write_end)
        if WRITE:
            data[:: 4096] = b"y" * len(range(0, size, 4096))
            time.sleep(1000)
        os.read(read_end, 1)
        os._exit(0)
time.sleep(SECONDS)
os.close(write_end)
sys.exit(9)
"""


# Alone, as the next test: a tree ends only if the machine's memory has grown by as much, and the
# memory that other programs take or give back counts.
@pytest.mark.alone
def test_pages_shared_after_a_fork_do_not_end_a_tree(
    execute: Callable[..., dict[str, Any]],
) -> None:
    """The sum of RSS is then four times the size, but the sandbox has grown by less."""
    program = FORKS.replace("SIZE", "100").replace("WRITE", "False").replace("SECONDS", "3")
    done = execute(command=python(program), limits={"memory_bytes": 250 * MIB})
    assert (done["exit_reason"], done["exit_code"]) == ("exited", 9)
    assert done["usage"]["peak_tree_bytes"] > 250 * MIB, "an upper bound, as it says"


@pytest.mark.alone
def test_pages_written_after_a_fork_end_it(execute: Callable[..., dict[str, Any]]) -> None:
    program = FORKS.replace("SIZE", "100").replace("WRITE", "True").replace("SECONDS", "1000")
    done = execute(
        command=python(program),
        limits={"memory_bytes": 250 * MIB},
        timeout_seconds=patience.seconds(60),
    )
    assert (done["exit_reason"], done["exit_code"]) == ("memory_limit", 137)


FILLED = """
import os, time
fd = OPEN
for _ in range(60):
    os.write(fd, b"x" * (4 << 20))
time.sleep(1)
print("kept")
"""
MEMFD = FILLED.replace("OPEN", 'os.memfd_create("held")')
# in gVisor the base dir is a tmpfs
FILE = FILLED.replace("OPEN", 'os.open("MARK", os.O_CREAT | os.O_RDWR); os.unlink("MARK")')


@pytest.mark.parametrize("program", [MEMFD, FILE], ids=["memfd", "file"])
def test_memory_in_files_is_blamed_on_no_process(
    execute: Callable[..., dict[str, Any]], marker: str, program: str
) -> None:
    done = execute(
        command=python(program.replace("MARK", marker)), limits={"memory_bytes": 120 * MIB}
    )
    assert (done["exit_reason"], done["stdout"]) == ("exited", "kept\n"), done


def test_tree_below_its_limit_is_left_alone_and_its_figures_are_told(
    execute: Callable[..., dict[str, Any]],
) -> None:
    program = 'import time\nheld = bytearray(b"x") * (100 << 20)\ntime.sleep(2)'
    done = execute(command=python(program), limits={"memory_bytes": 400 * MIB})
    assert (done["exit_reason"], done["exit_code"]) == ("exited", 0)
    usage = done["usage"]
    assert 100 * MIB < usage["peak_tree_bytes"] < 400 * MIB
    assert 100 * MIB < usage["max_rss_bytes"] < 400 * MIB
    assert usage["processes"] >= 1


def test_hogs_at_once_end_each_for_itself(
    execute: Callable[..., dict[str, Any]], neighbour: Callable[[], dict[str, Any]], marker: str
) -> None:
    results: list[dict[str, Any]] = []
    hog = python(MEMORY_BOMB.replace("MARK", marker))
    callers = [
        threading.Thread(
            target=lambda: results.append(execute(command=hog, limits={"memory_bytes": 200 * MIB}))
        )
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [done["exit_reason"] for done in results] == ["memory_limit"] * 2
    assert neighbour()["exit_code"] == 0
