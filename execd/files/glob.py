"""Glob patterns over relative paths, name by name. Pure.

As pathlib has it: "*", "?" and "[…]" stand for parts of one name, hidden ones too; "**" as a whole
name stands for any number of directories, none as well; at the end, for everything below. Case
matters.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

from execd.errors import InvalidArgument
from execd.files.paths import MAX_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# More are a mistake, and the work is their number times the depth.
MAX_NAMES = 64


class Glob(NamedTuple):
    matches: Callable[[Sequence[str]], bool]
    """Whether a path, given as its names, is one that the pattern means."""
    max_depth: int | None
    """No longer path can match; None: any may."""


def compile_glob(pattern: str) -> Glob:
    """Raises InvalidArgument."""
    # Before anything else is done with it: a regular expression takes over a hundred times the
    # memory of its text.
    if len(pattern) > MAX_PATH_BYTES:
        raise InvalidArgument(f"glob: at most {MAX_PATH_BYTES} characters, as a path", field="glob")
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if not names or pattern.startswith("/") or ".." in names or "\0" in pattern:
        raise InvalidArgument("glob: must be a relative pattern without '..'", field="glob")
    if len(names) > MAX_NAMES:
        raise InvalidArgument(f"glob: at most {MAX_NAMES} names", field="glob")
    matchers = [
        None if name == "**" else re.compile(fnmatch.translate(name)).match for name in names
    ]

    def matches(path: Sequence[str]) -> bool:
        # The usual walk with one point to come back to: the last "**" takes one name more each time
        # the rest fails.
        at = on = 0
        back: tuple[int, int] | None = None
        while at < len(path):
            if on < len(matchers):
                matcher = matchers[on]
                if matcher is None:
                    back = (at, on)
                    on += 1
                    continue
                if matcher(path[at]):
                    at, on = at + 1, on + 1
                    continue
            if back is None:
                return False
            back = (back[0] + 1, back[1])
            at, on = back[0], back[1] + 1
        return on == len(matchers)

    return Glob(matches, None if None in matchers else len(matchers))
