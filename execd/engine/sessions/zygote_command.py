"""How the daemon starts a zygote: command line and environment.

The interpreter is the user's, and must find the user's modules as if execd were absent. The program
loads ``execd.kernel`` by path under the usual name, and the zygote removes the name again. So
``import execd`` in a cell finds the user's package of that name, or fails.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from execd import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Python 2.7 can run this text up to the exit, too: the frame "began" tells the daemon the version.
# Before the first import: '' in sys.path is the working directory, and a user's file there could
# take the place of a module of the standard library.
_PROGRAM = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json, os, struct, types
began = json.dumps(
    {"type": "began", "version": list(sys.version_info[:3]), "folders": sys.path}
).encode()
os.write(3, struct.pack(">I", len(began)) + began)
if sys.version_info < (3, 9):
    sys.exit()
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

IPYTHON_FOLDERS = os.path.join(sys.prefix, "share", "execd", "ipython")
"""For interpreters without IPython: a folder for each range of Python versions, made by
``image/make-ipython``. A plain ``pip install`` of execd makes none."""

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Put large blocks of malloc into transparent huge pages (glibc 2.35, MADV_HUGEPAGE), as numpy does
with arrays. For the reason see ``kernel.double_fork``. C libraries except glibc ignore this."""


def argv(python: str, preload: Sequence[str] = ()) -> list[str]:
    """Return the zygote's command line. Descriptor 3 is the control channel.

    ``python``: path of the user's interpreter. ``preload``: names of modules to import before the
    first fork. An interpreter without IPython gets the IPython of a folder in IPYTHON_FOLDERS.
    """
    return [
        python,
        "-c",
        _PROGRAM,
        kernel.__path__[0],
        json.dumps([IPYTHON_FOLDERS, list(preload)]),
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
