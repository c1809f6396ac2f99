"""Fuzz for longer: ``python -m tests.fuzz [--seconds 60] [--only NAME] [--seed N]``.

The targets take turns. A failing input is shortened, printed as base64, and kept in tests/found.
Exit code 1: a target failed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, given, settings

from tests import found

from .damage import damaged
from .targets import TARGETS, Target

N_EXAMPLES = 300


def fuzz(name: str, target: Target, seed: int) -> int:
    """Try ``N_EXAMPLES`` inputs. Return how many inputs failed (0 or 1)."""
    last = [b""]

    @hypothesis.seed(seed)
    @settings(
        max_examples=N_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(damaged(target.seeds))
    def attempt(data: bytes) -> None:
        last[0] = data
        target.check(data)

    try:
        attempt()
    except Exception:
        traceback.print_exc()
        digest = hashlib.sha256(last[0]).hexdigest()[:12]
        path = found.keep(f"fuzz/{name.replace(' ', '-')}", digest, last[0])
        text = base64.b64encode(last[0]).decode()
        print(f"{name}: seed {seed} fails; the input is {path}, as base64:", file=sys.stderr)
        print(text, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60, help="default: 60")
    parser.add_argument("--only", default="", help="targets whose name has this text")
    parser.add_argument("--seed", type=int, help="default: random")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**9)
    end = time.monotonic() + options.seconds
    targets = {name: target for name, target in TARGETS.items() if options.only in name}
    n_failed = n_inputs = 0
    with contextlib.ExitStack() as ends:
        # Thousands of folders for archives: better in memory.
        if Path("/dev/shm").is_dir():
            tempfile.tempdir = ends.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        while time.monotonic() < end and not n_failed:
            for name, target in targets.items():
                n_failed += fuzz(name, target, seed)
                n_inputs += N_EXAMPLES
            seed += 1
    print(f"{n_inputs} inputs of {len(targets)} targets, {n_failed} failed; last seed {seed - 1}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
