"""Completions and variables of an idle session. Reads the namespace and evaluates only reprs.

Runs in the user's interpreter: Python 3.9, and IPython 8 or 9.
"""

from __future__ import annotations

import reprlib
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

from execd.kernel import mime_bundles

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.kernel.shell import Shell

REPR_CHARACTERS = 400
"""Longest name, type and repr of a listed variable."""
MAX_MATCHES = 1000
_SKIPPED_REPR = "<not asked for: this repr(), or one before it, took too long>"


def find_completions(shell: Shell, code: str, cursor: int) -> dict[str, Any]:
    """Return completions at ``cursor``, a position in characters. The matches replace
    code[cursor_start:cursor_end]."""
    cursor = min(cursor, len(code))
    start = code.rfind("\n", 0, cursor) + 1
    assert 0 <= start <= cursor
    end = code.find("\n", cursor)
    line = code[start:] if end < 0 else code[start:end]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, matches = shell.complete("", line, cursor - start)
    return {
        "matches": [str(match) for match in islice(matches, MAX_MATCHES)],
        "cursor_start": cursor - len(text),
        "cursor_end": cursor,
    }


class _Repr(reprlib.Repr):
    """Represents only the first few items of a container."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = REPR_CHARACTERS
        self.maxlong = 100
        self.maxlevel = 4

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(x[: self.maxstring], level)


_repr = _Repr().repr


def list_variables(shell: Shell, limit: int) -> dict[str, Any]:
    """Return user code's variables in the order of their creation, at most ``limit``.

    An interrupt during a repr does not end the listing: the remaining variables come without repr.
    """
    hidden = shell.user_ns_hidden
    nothing = object()
    names = [
        name
        for name, value in list(shell.user_ns.items())
        if isinstance(name, str)
        and not name.startswith("_")
        and hidden.get(name, nothing) is not value
    ]
    described: list[dict[str, Any]] = []
    was_interrupted = False
    for name in names[:limit]:
        value = shell.user_ns.get(name)
        described_variable: dict[str, Any] = {
            "name": mime_bundles.truncate(name, REPR_CHARACTERS),
            "type": "",
            "repr": _SKIPPED_REPR,
        }
        described.append(described_variable)
        try:
            described_variable["type"] = _describe(_type_name, value)
            if not was_interrupted:
                described_variable["repr"] = _describe(_repr, value)
                described_variable.update(_describe_size(value))
        except KeyboardInterrupt:  # the daemon interrupts a slow listing; list types without reprs
            was_interrupted = True
    assert len(described) <= len(names)
    return {"variables": described, "total": len(names)}


def _describe(describe: Callable[[object], str], value: object) -> str:
    try:
        return mime_bundles.truncate(describe(value), REPR_CHARACTERS)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # raised by user code's __repr__ or metaclass
        return f"<it raised {type(error).__name__}>"


def _describe_size(value: Any) -> dict[str, Any]:
    # type() and not isinstance(): isinstance would call user code's __class__.
    kind = type(value)
    try:
        if (
            str(kind.__module__).split(".")[0] in ("numpy", "pandas", "torch")
            and getattr(value, "shape", None) is not None
        ):
            return {"shape": [int(n) for n in value.shape]}
        if issubclass(kind, (str, bytes, list, tuple, dict, set, frozenset)):
            return {"length": len(value)}
    except Exception:  # user code's shape or __len__ raises
        pass
    return {}


def _type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
