"""The environment of user code: built from scratch, so that no variable of the daemon leaks."""

from __future__ import annotations

import fnmatch
import os
import sys
from typing import TYPE_CHECKING

from execd.engine.executions import passwd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.config import Config

USUAL_DIRS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "EXECD_EXECUTION_ID"
PYTHON_NAMES = ("python", "python3")


def find_python(config: Config, search_path: str) -> str:
    """Return the interpreter for the name ``python``: the setting, else the first python3 outside
    execd's own environment."""
    if config.python is not None:
        return os.path.abspath(config.python)
    own = os.path.realpath(os.path.join(sys.prefix, "bin"))
    for directory in search_path.split(os.pathsep):
        candidate = os.path.join(directory, "python3")
        if directory and os.path.realpath(directory) != own and _is_program(candidate):
            return os.path.abspath(candidate)
    return sys.executable


def _is_program(path: str) -> bool:
    """Version managers put shell scripts named python3 on PATH: slow to start, and lost without
    variables of their own."""
    try:
        with open(path, "rb") as file:
            return os.access(path, os.X_OK) and file.read(4) == b"\x7fELF"
    except OSError:
        return False


def is_virtual_environment(python: str) -> bool:
    """A venv finds itself by pyvenv.cfg beside its bin (PEP 405), so a link to its python from
    elsewhere loses its packages."""
    return os.path.exists(os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg"))


class ChildEnvironment:
    """Makes the environment of each execution. The daemon's own is read once, at start."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        *,
        bin_dir: str,
        python: str,
        temporary_dir: str = "/tmp",
    ) -> None:
        first = os.path.dirname(python) if is_virtual_environment(python) else bin_dir
        passed = {
            name: value
            for name, value in environment.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in config.pass_env)
        }
        self._fixed = {
            "HOME": config.base_dir,
            "LANG": "C.UTF-8",
            "USER": _user_name(
                int(config.run_as.partition(":")[0]) if config.run_as else os.geteuid()
            ),
            **(_cpu_variables(config.pod_cpus) if config.pod_cpus else {}),
            **passed,
            "PATH": f"{first}:{passed.get('PATH', USUAL_DIRS)}",
            "TMPDIR": temporary_dir,
        }

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of every program."""
        return self._fixed

    def add(self, variables: Mapping[str, str]) -> None:
        """Give every later program these variables too. PATH, which finds ``python``, stays."""
        self._fixed = {**self._fixed, **variables, "PATH": self._fixed["PATH"]}

    def build(self, execution_id: str, requested: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """Return the environment, and the entry that marks the execution's processes. The entry
        comes first, where the warden's scan finds it soonest."""
        marker = {MARKER: execution_id}
        env = {**marker, **self._fixed, **requested, **marker}
        return env, marker_entry(execution_id)


def marker_entry(execution_id: str) -> str:
    """Return the entry of the environment that marks an execution's processes."""
    return f"{MARKER}={execution_id}"


def _user_name(uid: int) -> str:
    name = passwd.name_of(uid, passwd.PATH)
    # User code may have written the file: no NUL and no broken UTF-8 may come into the environment.
    return name if name and name.isprintable() else str(uid)


def _cpu_variables(pod_cpus: float) -> dict[str, str]:
    """Variables that size the pools of libraries. Libraries count the node's CPUs, and a pod's
    limit does not change that count."""
    cpus = str(max(1, int(pod_cpus)))
    return {"OMP_NUM_THREADS": cpus, "PYTHON_CPU_COUNT": cpus}
