"""Every target with damaged input, and with the inputs that once failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import found
from tests.profiles import examples

from .damage import damaged
from .targets import TARGETS

each_target = pytest.mark.parametrize("name", TARGETS)


@each_target
@examples(5)
@given(data=st.data())
def test_damaged_input_is_refused_or_read(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    target.check(data.draw(damaged(target.seeds)))


@each_target
def test_well_formed_input_and_what_once_failed_is_refused_or_read(name: str) -> None:
    target = TARGETS[name]
    cases = found.cases(f"fuzz/{name.replace(' ', '-')}")
    for data in (*target.seeds, *(path.read_bytes() for path in cases)):
        target.check(data)
