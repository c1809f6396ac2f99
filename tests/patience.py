"""How long a test waits before the test says that something hangs: the only upper bounds in
seconds, in multiples of the speed that this machine has at the moment.

    assert time.monotonic() - began < patience(5)
    process.wait(patience.seconds(30))
    while not fact():
        patience.check(began, 20, "the fact holds")

The seconds are ample for a quiet machine. A promise about time is another thing: one test on the
real clock, marked ``timed`` (tests/timed.py), and others with an injected clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

QUIET_SECONDS = 0.02
"""The fixed piece of work on a quiet machine: 7 ms for the loop, the rest for the process."""

HEADROOM = 2.0
"""The machine may have been slower before than at the time of the measurement."""

IN_SANDBOX = bool(os.environ.get("EXECD_URL") or os.environ.get("EXECD_CONFORMANCE_LAUNCHER"))
"""Whether daemons run elsewhere, or behind a launcher: in gVisor, as a rule, which a measurement
here does not see."""

SANDBOX_FACTOR = 3.0
"""gVisor starts a program in ten times the time, and does most other things as fast."""

MAX_SLOWNESS = 10.0
MAX_SECONDS = 500.0
"""Patience is over before pytest ends the test, after 600 s."""

SAMPLES = 5


def _work() -> float:
    """The seconds that a loop and the start of a process take now."""
    began = time.perf_counter()
    sum(range(400_000))
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    return time.perf_counter() - began


class Patience:
    def __init__(self) -> None:
        self.slowness = 0.0
        """How many times as slow as quiet the machine has been at worst; 0 if not measured yet."""

    def measure(self) -> None:
        """A machine that was busy may be busy again, so patience only grows."""
        found = max(_work() for _ in range(SAMPLES)) / QUIET_SECONDS
        self.slowness = min(MAX_SLOWNESS, max(1.0, found, self.slowness))

    def seconds(self, quiet_seconds: float) -> float:
        """``quiet_seconds`` for the machine as it was seen so far."""
        if not self.slowness:
            self.measure()
        factor = HEADROOM * self.slowness * (SANDBOX_FACTOR if IN_SANDBOX else 1.0)
        return max(quiet_seconds, min(quiet_seconds * factor, MAX_SECONDS))

    def is_over(self, elapsed_seconds: float, quiet_seconds: float) -> bool:
        """Measures the machine at the last moment, because most bounds are never reached."""
        if elapsed_seconds < quiet_seconds or (
            self.slowness and elapsed_seconds < self.seconds(quiet_seconds)
        ):
            return False
        self.measure()
        return elapsed_seconds >= self.seconds(quiet_seconds)

    def check(self, began: float, quiet_seconds: float, what: object) -> None:
        """Fail if patience is over for a fact awaited since ``began`` of ``time.monotonic()``."""
        if self.is_over(time.monotonic() - began, quiet_seconds):
            # Without an assert statement, to whose words pytest adds.
            raise AssertionError(f"not so within {self(quiet_seconds)}: {what}")

    def __call__(self, quiet_seconds: float) -> _Bound:
        return _Bound(self, quiet_seconds)


class _Bound:
    """Stands on the right of ``elapsed_seconds <``."""

    def __init__(self, patience: Patience, quiet_seconds: float) -> None:
        self.patience, self.quiet_seconds = patience, quiet_seconds

    def __gt__(self, elapsed_seconds: float) -> bool:
        return not self.patience.is_over(elapsed_seconds, self.quiet_seconds)

    def __repr__(self) -> str:
        seconds = self.patience.seconds(self.quiet_seconds)
        return f"{seconds:.1f} s (patience with {self.quiet_seconds:g} s)"


patience = Patience()
