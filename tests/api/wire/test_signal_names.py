from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.signal_names import signal_name, signal_number
from execd.errors import InvalidArgument


@pytest.mark.parametrize("name", ["SIGINT", "INT", "int", "sigint", "2", 2])
def test_signal_has_many_spellings(name: str | int) -> None:
    assert signal_number(name) == signal.SIGINT


@pytest.mark.parametrize("number", [number for number in range(1, 65) if number not in (32, 33)])
def test_name_of_each_signal_leads_back_to_it(number: int) -> None:
    assert signal_number(signal_name(number)) == number


@pytest.mark.parametrize(
    "name", ["", "SIG", "NOPE", "0", 0, -1, 65, "65", "SIGRTMIN+31", "CTRL_C_EVENT", "SIG_DFL", "²"]
)
def test_what_is_no_signal_is_refused(name: str | int) -> None:
    with pytest.raises(InvalidArgument, match=r"^signal: there is no signal "):
        signal_number(name)


@given(st.text(max_size=12) | st.integers())
def test_anything_is_a_signal_or_refused(name: str | int) -> None:
    try:
        number = signal_number(name)
    except InvalidArgument:
        return  # the only allowed error
    assert 1 <= number <= 64


def test_numbers_without_a_name_are_shown_too() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
