"""How many examples the property tests try.

    dev      25 examples: while a developer works
    ci       hypothesis' 100 examples, other examples in every run; a failure prints the blob that
             repeats it (`@reproduce_failure`)
    nightly  5,000 examples

EXECD_TEST_PROFILE names the profile; without it, CI=true chooses ci and anything else chooses dev.
hypothesis would load a profile of its own under CI=true, with the same examples in every run.

No profile has a deadline: a busy machine may hold up any example. A work tree that this user may
not write keeps no failed examples.
"""

from __future__ import annotations

import os

from hypothesis import settings

PROFILES = {"dev": 25, "ci": 100, "nightly": 5_000}


def load() -> None:
    """Register the profiles and load one of them. Raises KeyError: EXECD_TEST_PROFILE names no
    profile."""
    common = settings(deadline=None, derandomize=False, print_blob=True)
    if not os.access(".", os.W_OK):
        common = settings(common, database=None)
    for name, max_examples in PROFILES.items():
        settings.register_profile(name, settings(common, max_examples=max_examples))
    by_place = "ci" if os.environ.get("CI", "").lower() in ("1", "true") else "dev"
    name = os.environ.get("EXECD_TEST_PROFILE", by_place)
    if name not in PROFILES:
        raise KeyError(f"EXECD_TEST_PROFILE={name}: one of {', '.join(PROFILES)}")
    settings.load_profile(name)


def examples(factor: float) -> settings:
    """The profile's number of examples times ``factor``: for a property that costs far more or less
    than the others."""
    return settings(max_examples=max(1, round(settings().max_examples * factor)))
