"""Draw new examples of all that the gate tries with fixed ones: ``make explore``.

    python -m tests.explore [--seconds 600] [--seed N] [--only PART]

The parts share the time. A part ends with its time or with a find; a run that has begun may end
later. A find is printed, shrunk where hypothesis can shrink, and kept as a case in ``tests/found``,
which the gate tries from then on. Exit code 1: a find, or a run that failed by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests import found
from tests.profiles import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTEST = ("pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider")
N_CASES = 500
"""Requests of a run of schemathesis, beside those at the bounds of the schemas."""
SEED_IS_THE_CASE = {"readers", "cuts", "openapi"}
TAIL_CHARACTERS = 4_000


def files_with_properties() -> Iterator[str]:
    for path in sorted(
        [*REPOSITORY.glob("tests/**/test_*.py"), *REPOSITORY.glob("wings/*/tests/**/test_*.py")]
    ):
        if any(word in path.read_text() for word in ("@given", "RuleBasedStateMachine")):
            yield str(path.relative_to(REPOSITORY))


def commands(seed: int, seconds: float, properties: list[str]) -> dict[str, list[str]]:
    """One run of each part."""
    limited = ["--seconds", str(seconds), "--seed", str(seed)]
    return {
        "properties": [
            *(*PYTEST, "-p", "tests.drawn", "-p", "tests.replays", f"--hypothesis-seed={seed}"),
            *properties,
        ],
        "fuzz": ["tests.fuzz", *limited],
        "model": ["tests.model", *limited],
        "openapi": ["tests.openapi", "--cases", str(N_CASES), "--seed", str(seed)],
        "readers": [*PYTEST, "tests/readers"],
        "cuts": [*PYTEST, "tests/client/test_cuts.py"],
        "resets": [
            *("tests.conformance.reset_rounds", "--rounds", "10000", *limited),
            *("--namespaces", "off" if seed % 4 == 0 else "require"),
        ],
    }


PARTS = tuple(commands(0, 0, []))


def explore(part: str, seconds: float, seed: int, properties: list[str]) -> bool:
    """Return whether nothing was found."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"== {part}: seed {seed}", flush=True)
        environment = {
            **os.environ,
            "EXECD_TEST_PROFILE": "explore" if part == "properties" else "ci",
            "EXECD_EXPLORE_SECONDS": str(left),
        }
        if part in SEED_IS_THE_CASE:
            environment["EXECD_SEED"] = str(seed)
        done = subprocess.run(
            [sys.executable, "-m", *commands(seed, left, properties)[part]],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            print(text, flush=True)
            if part in SEED_IS_THE_CASE and done.returncode == 1:
                found.keep(part, str(seed), text[-TAIL_CHARACTERS:].encode())
            return False
        print(*text.splitlines()[-1:], flush=True)
        seed += 1
    return True


def kept() -> set[str]:
    return {str(path) for path in found.FOUND.rglob("*") if path.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore")
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    parser.add_argument("--seed", type=int, help="of the first runs; default: random")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--properties", nargs="+", help="files; default: all with properties")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2, 10**9)
    properties = options.properties or list(files_with_properties())
    before = kept()
    parts = [options.only] if options.only else PARTS
    failed = [
        part for part in parts if not explore(part, options.seconds / len(parts), seed, properties)
    ]
    for path in sorted(kept() - before):
        print(f"kept: {path}")
    print(f"explored with seed {seed}; found something in: {', '.join(failed) or 'no part'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
