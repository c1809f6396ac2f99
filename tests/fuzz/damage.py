"""A hypothesis strategy: a well-formed input with a few damages, or nothing but noise.

hypothesis shortens a found input and prints the blob that repeats the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NUMBERS = [b"-1", b"0", b"4294967296", b"18446744073709551616", b"1e9", b"0x10", b"\xd9\xa3"]
BYTES = [b"\0", b"\n", b"\r\n", b'"', b"\\", b";", b"=", b"%", b"/", b"..", b"\xff", b"\x7f", b""]
MAX_DAMAGES = 4


@st.composite
def damaged(draw: Callable[..., object], seeds: Sequence[bytes]) -> bytes:
    """One of ``seeds``, cut, spliced, repeated, with bytes changed."""
    data = draw(st.sampled_from(seeds))
    assert isinstance(data, bytes)
    for _ in range(int(str(draw(st.integers(0, MAX_DAMAGES))))):
        data = _damage(draw, data, seeds)
    return data


def _damage(draw: Callable[..., object], data: bytes, seeds: Sequence[bytes]) -> bytes:
    first, last = sorted(int(str(draw(st.integers(0, len(data))))) for _ in range(2))
    kind = draw(st.sampled_from(["flip", "cut", "drop", "repeat", "put", "splice", "noise"]))
    if kind == "flip" and first < len(data):
        bit = int(str(draw(st.integers(0, 7))))
        return data[:first] + bytes([data[first] ^ (1 << bit)]) + data[first + 1 :]
    if kind == "cut":
        return data[:first]
    if kind == "drop":
        return data[:first] + data[last:]
    if kind == "repeat":
        return data[:last] + data[first:last] * 3 + data[last:]
    if kind == "splice":
        other = draw(st.sampled_from(seeds))
        assert isinstance(other, bytes)
        return data[:first] + other[min(last, len(other)) :]
    token = draw(st.binary(max_size=8) if kind == "noise" else st.sampled_from(NUMBERS + BYTES))
    assert isinstance(token, bytes)
    return data[:first] + token + data[first:]
