"""Command lines that need no shell: plain words, and quotes around text in which a shell expands
nothing. Pure.

Such a line means the same to dash, bash and every further shell of POSIX: start the program of the
first word with the words as its arguments. Everything else is left to the shell. A line that is
left to the shell without need costs a process; a line that is taken from the shell wrongly runs
something else. So the class is narrow: ASCII only, no tilde, no braces, no ``!``, no comment.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 100_000
"""A longer line takes the shell. Far below the kernel's limit of one argument (execve(2)), so no
word is too long for an argument."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = _words(
    """
    case coproc do done elif else esac fi for function if in select then time until while
    """
)
"""Reserved words of dash, bash or busybox. The others (``{``, ``!``, ``[[``) are no plain words."""

BUILTINS = _words(
    """
    . : alias bg bind break builtin caller cd chdir command compgen complete compopt continue
    declare dirs disown echo enable eval exec exit export false fc fg getopts hash help history jobs
    kill let local logout mapfile popd printf pushd pwd read readarray readonly return set shift
    shopt source suspend test times trap true type typeset ulimit umask unalias unset wait
    """
)
"""Builtins of dash, bash or busybox: the program of the same name may differ from the builtin."""

OBSERVERS = _words(
    """
    atop fuser glances htop killall killall5 lsof pgrep pidof pidwait pkill ps pstree setsid skill
    slay snice top w
    """
)
"""Programs that find or signal processes, and would find the shell; and setsid(1), which forks if
its process leads a process group."""

_QUOTED_TEXT = r"""(?:'[\t -&(-~]*'|"[\t #%-\[\]-_a-~]*")"""
_PLAIN = "A-Za-z0-9_./,:@%+-"
_WORD = f"(?:[={_PLAIN}]+(?:{_QUOTED_TEXT}[={_PLAIN}]*)*|(?:{_QUOTED_TEXT}[={_PLAIN}]*)+)"
# No character can belong to two neighbouring parts, so a line that does not match is given up after
# one pass back. Not possessive quantifiers: those of a group match too much before Python 3.11.5
# (CPython's issue 106052), and Debian 12 has 3.11.2. A newline at the end is the end of the line;
# with two newlines bash does not know that the command is its last, and forks.
_LINE = re.compile(rf"[ \t]*(?![-+%])([{_PLAIN}]+)((?:[ \t]+{_WORD})*)[ \t]*\n?")
_WORDS = re.compile(_WORD)
_QUOTED = re.compile(_QUOTED_TEXT)


def plain_words(line: str) -> list[str] | None:
    """Return the words of a line that needs no shell; None for any other line."""
    if len(line) > MAX_CHARACTERS:
        return None
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    program, arguments = found.groups()
    if program in KEYWORDS or program in BUILTINS or program.rpartition("/")[2] in OBSERVERS:
        return None
    if "'" in arguments or '"' in arguments:
        return [program, *map(_unquoted, _WORDS.findall(arguments))]
    return [program, *arguments.split()]


def _unquoted(word: str) -> str:
    if "'" not in word and '"' not in word:
        return word
    return _QUOTED.sub(lambda quoted: quoted[0][1:-1], word)
