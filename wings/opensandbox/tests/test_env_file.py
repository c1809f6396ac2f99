from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd_opensandbox.env_file import MAX_ENV_FILE_BYTES, parse_env_file, read_env_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1\nB=2\nA=3\n", {"A": "3", "B": "2"}),
        ("A='x y'", {"A": "x y"}),
        (r"A='a\nb'", {"A": r"a\nb"}),
        ("A='a\nb'\nB=1", {"A": "a\nb", "B": "1"}),
        (r'A="a\nb\t\"\\\r"', {"A": 'a\nb\t"\\\r'}),
        ("export A=1", {"A": "1"}),
        ("  A=1 \t\r\n", {"A": "1"}),
        ("A=", {"A": ""}),
        ("# A=1\n\nno\n1A=2\nA-B=3\n=4", {}),
        ("A=x'y", {"A": "x'y"}),
        ("A='open\nB=1", {}),
    ],
)
def test_lines_are_names_with_values_in_three_quotings(
    text: str, variables: dict[str, str]
) -> None:
    assert parse_env_file(text) == variables


SDK_VALUES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0'"))


@given(SDK_VALUES)
def test_value_in_single_quotes_comes_back_as_the_sdk_wrote_the_value(value: str) -> None:
    assert parse_env_file(f"K='{value}'\n") == {"K": value}


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    assert all("\0" not in value for value in parse_env_file(text).values())


def test_missing_files_directories_and_fifos_have_no_variables(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "no", tmp_path, tmp_path / "fifo", "a\0b"):
        assert read_env_file(str(path)) == {}


def test_only_the_beginning_of_a_large_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A=1\n" + "#" * MAX_ENV_FILE_BYTES + "\nB=2\n")
    assert read_env_file(str(tmp_path / "env")) == {"A": "1"}
