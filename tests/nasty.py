"""Values of a cell that some codec, reader or printer does not like, as Python source."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from hypothesis import strategies as st

DEFINITIONS = """
import sys
from enum import IntEnum
class Odd(int):
    def __int__(self): return 10 ** 5000
class Name(str):
    def __str__(self): return self
    def __len__(self): return 0
class Level(IntEnum):
    HIGH = 2 ** 70
class Ratio(float):
    pass
class Quiet:
    def __repr__(self): return "\\ud83d" + "q" * 300_000
class Bundle:
    def __init__(self, value): self.value = value
    def __repr__(self): return "bundle"
    def _repr_mimebundle_(self, **_):
        return {"application/json": self.value, "text/plain": "bundle"}, {"m": self.value}
loop = []
loop.append(loop)
"""

LEAVES = st.sampled_from(
    [
        "None",
        "True",
        "0",
        "-1",
        "2 ** 53",
        "2 ** 63",
        "-(2 ** 64)",
        "2 ** 1023",
        "2 ** 1024",
        "10 ** 400",
        "-(10 ** 5000)",
        "1 << 4_000_000",
        "Odd()",
        "Level.HIGH",
        "1e308",
        "5e-324",
        "-0.0",
        "float('nan')",
        "float('-inf')",
        "Ratio('nan')",
        "1j",
        "''",
        "Name('name')",
        "'\\ud800'",
        "'\\udfff\\ud800'",
        "'\\\\ud800'",
        "'\\0\\x1f\\x7f\\x85\\u2028\\ufffe'",
        "chr(0x10ffff)",
        "'0000000c 00000000 {}\\n'",
        "b'\\xff\\n'",
        "bytearray(2)",
        "object",
        "Quiet()",
        "'m' * 3_000_000",
        "[0] * 100_000",
        "loop",
    ]
)
KEYS = st.sampled_from(
    ["'k'", "''", "None", "1.5", "(1, 2)", "b'k'", "'\\ud800'", "Level.HIGH", "Name('n')", "object"]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=2).map(lambda items: f"({''.join(f'{one}, ' for one in items)})"),
        st.lists(st.tuples(KEYS, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
        ),
        inner.map(lambda item: f"[{item}] * 2"),
    ),
    max_leaves=6,
)


def check(encoded: bytes) -> None:
    """Fail unless every reader of JSON takes these bytes: a strict one, one whose numbers are
    doubles, and one without a form for lone surrogates."""
    msgspec.json.decode(encoded)
    _check_value(json.loads(encoded, parse_constant=_refuse))


def _check_value(value: Any) -> None:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int | float):
        assert math.isfinite(float(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode()
            _check_value(item)
    elif isinstance(value, list):
        for item in value:
            _check_value(item)


def _refuse(constant: str) -> float:
    raise AssertionError(f"no JSON: {constant}")
