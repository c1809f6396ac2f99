"""The sentinel, in a process that is stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

from execd.proc.stop_sentinel import StopSentinel

PROGRAM = """
import sys, threading
from execd.proc.stop_sentinel import StopSentinel
sentinel = StopSentinel(lambda: print("continued", flush=True))
sentinel.start()
print("ready", flush=True)
sys.stdin.read()
sentinel.close()
print("closed", flush=True)
"""


def test_a_process_that_goes_on_after_a_stop_is_told_each_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        n_stops = sum(stop_until_told(process) for _ in range(3))
        process.stdin.close()
        rest = process.stdout.read()  # with "continued", if the sentinel has told so late
        assert rest.endswith("closed\n")
        assert 3 + rest.count("continued\n") <= n_stops


def stop_until_told(process: subprocess.Popen[str]) -> int:
    """Stop the process, and let the process go on, until the sentinel tells so. Return the number
    of stops.

    "ready" may come before the thread sleeps, and a thread that does not sleep notices no stop. The
    parent learns of the stop by waitid(2): gVisor's /proc shows no state of a thread.
    """
    assert process.stdout is not None
    for n_stops in range(1, 21):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        if select.select([process.stdout], [], [], 1.0)[0]:
            assert process.stdout.readline() == "continued\n"
            return n_stops
    raise AssertionError("the sentinel tells of no stop")


def test_a_signal_is_no_stop() -> None:
    continued: list[bool] = []
    sentinel = StopSentinel(lambda: continued.append(True))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        sentinel.start()
        [thread] = [one for one in threading.enumerate() if one.name == "stop-sentinel"]
        assert thread.ident is not None
        for _ in range(20):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        sentinel.close()
        signal.signal(signal.SIGUSR1, before)
    assert not continued


def test_a_sentinel_that_never_started_closes() -> None:
    sentinel = StopSentinel(lambda: None)
    sentinel.close()
    assert "stop-sentinel" not in [thread.name for thread in threading.enumerate()]
