from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions.plain_words import (
    BUILTINS,
    KEYWORDS,
    MAX_CHARACTERS,
    OBSERVERS,
    plain_words,
)

BY_BYTE = [chr(code) for code in range(256)]
PLAIN = "ABCXYZabcxyz0189_-./,:@%+="


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls", ["ls"]),
        ("ls -la /usr", ["ls", "-la", "/usr"]),
        (" \tls \t -a\t", ["ls", "-a"]),
        ("ls\n", ["ls"]),
        ("ls -a \n", ["ls", "-a"]),
        ("./run.sh --to=x,y a@b:c%d+e", ["./run.sh", "--to=x,y", "a@b:c%d+e"]),
        ("grep -rn 'a  b' src", ["grep", "-rn", "a  b", "src"]),
        ('grep "it\'s" "" x', ["grep", "it's", "", "x"]),
        ("a 'x\"y'", ["a", 'x"y']),
        ("a b'c'\"d\"e", ["a", "bcde"]),
        ("a ''", ["a", ""]),
        ("a '' ''", ["a", "", ""]),
        ("a '$HOME `b` \\ ! * ~ #'", ["a", "$HOME `b` \\ ! * ~ #"]),
        ('a "* ~ # ; & | < > ( ) { } [ ]"', ["a", "* ~ # ; & | < > ( ) { } [ ]"]),
        ("a 'tab\there'", ["a", "tab\there"]),
        ("a =b x=y if echo", ["a", "=b", "x=y", "if", "echo"]),
        ("/bin/echo x", ["/bin/echo", "x"]),
    ],
)
def test_a_plain_line_is_its_words(line: str, words: list[str]) -> None:
    assert plain_words(line) == words


@pytest.mark.parametrize(
    "line",
    [
        *("", " ", "\n", "\nls", "ls\n\n", "ls\nls", "ls \n x"),
        *("'ls'", '"ls"', "l's'", "''", "a=b", "a=b ls", "=ls", "-x", "+x", "%1", "~/run"),
        *("ls 'x", 'ls "x', "ls 'a\nb'", 'ls "a\nb"', "ls x'"),
        *('ls "$x"', 'ls "`x`"', 'ls "a\\b"', 'ls "!"'),
        *("ls 'ä'", "ls ä", "ls '\x7f'", "ls '\x01'", "ls\r", "ls\x0b", "ls\x0c", "ls\x85"),
        *("ls\u2028x", "ls\xa0x", "ls\ud800"),
    ],
)
def test_any_other_line_is_left_to_the_shell(line: str) -> None:
    assert plain_words(line) is None


@pytest.mark.parametrize("character", [*BY_BYTE, "\u2028", "\uff41", "\udc80"])
def test_outside_of_quotes_only_harmless_characters_are_plain(character: str) -> None:
    is_plain = character.isascii() and (character.isalnum() or character in "_./,:@%+-= \t\n")
    assert (plain_words(f"ls a{character}") is not None) == is_plain


@pytest.mark.parametrize("name", sorted(BUILTINS | KEYWORDS))
def test_what_the_shell_itself_knows_is_left_to_the_shell(name: str) -> None:
    assert plain_words(name) is None
    assert plain_words(f" {name} a") is None
    assert plain_words(f"ls {name}") == ["ls", name]


@pytest.mark.parametrize("name", sorted(OBSERVERS))
def test_what_would_find_the_shell_is_left_to_the_shell(name: str) -> None:
    assert plain_words(name) is None
    assert plain_words(f"/usr/bin/{name} -e") is None


@given(
    st.lists(st.text(PLAIN + " \t'\"*?$#", max_size=12), min_size=1, max_size=8).map(
        lambda arguments: shlex.join(["ls", *arguments])
    )
)
def test_words_that_are_quoted_come_back(line: str) -> None:
    """shlex.join puts a quote into double quotes, and everything else into single quotes."""
    assert plain_words(line) == shlex.split(line)


@given(st.text(PLAIN + " \t\n'\"$\\;#a", max_size=30))
def test_a_plain_line_has_the_words_that_posix_gives_it(line: str) -> None:
    words = plain_words(line)
    assert words is None or words == shlex.split(line)


def test_a_long_line_is_left_to_the_shell() -> None:
    assert plain_words("ls " + "a" * (MAX_CHARACTERS - 3)) is not None
    assert plain_words("ls " + "a" * (MAX_CHARACTERS - 2)) is None


@pytest.mark.parametrize("piece", ["a", "a ", "''", "'a' ", '"a"b', " ", "a'b\""])
def test_no_line_takes_long(piece: str) -> None:
    line = ("ls " + piece * MAX_CHARACTERS)[: MAX_CHARACTERS - 1] + "$"
    began = time.process_time()
    assert plain_words(line) is None
    assert time.process_time() - began < 0.5
