"""A file of variables that programs of the sandbox append to, as OpenSandbox has it: a line is
NAME=VALUE. The last line of a name counts.

A value may be in single quotes (taken as it is), in double quotes (a backslash before n, r or t
makes a control character, and before another character the character itself), or bare. Lines of
another form are ignored: user code writes the file, and a broken line must not keep commands from
running.
"""

from __future__ import annotations

import os
import re
import stat

from execd.engine.engine_api import MAX_SESSION_VARIABLES

MAX_ENV_FILE_BYTES = 1 << 20
NAME_AND_VALUE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def read_env_file(path: str) -> dict[str, str]:
    """Return the variables of the file; none if there is no such regular file. Reads at most
    MAX_ENV_FILE_BYTES. Call in a thread."""
    try:
        # Without O_NONBLOCK a FIFO in the place of the file would hold the thread.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return {}
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {}
        return parse_env_file(os.read(fd, MAX_ENV_FILE_BYTES).decode("utf-8", "surrogateescape"))
    except OSError:
        return {}
    finally:
        os.close(fd)


def parse_env_file(text: str) -> dict[str, str]:
    """Return the variables of the text, at most as many as a session may have."""
    found: dict[str, str] = {}
    for line in _entries(text):
        match = NAME_AND_VALUE.fullmatch(line.strip(" \t\r"))
        if match is None or "\0" in line:
            continue
        found[match[1]] = _value(match[2])
        if len(found) >= MAX_SESSION_VARIABLES:
            break
    return found


def _entries(text: str) -> list[str]:
    """Split into lines. A single-quoted value may contain line ends."""
    entries: list[str] = []
    open_entry: str | None = None
    for line in text.split("\n"):
        if open_entry is not None:
            open_entry += "\n" + line
            if line.rstrip(" \t\r").endswith("'"):
                entries.append(open_entry)
                open_entry = None
            continue
        match = NAME_AND_VALUE.fullmatch(line.strip(" \t\r"))
        value = "" if match is None else match[2]
        if value.startswith("'") and not (len(value) > 1 and value.endswith("'")):
            open_entry = line
        else:
            entries.append(line)
    return entries


def _value(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), text[1:-1])
    return text
