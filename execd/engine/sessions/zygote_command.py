"""How the daemon starts a zygote: its command line and environment. The only part of the worker's
half that runs in the daemon.

The interpreter is the user's: it must find its own modules as if execd were not there. This package
is loaded by its path under its usual names, and the names are taken away again, so that ``import
execd`` in a cell finds what the user has, or nothing.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from execd import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Before anything is imported: '' is the working directory, and what users put there is not the
# standard library.
_PROGRAM = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json, types
for name, path in ("execd", []), ("execd.kernel", [sys.argv[1]]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from execd.kernel import zygote
zygote.main(*json.loads(sys.argv[2]))
"""

# Of the environment: the zygote's modules are the interpreter's own. A session's variables are
# applied when it is configured.
_LEFT_OUT = {
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONSAFEPATH",
    "MPLBACKEND",
}

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Large blocks of malloc's in transparent huge pages (glibc 2.35, MADV_HUGEPAGE), as numpy has its
arrays: see ``double_fork``. Other C libraries do not read it."""


def argv(python: str, preload: Sequence[str] = ()) -> list[str]:
    """The zygote's command line; descriptor 3 is its control channel.

    ``python``: path of the user's interpreter. ``preload``: names of modules to import before the
    first fork. Where the interpreter has no IPython of its own, it gets the one beside execd, if
    its version can import that.
    """
    return [
        python,
        "-c",
        _PROGRAM,
        kernel.__path__[0],
        json.dumps([_ipython_folder(), list(preload)]),
    ]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The zygote's environment, given that of a session: without what would let user code into the
    interpreter all sessions come from.

    Programs that sessions start get nothing of it: a worker has the environment that it is
    configured with.
    """
    kept = {name: value for name, value in env.items() if name not in _LEFT_OUT}
    tunables = ":".join(filter(None, (env.get("GLIBC_TUNABLES"), HUGE_PAGES)))
    return {**kept, "PYTHONUSERBASE": "/nonexistent", "GLIBC_TUNABLES": tunables}


def _ipython_folder() -> str | None:
    """Where execd's own IPython is. Found, not imported: it has no place in the daemon."""
    from importlib.util import find_spec

    spec = find_spec("IPython")
    return (
        os.path.dirname(os.path.dirname(spec.origin))
        if spec is not None and spec.origin is not None
        else None
    )
