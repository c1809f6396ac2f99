"""Every target with damaged input. ``found`` holds the inputs that once failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .damage import damaged
from .targets import TARGETS

FOUND = Path(__file__).parent / "found"
each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
@given(data=st.data())
def test_damaged_input_is_refused_or_read(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    target.check(data.draw(damaged(target.seeds)))


@each_target
def test_well_formed_input_and_what_once_failed_is_refused_or_read(name: str) -> None:
    target = TARGETS[name]
    found = [path.read_bytes() for path in sorted((FOUND / name.replace(" ", "-")).glob("*"))]
    for data in (*target.seeds, *found):
        target.check(data)
