"""A program as a single block of bytes: paths, arguments, environment, directory. Pure; standard
library only; imported by the daemon and by the warden.

The daemon packs the block, and ``_spawn.c`` points into the block: between the two nobody makes an
object of each string. The warden unpacks a block only to explain a failed start.

A block is six numbers (32 bits, unsigned, of this machine's byte order): how many paths, arguments
and variables the program has, and how many the direct program has. Then come the strings, each with
a NUL at its end: the directory, the six groups in the same order, and for each path of the direct
program the variable ``_``, if the environment of the direct program has an entry "_".
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_PATH = "/bin:/usr/bin"
"""Where a program is looked for without PATH: os.defpath of Python, as in execvp(3)."""

FILE_SYSTEM_CODEC = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""Encoding and error handler: ``text.encode(*FILE_SYSTEM_CODEC)`` is ``os.fsencode`` for a str, and
does not look for the types of paths."""

_COUNTS = struct.Struct("=6I")


class DirectProgram(NamedTuple):
    """A program in the place of a shell that would do nothing but start the program.

    The child looks for the program as the shell would. Where the shell and execve(2) may differ,
    the child starts the shell after all.
    """

    argv: Sequence[str]
    env: Sequence[str]
    """What the shell passes on, in the shell's order. An entry is the name of a variable of the
    shell, or NAME=value. Where the shell has no such variable, ``PWD`` is the current directory,
    and ``_`` the path at which the program was found."""


class ProgramStrings(NamedTuple):
    """The strings of a block, without the direct program."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    paths: list[str]
    """The candidates for ``argv[0]``."""


def search(program: str, path: str) -> list[str]:
    """Return the candidates that execvp(3) would try for a program name.

    An empty entry of PATH is the current directory.
    """
    if "/" in program:
        return [program]
    # Joined by hand, because os.path.join takes five calls for each directory.
    return [
        directory + program if directory[-1:] in ("", "/") else f"{directory}/{program}"
        for directory in path.split(":")
    ]


def pack(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, direct: DirectProgram | None = None
) -> bytes:
    """Return the block. Raises ValueError: for an empty ``argv``, a NUL in a string, and a string
    that the file system's encoding does not have."""
    if not argv or (direct is not None and not direct.argv):
        raise ValueError("argv: empty")
    path = env.get("PATH", DEFAULT_PATH)
    paths = search(argv[0], path)
    strings = [cwd, *paths, *argv]
    strings += [f"{name}={value}" for name, value in env.items()]
    counts = (len(paths), len(argv), len(env), 0, 0, 0)
    if direct is not None:
        direct_paths = search(direct.argv[0], path)
        entries = [_entry(entry, env) for entry in direct.env]
        strings += [*direct_paths, *direct.argv, *entries]
        if "_" in entries:
            strings += [f"_={found}" for found in direct_paths]
        counts = (*counts[:3], len(direct_paths), len(direct.argv), len(entries))
    text = "\0".join(strings)
    if text.count("\0") != len(strings) - 1:
        raise ValueError("embedded null byte")
    return _COUNTS.pack(*counts) + text.encode(*FILE_SYSTEM_CODEC) + b"\0"


def _entry(entry: str, env: Mapping[str, str]) -> str:
    """Return the variable; or PWD and _, whose values the child finds."""
    if "=" in entry:
        return entry
    if entry in env:
        return f"{entry}={env[entry]}"
    if entry in ("PWD", "_"):
        return entry
    raise ValueError(f"{entry!r} is no variable of the shell")


def unpack(block: bytes) -> ProgramStrings:
    """Return the strings of a block of ``pack``."""
    n_paths, n_argv, n_env, *_ = _COUNTS.unpack_from(block)
    strings = [os.fsdecode(text) for text in block[_COUNTS.size :].split(b"\0")]
    arguments, variables = 1 + n_paths, 1 + n_paths + n_argv
    env = dict(item.split("=", 1) for item in strings[variables : variables + n_env])
    return ProgramStrings(strings[arguments:variables], env, strings[0], strings[1:arguments])
