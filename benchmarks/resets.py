"""A reset of a large workspace, beside two other ways to the next episode.

    python -m benchmarks.resets [--files 20000] [--bytes 1073741824] [--rounds 5]
                                [--only native|gvisor] [--runsc PATH]

Before each reset a program changes ``CHANGED`` files, and another program stays in the background.
Beside the reset: the script that people run through ``/execute`` (pkill, git reset, git clean),
which verifies nothing; and a new daemon in a new sandbox, whose workspace is empty.

Workspace and state dir are on a disk natively, and in memory (tmpfs) in gVisor. ``auto`` reads all
content in gVisor, and ``stat`` is what a caller may ask for who knows better.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.servers import Place, parse_with_places
from benchmarks.spread import quantile

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGED = 100
STATE_BYTES = 8 << 30
FILL = """
import os, random, sys
n_files, n_bytes = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(1)
for number in range(n_files):
    folder = f"work/{number // 100:03d}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{number}", "wb") as file:
        file.write(rng.randbytes(n_bytes // n_files))
"""
COMMIT = (
    "git init -q --bare git; cd work; g='git --git-dir=../git --work-tree=.'; "
    "$g -c core.bigFileThreshold=1 add -A && "
    "$g -c user.name=a -c user.email=a@b commit -qm start && $g status --porcelain | wc -l"
)
SPOIL = """
import random, subprocess, sys
rng = random.Random(int(sys.argv[1]))
for number in rng.sample(range(int(sys.argv[2])), int(sys.argv[3])):
    with open(f"work/{number // 100:03d}/{number}", "ab") as file:
        file.write(b"changed")
open("work/new", "w").close()
subprocess.Popen(["sleep", "1000"], stdout=-3, stderr=-3, start_new_session=True)
"""
SCRIPT = (
    "pkill -KILL -x sleep; cd work && g='git --git-dir=../git --work-tree=.' && "
    "$g reset -q --hard && $g clean -qfdx"
)


class Workspace:
    """A daemon's base dir with the files, a checkpoint and a commit of them."""

    def __init__(self, port: int, n_files: int, n_bytes: int) -> None:
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=1800, trust_env=False
        )
        self._n_files = n_files
        self._run(argv=["python3", "-c", FILL, str(n_files), str(n_bytes)])
        made = self._post("/v1/checkpoints", id="c", roots=["work"])
        self.checkpoint_seconds = float(made["duration_seconds"])
        self.has_git = "0" in self._run(command=f"command -v git || exit 0; {COMMIT}").split()

    def spoil(self, number: int) -> None:
        self._run(argv=["python3", "-c", SPOIL, str(number), str(self._n_files), str(CHANGED)])

    def reset(self, verify: str) -> str:
        reply = self._post("/v1/reset", checkpoint="c", verify=verify)
        counts = (reply["clean"], reply["files"]["restored"], reply["files"]["removed"])
        # One more: the time of the folder in which a file was made and removed.
        assert counts == (True, CHANGED + 1, 1), reply
        return str(reply["verified_by"])

    def clean_by_script(self) -> None:
        self._run(command=SCRIPT)

    def close(self) -> None:
        self._client.close()

    def _run(self, **fields: Any) -> str:
        reply = self._post("/v1/executions", timeout_seconds=1800, **fields)
        assert reply["exit_code"] == 0, reply
        return str(reply["stdout"])

    def _post(self, path: str, **fields: Any) -> dict[str, Any]:
        answer = self._client.post(path, json=fields)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def measure(place: Place, n_files: int, n_bytes: int, n_rounds: int) -> None:
    flags = (f"--checkpoint-bytes={STATE_BYTES}", f"--state-bytes={STATE_BYTES}")
    times: dict[str, list[float]] = {}
    with place.serving("execd", *flags) as server:
        workspace = Workspace(server.port, n_files, n_bytes)
        ways: dict[str, Callable[[], object]] = {
            "reset, verified by stat": lambda: workspace.reset("stat"),
            "reset, verified by content": lambda: workspace.reset("content"),
        }
        if workspace.has_git:
            ways["pkill, git reset and git clean"] = workspace.clean_by_script
        # git gives the files other times: after its rounds all of them would be restored.
        for name, act in ways.items():
            for number in range(n_rounds):
                workspace.spoil(number)
                times.setdefault(name, []).append(timed(act))
        workspace.close()
    for _ in range(n_rounds):
        with place.serving("execd") as server:
            times.setdefault("new daemon, empty workspace", []).append(server.start_seconds)
    print(f"{place.name}: {n_files} files, {n_bytes >> 20} MiB, {CHANGED} changed")
    print(f"  {workspace.checkpoint_seconds:7.2f} s  checkpoint")
    for name, found in times.items():
        print(f"  {quantile(sorted(found), 0.5):7.2f} s  {name} (at most {max(found):.2f})")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resets")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    asked, places = parse_with_places(parser)
    for place in places:
        measure(place, asked.files, asked.bytes, asked.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
