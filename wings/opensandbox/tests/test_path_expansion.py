from __future__ import annotations

import pytest

from execd.errors import InvalidArgument
from execd_opensandbox.path_expansion import expand_path

VARIABLES = {"HOME": "/app", "A": "x", "AB": "y"}


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("/tmp/a", "/tmp/a"),
        ("~", "/app"),
        ("~/f", "/app/f"),
        ("/tmp/~", "/tmp/~"),
        ("~other/f", "~other/f"),
        ("$A/${AB}/$AB", "x/y/y"),
        ("${A}B", "xB"),
        ("/tmp/$UNSET ${UNSET} $ $1 ${", "/tmp/$UNSET ${UNSET} $ $1 ${"),
    ],
)
def test_values_stand_for_variables_and_unset_variables_stay(path: str, expanded: str) -> None:
    assert expand_path(path, VARIABLES) == expanded


def test_empty_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="path: empty"):
        expand_path("", VARIABLES)
