"""Glob patterns over relative paths, name by name. Pure.

The rules are pathlib's: "*", "?" and "[…]" match within a name, hidden names too. "**" as a whole
name matches any number of directories, also none; at the end of the pattern, everything below. Case
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

# The work is the number of names times the depth. A pattern with more names is a mistake.
MAX_NAMES = 64


class Glob(NamedTuple):
    matches: Callable[[Sequence[str]], bool]
    """Whether the pattern matches a path, given as a sequence of names."""
    max_depth: int | None
    """The most names that a matching path has; None for no limit."""


def compile_glob(pattern: str) -> Glob:
    """Compile ``pattern``. Raises InvalidArgument."""
    # The length is checked first: a regular expression takes over a hundred times the memory of the
    # pattern's text.
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
        # Backtracking with a single resume point: each time the rest of the pattern fails, the last
        # "**" matches one more name.
        path_index = pattern_index = 0
        resume: tuple[int, int] | None = None
        while path_index < len(path):
            if pattern_index < len(matchers):
                matcher = matchers[pattern_index]
                if matcher is None:
                    resume = (path_index, pattern_index)
                    pattern_index += 1
                    continue
                if matcher(path[path_index]):
                    path_index, pattern_index = path_index + 1, pattern_index + 1
                    continue
            if resume is None:
                return False
            resume = (resume[0] + 1, resume[1])
            path_index, pattern_index = resume[0], resume[1] + 1
        assert path_index == len(path)
        return pattern_index == len(matchers)

    return Glob(matches, None if None in matchers else len(matchers))
