"""Early ends in a real PID namespace, where no other process takes pids."""

from __future__ import annotations

import subprocess
import sys

import pytest

from execd.proc.task_meter import is_gvisor

pytestmark = pytest.mark.skipif(is_gvisor(), reason="only Linux tells the newest pid")

# The init of a new namespace starts a child, waits for the child's early end, and tells what the
# wait found, what is left to reap, and whether SIGCHLD still waits.
INIT = """
import contextlib, os, select, signal, sys, time
from execd.proc import spawn
from execd.warden.early_end import EarlyEnds
spawn.prepare()
signals, (requests, request) = spawn.open_child_signals(), os.pipe()
loadavg = os.open("/proc/loadavg", os.O_RDONLY)
ends = EarlyEnds(
    child_signals=signals, requests=requests, loadavg_fd=loadavg, within_seconds=float(sys.argv[1])
)
exec(sys.argv[2])
child = os.fork()
if child == 0:
    exec(sys.argv[3])
    os._exit(7)
exec(sys.argv[4])
began = time.monotonic()
end = ends.wait(child)
waited_seconds = time.monotonic() - began
print(None if end is None else (os.waitstatus_to_exitcode(end.wait_status), end.has_more))
if end is not None:
    assert 0 <= end.user_seconds + end.system_seconds < 10
    assert 1 << 20 < end.max_rss_bytes < 1 << 30
print(bool(select.select([signals], [], [], 0)[0]))
exec(sys.argv[5])
with contextlib.suppress(ProcessLookupError):
    os.kill(-1, signal.SIGKILL)
left = set()
try:
    while True:
        left.add(os.wait()[0] == child)
except ChildProcessError:
    print(sorted(left))
"""
LONG, SHORT = 0.99, 0.05


def wait(
    child: str = "",
    *,
    first: str = "",
    then: str = "",
    last: str = "",
    within_seconds: float = LONG,
) -> str:
    """``child``: the child's program. ``first``, ``then``, ``last``: programs of the init before
    the fork, after the fork, and after the wait."""
    done = subprocess.run(
        [
            *["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
            *[sys.executable, "-c", INIT, str(within_seconds), first, child, then, last],
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_that_ends_and_leaves_nothing_is_reaped() -> None:
    assert wait() == "(7, False)\nFalse\n[]\n"
    assert wait("os.kill(os.getpid(), signal.SIGKILL)") == "(-9, False)\nFalse\n[]\n"


@pytest.mark.parametrize(
    "child",
    [
        "os.fork() or signal.pause()",
        "os.fork() or os._exit(0)",
        "import threading; threading.Thread(target=int).start()",
    ],
    ids=["a process that lives on", "a process that has ended", "a thread"],
)
def test_a_program_that_has_started_anything_is_left_to_the_loop(child: str) -> None:
    found, is_pending, left = wait(child).splitlines()
    assert (found, is_pending) == ("None", "True")
    assert "True" in left


def test_a_program_that_lives_on_is_left_to_the_loop() -> None:
    assert wait("signal.pause()", within_seconds=SHORT) == "None\nFalse\n[True]\n"


def test_a_stop_of_a_program_that_the_init_traces_is_no_end() -> None:
    traced = (
        "import ctypes\n"
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"  # PTRACE_TRACEME
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    assert wait(traced) == "None\nTrue\n[True]\n"


def test_a_wait_ends_with_the_next_request() -> None:
    last = f"print(waited_seconds < {LONG})"
    found = wait("signal.pause()", then="os.write(request, b'x')", last=last)
    assert found == "None\nFalse\nTrue\n[True]\n"


def test_the_end_of_another_child_ends_the_wait_and_is_left_to_the_loop() -> None:
    first = "other = os.fork()\nif other == 0: time.sleep(0.1); os._exit(0)"
    found, is_pending, left = wait("signal.pause()", first=first).splitlines()
    assert (found, is_pending, left) == ("None", "True", "[False, True]")


def test_another_end_behind_the_same_signal_is_told() -> None:
    # Both children have ended before the wait, and SIGCHLD waits only once.
    first = "other = os.fork()\nif other == 0: os._exit(0)"
    then = "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)"
    first += "\nos.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)"
    assert wait(first=first, then=then) == "(7, True)\nFalse\n[False]\n"
