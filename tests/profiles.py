"""How many examples the property tests try.

    dev      25 examples: while a developer works
    ci       hypothesis' 100 examples
    explore  500 examples, for `make explore`

EXECD_TEST_PROFILE names the profile; without it, CI=true chooses ci and anything else chooses dev.

The examples are the same in every run: pyproject.toml gives hypothesis the seed, and no profile
keeps failed examples. No profile has a deadline, because a busy machine may hold up any example.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import HealthCheck, settings

PROFILES = {"dev": 25, "ci": 100, "explore": 500}
REPOSITORY = Path(__file__).parents[1]
SOURCES = ("benchmarks", "clients", "docs", "examples", "execd", "tools", "wings")


def load() -> None:
    """Register the profiles and load one of them. Raises KeyError: EXECD_TEST_PROFILE names no
    profile."""
    common = settings(
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    for name, max_examples in PROFILES.items():
        settings.register_profile(name, settings(common, max_examples=max_examples))
    by_place = "ci" if os.environ.get("CI", "").lower() in ("1", "true") else "dev"
    name = os.environ.get("EXECD_TEST_PROFILE", by_place)
    if name not in PROFILES:
        raise KeyError(f"EXECD_TEST_PROFILE={name}: one of {', '.join(PROFILES)}")
    settings.load_profile(name)
    _show_all_constants()


def _show_all_constants() -> None:
    """hypothesis draws constants from the sources of the modules in sys.modules, so a module that a
    test imports would change the examples of the tests behind. A stand-in for every source shows
    hypothesis all constants from the beginning."""
    for folder in SOURCES:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            stand_in = ModuleType(f"constants of {path}")
            stand_in.__file__ = str(path)
            sys.modules.setdefault(stand_in.__name__, stand_in)


def examples(factor: float) -> settings:
    """The profile's number of examples times ``factor``: for a property that costs far more or less
    than the others."""
    return settings(max_examples=max(1, round(settings().max_examples * factor)))
