from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import InvalidArgument
from execd.files.glob import MAX_NAMES, compile_glob
from tests.patience import patience


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.py", ["a.py", ".py", ".hidden.py"], ["a.pyc", "d/a.py"]),
        ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.txt"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/b/c", "x/a/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b"]),
        ("**", ["a", "a/b"], []),
        ("**/a/**/b/**", ["a/b/c", "x/a/y/b/z"], ["a/b", "b/a/c"]),
        ("[ab]?", ["ax", "by"], ["cx", "a", "a/x"]),
        ("./a//b", ["a/b"], ["a"]),
        ("[!a]*", ["b"], ["a"]),
        ("a\nb", ["a\nb"], ["a"]),
    ],
)
def test_a_pattern_matches_name_by_name(
    pattern: str, matching: list[str], other: list[str]
) -> None:
    matches = compile_glob(pattern).matches
    assert [path for path in matching if not matches(path.split("/"))] == []
    assert [path for path in other if matches(path.split("/"))] == []


@pytest.mark.parametrize(
    "pattern", ["", "/", "/a", "..", "a/../b", "a\0b", "/".join("a" * (MAX_NAMES + 1))]
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        compile_glob(pattern)


def test_the_depth_of_a_pattern_bounds_the_search() -> None:
    assert compile_glob("a/*/c").max_depth == 3
    assert compile_glob("a/**/c").max_depth is None


def test_a_pattern_is_no_longer_than_a_path() -> None:
    assert compile_glob("[a]" * 1365).matches(["a" * 1365])
    for pattern in ("a" * 4096, "a" * 15_000_000, "[" * 100_000, "*a" * 100_000):
        with pytest.raises(InvalidArgument, match="4095"):
            compile_glob(pattern)


def test_no_pattern_takes_forever() -> None:
    matches = compile_glob("/".join(["**", "a*a*a*a*b"] * 30)).matches
    began = time.monotonic()
    assert not matches(["a" * 200] * 200)
    assert time.monotonic() - began < patience(20)


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=5), max_size=5))
def test_any_text_is_a_pattern_or_the_one_declared_error(pattern: str, path: list[str]) -> None:
    try:
        compile_glob(pattern).matches(path)
    except InvalidArgument:
        pass
