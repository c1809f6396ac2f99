"""The brake in a real PID namespace: the brake stops growing user code while the main thread is
busy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from execd.proc.kernel_traits import LINUX
from execd.warden import brake

# The init of a new namespace arms the brake, then lets a child fork, and counts nothing. The child
# has a session of its own: gVisor sends SIGHUP to a group with stopped members when a member ends.
# This test's own group is pytest's too. The child is there before the brake is armed: a brake whose
# patience ends at once has somebody to stop.
INIT = """
import os, signal, sys, time
from execd.proc.kernel_traits import LINUX
from execd.warden.brake import Brake
from execd.proc.task_meter import TaskMeter
meter = TaskMeter()
traits = LINUX._replace(stop_pause_seconds=0.001, brake_quiet_rounds=int(sys.argv[5]))
found = Brake(meter.loadavg_fd, traits)
is_ready, ready = os.pipe()
may_begin, begin = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.write(ready, b"x")
    os.read(may_begin, 1)
    for _ in range(int(sys.argv[2])):
        if os.fork() == 0:
            signal.pause()
    exec(sys.argv[4])
    os._exit(0)
os.read(is_ready, 1)
position = meter.read()[1]
found.arm(position, position + int(sys.argv[1]), float(sys.argv[3]))
exec(sys.argv[6])
os.write(begin, b"x")
_, wait_status = os.waitpid(child, os.WUNTRACED)
if sys.argv[5] != "0":
    os.kill(child, signal.SIGCONT)
    _, wait_status = os.waitpid(child, os.WUNTRACED)
    print("again")
    found.release()  # ends the rounds
has_stopped = found.take_stop()
while os.WIFSTOPPED(wait_status) and found.take_stop():
    time.sleep(0.001)
print(os.WIFSTOPPED(wait_status), has_stopped, found.take_stop())
os.kill(-1, signal.SIGKILL)
"""


def under_a_brake(
    room: int,
    n_forks: int,
    patience_seconds: float = 0.0,
    then: str = "",
    quiet_rounds: int = 0,
    first: str = "",
) -> str:
    """``then``: a program of the child after the forks. ``first``: a program of the warden."""
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [
            *namespace,
            sys.executable,
            "-c",
            INIT,
            str(room),
            str(n_forks),
            str(patience_seconds),
            then,
            str(quiet_rounds),
            first,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_growth_beyond_the_room_stops_everything_once() -> None:
    assert under_a_brake(20, 100_000) == "True True False\n"


def test_growth_within_the_room_stops_nothing() -> None:
    assert under_a_brake(1000, 20) == "False False False\n"


def test_a_released_brake_stops_nothing() -> None:
    assert under_a_brake(20, 200, first="found.release()") == "False False False\n"


def test_a_warden_that_does_not_look_in_time_has_everything_stopped() -> None:
    forever = "while True: pass"
    assert under_a_brake(1000, 20, 0.2, then=forever) == "True True False\n"


def test_in_rounds_a_process_that_the_first_round_missed_is_stopped_too() -> None:
    """The child continued after the first round stands for an unfinished fork in gVisor. More
    rounds than there can be: the init may need time until it continues the child."""
    stopped = under_a_brake(20, 100_000, quiet_rounds=100_000)
    assert stopped == "again\nTrue True False\n"


def test_a_process_that_is_no_init_gets_no_brake() -> None:
    with pytest.raises(PermissionError):
        brake.Brake(-1, LINUX)
