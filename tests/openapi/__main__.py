"""Many cases of schemathesis: ``python -m tests.openapi [--cases 2000] [--seed N]``."""

from __future__ import annotations

import argparse
import random
import sys

from tests.openapi.cases import run

CASES_PER_EXAMPLE = 60
"""How many cases a run has at least for each invented request to each operation."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    outcome = run(per_operation=-(-options.cases // CASES_PER_EXAMPLE), seed=options.seed)
    print(outcome.text, *outcome.log_errors, sep="\n")
    print(f"{outcome.n_cases} cases, {outcome.n_operations} operations, {outcome.n_links} links")
    failed = outcome.exit_code or outcome.log_errors or outcome.n_cases < options.cases
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
