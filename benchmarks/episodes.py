"""Episodes of a trainer: one daemon with a reset after each, beside a new daemon for each.

    python -m benchmarks.episodes [--episodes 200] [--fresh 200] [--namespaces require|off]
                                  [--json PATH]

An episode writes a program, runs its tests and takes the share of passed tests as the reward. Then
it spoils the sandbox so that the next episode would get another reward: it replaces the tests,
plants a usercustomize, and leaves a program behind that rewrites the program. So equal rewards say
that no episode has seen another one.

Printed: rewards, times, and what may grow in the daemon that lives on: the memory of its tree
(PSS), descriptors, and the state dir, after ``WARM`` episodes and at the end. Exit code 1: the
rewards differ, a reset was not clean, or something has grown beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks import usage
from benchmarks.spread import quantile

WARM = 20
START_SECONDS = 60.0
GROWN_BYTES = 4 << 20
"""The memory that a tree may differ by from one look to another: the interpreters of the pool are
others each time."""
SOLUTION = """
def total(numbers):
    result = {start}
    for number in numbers[{skipped}:]:
        result += number
    return result
"""
TESTS = """
import unittest
from solution import total

class Tests(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(total([]), 0)
    def test_one(self):
        self.assertEqual(total([7]), 7)
    def test_many(self):
        self.assertEqual(total(list(range(10))), 45)
    def test_zeros(self):
        self.assertEqual(total([0, 0]), 0)
"""
SCORE = """
import io, json, unittest
found = unittest.defaultTestLoader.loadTestsFromName("tests")
result = unittest.TextTestRunner(stream=io.StringIO()).run(found)
bad = len(result.failures) + len(result.errors)
print(json.dumps({"passed": result.testsRun - bad, "run": result.testsRun}))
"""
SPOIL = """
site=$(python3 -m site --user-site); mkdir -p "$site"
echo 'import builtins, unittest; unittest.TestCase.assertEqual = lambda *_: None' \
    > "$site/usercustomize.py"
printf 'import unittest\\nclass Tests(unittest.TestCase): pass\\n' > tests.py
echo 'def total(numbers): return 0' > solution.py
(setsid sh -c 'while :; do echo "def total(n): return 1" > solution.py; sleep 0.01; done' \
    > /dev/null 2>&1 &)
"""


class Facts(NamedTuple):
    """Of a daemon's tree and its state dir."""

    pss_bytes: int
    n_descriptors: int
    n_processes: int
    state_bytes: int
    n_state_files: int


class Sandbox:
    """A daemon on this machine, with the tests of the task in its base dir and the checkpoint
    "start"."""

    def __init__(self, policy: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="episodes-"))
        base = self.folder / "base"
        base.mkdir()
        (base / "tests.py").write_text(TESTS)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "execd", "serve", "--host=127.0.0.1", f"--port={port}"),
                *(f"--base-dir={base}", f"--state-dir={self.folder / 'state'}"),
                *(f"--checkpoint-at-start={base}", f"--namespaces={policy}"),
            ],
            stderr=(self.folder / "log").open("wb"),
        )
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        )
        end = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(f"no daemon: {(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        try:
            return self._client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def run(self, **fields: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self._client.post("/v1/executions", json=fields).json()
        return reply

    def play(self, number: int) -> float:
        """One episode. Return the reward."""
        rng = random.Random(number)
        text = SOLUTION.format(start=rng.choice([0, 0, 0, 1]), skipped=rng.choice([0, 0, 1]))
        self._client.put("/v1/files/solution.py", content=text.encode()).raise_for_status()
        done = self.run(argv=["python3", "-c", SCORE])
        reward = json.loads(done["stdout"])
        self.run(command=SPOIL)
        return float(reward["passed"] / reward["run"])

    def reset(self) -> tuple[bool, float]:
        """Return whether the sandbox is clean, and the seconds."""
        began = time.monotonic()
        reply = self._client.post("/v1/reset", json={}).json()
        if not reply["clean"]:
            print(f"not clean: {reply['differences']}", file=sys.stderr)
        return reply["clean"], time.monotonic() - began

    def facts(self) -> Facts:
        """At rest."""
        time.sleep(1.5)  # the pool fills
        pids = usage.tree(self._process.pid)
        state = [path for path in (self.folder / "state").rglob("*") if path.is_file()]
        return Facts(
            sum(_pss_bytes(pid) for pid in pids),
            len(os.listdir(f"/proc/{self._process.pid}/fd")),
            len(pids),
            sum(path.stat().st_blocks * 512 for path in state),
            len(state),
        )

    def close(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.episodes")
    parser.add_argument("--episodes", type=int, default=200, help="default: 200")
    parser.add_argument("--fresh", type=int, help="new daemons; default: as many")
    parser.add_argument("--namespaces", choices=["require", "off"], default="require")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    n_fresh = options.episodes if options.fresh is None else options.fresh
    rewards: list[float] = []
    resets: list[float] = []
    n_unclean, early = 0, None
    began = time.monotonic()
    sandbox = Sandbox(options.namespaces)
    try:
        for number in range(options.episodes):
            rewards.append(sandbox.play(number))
            is_clean, seconds = sandbox.reset()
            n_unclean += not is_clean
            resets.append(seconds)
            if number + 1 == WARM:
                early = sandbox.facts()
        one_seconds = time.monotonic() - began
        late = sandbox.facts()
    finally:
        sandbox.close()
    fresh: list[float] = []
    began = time.monotonic()
    for number in range(n_fresh):
        sandbox = Sandbox(options.namespaces)
        try:
            fresh.append(sandbox.play(number))
        finally:
            sandbox.close()
    fresh_seconds = time.monotonic() - began
    early = early or late
    has_grown = (
        late.pss_bytes > early.pss_bytes + GROWN_BYTES
        or late.n_descriptors > early.n_descriptors
        or late.n_processes > early.n_processes
        or late.n_state_files > early.n_state_files
    )
    are_same = rewards[:n_fresh] == fresh
    result = {
        "episodes": options.episodes,
        "fresh_daemons": n_fresh,
        "same_rewards": are_same,
        "distinct_rewards": sorted(set(rewards)),
        "mean_reward": sum(rewards) / len(rewards),
        "unclean_resets": n_unclean,
        "reset_median_seconds": round(quantile(sorted(resets), 0.5), 4),
        "reset_p95_seconds": round(quantile(sorted(resets), 0.95), 4),
        "one_daemon_seconds": round(one_seconds, 1),
        "fresh_daemons_seconds": round(fresh_seconds, 1),
        f"after_{WARM}": early._asdict(),
        "at_the_end": late._asdict(),
        "has_grown": has_grown,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 0 if are_same and not has_grown and not n_unclean else 1


if __name__ == "__main__":
    sys.exit(main())
