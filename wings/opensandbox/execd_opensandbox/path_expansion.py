"""Paths of requests as OpenSandbox reads them: ``~`` and variables stand for their values. Pure.

Values come from the environment of the programs, as a shell of the sandbox would see them. A
variable that is not set stays as it is written, so that a name with a dollar sign names its file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from execd.engine.engine_api import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


def expand_path(path: str, variables: Mapping[str, str]) -> str:
    """Return the path for the engine. Raises InvalidArgument for an empty path."""
    if not path:
        raise InvalidArgument("path: empty", field="path")
    if path == "~" or path.startswith("~/"):
        path = variables.get("HOME", "/").rstrip("/") + path[1:]

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[0])

    return VARIABLE.sub(value, path)
