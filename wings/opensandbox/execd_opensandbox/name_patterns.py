"""Patterns of a search. Pure.

OpenSandbox compares a pattern with the name of a file, not with its path. A pattern with a slash is
compared with the path below the searched directory. ``{a,b}`` stands for one pattern with each
part, and ``[^a]`` is ``[!a]``.
"""

from __future__ import annotations

import re

from execd.engine.engine_api import InvalidArgument

MAX_ALTERNATIVES = 32
"""Patterns that the braces of a search may stand for. More are 400.

Each pattern is a walk of the tree."""
BRACES = re.compile(r"\{([^{}]*)\}")


def name_globs(pattern: str) -> list[str]:
    """Return the globs of the engine that together mean ``pattern``. Raises InvalidArgument."""
    globs = []
    for alternative in _alternatives(pattern):
        plain = alternative.replace("[^", "[!")
        is_of_names = "/" not in plain and plain != "**"
        globs.append(f"**/{plain}" if is_of_names else plain)
    return globs


def _alternatives(pattern: str) -> list[str]:
    found = [pattern]
    while any(BRACES.search(one) for one in found):
        found = [expanded for one in found for expanded in _expand(one)]
        if len(found) > MAX_ALTERNATIVES:
            raise InvalidArgument(
                f"pattern: the braces stand for more than {MAX_ALTERNATIVES} patterns",
                field="pattern",
            )
    return list(dict.fromkeys(found))


def _expand(pattern: str) -> list[str]:
    """Replace the first braces by each of their parts."""
    match = BRACES.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [before + part + after for part in match[1].split(",")]
