"""matplotlib draws inline without a line of user code, and is not imported until user code does it.

An import hook chooses the backend when matplotlib itself has been imported. The usual way,
MPLBACKEND in the environment, would be inherited by every program a cell starts, which may know no
such backend.

Runs in the user's interpreter: standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

BACKEND = "module://matplotlib_inline.backend_inline"


class _MatplotlibFinder(MetaPathFinder):
    """First of all finders. Finds nothing of its own: it asks the others, and wraps what they
    find."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "matplotlib":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                None if finder is self or find is None else find(fullname, path, target)
            )
            if spec is not None:
                if spec.loader is not None:
                    _choose_backend_after(spec.loader)
                return spec
        return None


def _choose_backend_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the instance's, that is this one
        execute(module)
        choose_backend(module)

    loader.exec_module = exec_module


def choose_backend(matplotlib: Any) -> None:
    """Unless the user's environment chose. Never in the way of the import itself."""
    if os.environ.get("MPLBACKEND"):
        return
    try:
        if importlib.util.find_spec("matplotlib_inline") is not None:
            matplotlib.rcParams["backend"] = BACKEND
    except Exception:  # a matplotlib that knows no such backend draws as it would anywhere
        pass


def install_import_hook() -> None:
    """For the life of the process. One that is there already is not doubled."""
    if not any(isinstance(finder, _MatplotlibFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MatplotlibFinder())
