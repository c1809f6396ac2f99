from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.proc import program_block
from execd.proc.program_block import DirectProgram, ProgramStrings, pack, unpack

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=9)
NAMES = TEXTS.filter(lambda text: text and "=" not in text)


def test_where_a_name_with_a_slash_or_without_leads() -> None:
    assert program_block.search("./a", "/bin") == ["./a"]
    assert program_block.search("a", "/x::/y") == ["/x/a", "a", "/y/a"]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.dictionaries(NAMES, TEXTS, max_size=4), TEXTS)
def test_a_packed_program_is_unpacked_as_it_was(
    argv: list[str], env: dict[str, str], cwd: str
) -> None:
    paths = program_block.search(argv[0], env.get("PATH", program_block.DEFAULT_PATH))
    assert unpack(pack(argv, env, cwd)) == ProgramStrings(argv, env, cwd, paths)
    direct = DirectProgram(["ls"], ["A=1", "PWD", "_"])
    assert unpack(pack(argv, env, cwd, direct)) == ProgramStrings(argv, env, cwd, paths)


def test_bytes_that_are_no_text_survive() -> None:
    name = os.fsdecode(b"\xff")
    assert unpack(pack([name], {"A": name}, f"/{name}")).cwd == f"/{name}"


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        (["a\0b"], {}, "/"),
        (["true"], {"A": "\0"}, "/"),
        (["true"], {}, "\0"),
        (["\ud800"], {}, "/"),
        ([], {}, "/"),
    ],
)
def test_a_program_that_cannot_be_passed_to_the_kernel_is_a_value_error(
    argv: list[str], env: dict[str, str], cwd: str
) -> None:
    with pytest.raises(ValueError, match=r"null byte|encode|empty"):
        pack(argv, env, cwd)


def test_a_direct_program_has_arguments() -> None:
    with pytest.raises(ValueError, match="empty"):
        pack(["sh"], {}, "/", DirectProgram([], []))
