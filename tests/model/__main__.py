"""Run the model for longer: ``python -m tests.model [--seconds N] [--seed N]``.

The steps of all runs add up in tests/model/steps.jsonl, which is part of the repository: a line per
run, with the seed, the commit, the number of steps, and the finding. The steps of an example that
failed are kept in tests/found. With EXECD_CONFORMANCE_LAUNCHER the daemon runs in gVisor, as in the
conformance suite.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests import found
from tests.conformance.target import LAUNCHER

from .host import host
from .run import as_lines, run

REPOSITORY = Path(__file__).parents[2]
LEDGER = Path(__file__).with_name("steps.jsonl")
N_EXAMPLES = 10
N_STEPS = 100


def _without_requests(log: str) -> list[str]:
    lines = [line for line in log.splitlines() if '"message":"request"' not in line]
    return lines[-100:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    parser.add_argument("--seed", type=int, help="of the first run; default: random")
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.randrange(10**9)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True
    ).stdout.strip()
    end = time.monotonic() + options.seconds
    n_findings = 0
    seed = first
    while time.monotonic() < end:
        finding = ""
        n_steps = 0
        with tempfile.TemporaryDirectory(prefix="execd-model-") as directory:
            try:
                with host(Path(directory)) as made:
                    try:
                        run(made, N_EXAMPLES, N_STEPS, seed)
                    except Exception:
                        path = found.keep("model", str(seed), as_lines(made.replayable))
                        print(f"the steps are in {path}", file=sys.stderr)
                        print(*_without_requests(made.target.log_text()), sep="\n", file=sys.stderr)
                        raise
                    finally:
                        n_steps = made.n_steps
            except Exception as error:
                finding = f"{type(error).__name__}: {error}"
                n_findings += 1
                traceback.print_exc()
        line: dict[str, object] = {
            "seed": seed,
            "shape": "gvisor" if LAUNCHER else "native",
            "commit": commit,
            "steps": n_steps,
            "finding": finding.strip(),
        }
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")
        print(f"seed {seed}: {n_steps} steps{', a finding' if finding else ''}", flush=True)
        seed += 1
    totals: dict[str, int] = {}
    for text in LEDGER.read_text().splitlines():
        line = json.loads(text)
        totals[str(line["shape"])] = totals.get(str(line["shape"]), 0) + int(line["steps"])
    print(f"{n_findings} findings; steps of all runs: {totals}")
    return 1 if n_findings else 0


if __name__ == "__main__":
    sys.exit(main())
