from __future__ import annotations

import pytest

from execd.errors import InvalidArgument
from execd_opensandbox.name_patterns import name_globs


@pytest.mark.parametrize(
    ("pattern", "globs"),
    [
        ("**", ["**"]),
        ("*.py", ["**/*.py"]),
        ("src/*.py", ["src/*.py"]),
        ("*.{py,txt}", ["**/*.py", "**/*.txt"]),
        ("{a,b}{c,d}", ["**/ac", "**/ad", "**/bc", "**/bd"]),
        ("{a,{b,c}}", ["**/a", "**/b", "**/c"]),
        ("[^a]*", ["**/[!a]*"]),
        ("{", ["**/{"]),
    ],
)
def test_pattern_of_names_and_braces_become_globs(pattern: str, globs: list[str]) -> None:
    assert sorted(name_globs(pattern)) == sorted(globs)


def test_too_many_alternatives_are_refused() -> None:
    assert len(name_globs("{a,b}" * 5)) == 32
    with pytest.raises(InvalidArgument, match="more than 32 patterns"):
        name_globs("{a,b}" * 6)
