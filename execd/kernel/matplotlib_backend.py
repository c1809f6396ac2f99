"""Inline figures of matplotlib, without a line of user code and without importing matplotlib early.

An import hook selects the backend right after user code's import of matplotlib. The usual way is
MPLBACKEND in the environment; every program started by a cell would inherit the variable, and may
lack the inline backend.

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
    """The first finder of sys.meta_path. Delegates to the next finders and adds a step after the
    import of matplotlib."""

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
        del loader.exec_module  # the attribute of the instance, so the class's method is back
        execute(module)
        choose_backend(module)

    loader.exec_module = exec_module


def choose_backend(matplotlib: Any) -> None:
    """Select the inline backend, unless MPLBACKEND is set. Never fails user code's import."""
    if os.environ.get("MPLBACKEND"):
        return
    try:
        if importlib.util.find_spec("matplotlib_inline") is not None:
            matplotlib.rcParams["backend"] = BACKEND
    except Exception:  # a matplotlib without support for the backend keeps its default
        pass


def install_import_hook() -> None:
    """Install the finder once in this process."""
    if not any(isinstance(finder, _MatplotlibFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MatplotlibFinder())
