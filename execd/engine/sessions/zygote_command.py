"""How the daemon starts a zygote: command line and environment.

The interpreter is the user's, and must find the user's modules as if execd were absent. The program
loads ``execd.kernel`` by path under the usual name, and the zygote removes the name again. So
``import execd`` in a cell finds the user's package of that name, or fails.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from execd import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Before the first import: '' in sys.path is the working directory, and a user's file there could
# take the place of a module of the standard library.
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

# Variables forbidden for the zygote: the zygote loads the interpreter's own modules only. A worker
# gets the session's variables when the worker is configured.
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
"""Put large blocks of malloc into transparent huge pages (glibc 2.35, MADV_HUGEPAGE), as numpy does
with arrays. For the reason see ``kernel.double_fork``. C libraries except glibc ignore this."""


def argv(python: str, preload: Sequence[str] = ()) -> list[str]:
    """Return the zygote's command line. Descriptor 3 is the control channel.

    ``python``: path of the user's interpreter. ``preload``: names of modules to import before the
    first fork. An interpreter without IPython gets the IPython installed beside execd, if the
    Python version allows.
    """
    return [
        python,
        "-c",
        _PROGRAM,
        kernel.__path__[0],
        json.dumps([_ipython_folder(), list(preload)]),
    ]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the zygote's environment, made from ``env``, the environment of a session.

    Variables that could load user code are left out, because all sessions are forked from this
    interpreter. Programs of sessions do not inherit the zygote's environment; a worker has the
    environment of the configuration.
    """
    kept = {name: value for name, value in env.items() if name not in _LEFT_OUT}
    tunables = ":".join(filter(None, (env.get("GLIBC_TUNABLES"), HUGE_PAGES)))
    return {**kept, "PYTHONUSERBASE": "/nonexistent", "GLIBC_TUNABLES": tunables}


def _ipython_folder() -> str | None:
    """Find the folder of the IPython beside execd. The daemon does not import IPython."""
    from importlib.util import find_spec

    spec = find_spec("IPython")
    return (
        os.path.dirname(os.path.dirname(spec.origin))
        if spec is not None and spec.origin is not None
        else None
    )
