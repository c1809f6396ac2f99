"""What `make explore` has found: each file is a case, and the gate tries the cases.

    fuzz/TARGET/HASH         an input
    properties/HASH.json     a property with the example that failed, as hypothesis' blob
    model/SEED               the steps of the example that failed, one a line
    resets/SEED-ROUND-POLICY    a round of tests/conformance/reset_rounds.py, with the message
    readers/SEED, cuts/SEED, openapi/SEED    the seed of a run that failed, with the message

EXECD_FOUND names another folder.
"""

from __future__ import annotations

import os
from pathlib import Path

FOUND = Path(os.environ.get("EXECD_FOUND") or Path(__file__).parent)
FIXED_SEED = 1


def keep(part: str, name: str, content: bytes) -> Path:
    path = FOUND / part / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def cases(part: str) -> list[Path]:
    return sorted(path for path in (FOUND / part).glob("*") if path.is_file())


def seeds(part: str) -> list[int]:
    """The seeds of a part's runs: the seed of every run and those that once failed, or the seed of
    `make explore` (EXECD_SEED)."""
    if seed := os.environ.get("EXECD_SEED"):
        return [int(seed)]
    return [FIXED_SEED, *(int(path.name) for path in cases(part))]
