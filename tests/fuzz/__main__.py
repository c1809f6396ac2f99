"""Fuzz for longer: ``python -m tests.fuzz [--seconds 60] [--only NAME] [--seed N] [--found DIR]``.

The targets take turns. A failing input is shortened, printed as base64, and saved under
tests/fuzz/found, where test_fuzz.py tries the input from then on. A work tree that is deleted
afterwards needs another folder: ``--found``, or EXECD_FUZZ_FOUND. Exit code 1: a target failed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, given, settings

from .damage import damaged
from .targets import TARGETS, Target
from .test_fuzz import FOUND

N_EXAMPLES = 300


def fuzz(name: str, target: Target, seed: int, found: Path) -> int:
    """Try ``N_EXAMPLES`` inputs. Return how many inputs failed (0 or 1); a failing input is saved
    below ``found``."""
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
        folder = found / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(last[0]).hexdigest()[:12]
        path.write_bytes(last[0])
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
    parser.add_argument(
        "--found",
        type=Path,
        default=Path(os.environ.get("EXECD_FUZZ_FOUND") or FOUND),
        help="where failing inputs are kept; default: EXECD_FUZZ_FOUND, else tests/fuzz/found",
    )
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
                n_failed += fuzz(name, target, seed, options.found)
                n_inputs += N_EXAMPLES
            seed += 1
    print(f"{n_inputs} inputs of {len(targets)} targets, {n_failed} failed; last seed {seed - 1}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
