"""The environment of user code: built from scratch, so that no variable of the daemon leaks; or,
with ``--image-env on``, that of the image.

A variable of the image and a variable of the daemon lie in one environment. The families of
DAEMONS_PREFIXES configure the daemon and describe the pod. PROCESS_VARIABLES are of the shell that
started the daemon. All others are the image's.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING

from execd.engine.executions import passwd
from execd.proc.process_tree import read_environment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping, Sequence

    from execd.config import Config

USUAL_DIRS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = "EXECD_EXECUTION_ID"
PYTHON_NAMES = ("python", "python3")
OWN_PREFIX = "EXECD_"
"""Of the daemon's settings, and of the hash of the token. A pattern passes none of these on."""
DAEMONS_PREFIXES = (OWN_PREFIX, "SANDBOX_", "OTEL_", "KUBERNETES_")
PROCESS_VARIABLES = frozenset(("_", "OLDPWD", "PWD", "SHLVL"))
GIT = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
"""git refuses a repository in the directory of another user, such as the root of a volume. The
boundary of a sandbox is the pod, not the user."""
LOGIN_BASH = re.compile(
    r"\bbash(?:\s+[-+]\w{0,20}o\s+\w+|\s+-[\w-]*)*?"
    r"\s+(?:-[a-zA-Z]{0,20}l[a-zA-Z]{0,20}|--login)(?=\s|$)"
)
LOGIN_CHARACTERS = 4096
"""A command line is searched up to here."""
LOGIN_FILE = os.path.join(os.path.dirname(__file__), "login_shell.bash")


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
        python_variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``python_variables``: for programs of ``python``, where the image has no value."""
        self._first = os.path.dirname(python) if is_virtual_environment(python) else bin_dir
        passed = passed_on(config, environment)
        self.passed = tuple(sorted(passed))
        """The names of the variables that come from the daemon's environment."""
        self._is_images = config.image_env == "on"
        self._rest = passed.get("PATH") or USUAL_DIRS
        self._fixed = {
            "HOME": config.base_dir,
            "LANG": "C.UTF-8",
            "USER": _user_name(commands_uid(config)),
            **(_cpu_variables(config.pod_cpus) if config.pod_cpus else {}),
            **GIT,
            **passed,
            "PATH": self._search_path(passed.get("HOME", config.base_dir)),
            "TMPDIR": temporary_dir,
        }
        if self._first in self._fixed["PATH"].split(":"):
            self._fixed = {**python_variables, **self._fixed}
        if self._is_images:
            self._fixed["HOME"] = home_of_commands(config, environment)
            self._fixed["USER"] = _user_name(commands_uid(config))
            self._fixed["TMPDIR"] = passed.get("TMPDIR") or temporary_dir

    def _search_path(self, home: str) -> str:
        """Return PATH. pip puts programs below the home where the interpreter's own folders are
        read-only. An image's PATH stays as it is; an image without Python gets execd's at the
        end, behind all programs of the image."""
        if self._is_images:
            has_python = shutil.which("python3", path=self._rest) is not None
            return self._rest if has_python else f"{self._rest}:{self._first}"
        programs = f"{home}/.local/bin:" if home.startswith("/") and ":" not in home else ""
        return f"{self._first}:{programs}{self._rest}"

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of every program."""
        return self._fixed

    def add(self, variables: Mapping[str, str]) -> None:
        """Give every later program these variables too. PATH, which finds ``python``, stays."""
        self._fixed = {**self._fixed, **variables, "PATH": self._fixed["PATH"]}

    def build(
        self, execution_id: str, requested: Mapping[str, str], *, clears: bool = False
    ) -> tuple[dict[str, str], str]:
        """Return the environment, and the entry that marks the execution's processes. The entry
        comes first, where the warden's scan finds it soonest. ``clears``: the environment has no
        other variables than the requested."""
        marker = {MARKER: execution_id}
        fixed = {} if clears else self._fixed
        env = {**marker, **fixed, **requested, **marker}
        follows_home = not (self._is_images or clears)
        if "HOME" in requested and "PATH" not in requested and follows_home:
            env["PATH"] = self._search_path(requested["HOME"])
        return env, marker_entry(execution_id)


def keep_path_at_login(env: dict[str, str], argv: Sequence[str]) -> None:
    """Add what makes a login bash of a command line keep PATH, unless the environment has startup
    files of its own. /etc/profile sets PATH anew, so ``python`` would be another Python."""
    line = " ".join(argv)
    if "bash" not in line or "BASH_ENV" in env:
        return
    if LOGIN_BASH.search(line[:LOGIN_CHARACTERS]):
        env["BASH_ENV"] = LOGIN_FILE  # read by a bash with a command or a script
        env.setdefault("PROMPT_COMMAND", f". '{LOGIN_FILE}'")  # by a bash at a terminal
        env["EXECD_LOGIN_PATH"] = env.get("PATH", USUAL_DIRS)


def restore_locale(
    environment: MutableMapping[str, str], entries: Collection[bytes] | None = None
) -> None:
    """Set LC_CTYPE as in ``entries``, the environment at the start of this process (none where
    /proc tells nothing). The daemon's own Python changes LC_CTYPE where nothing names another
    locale than that of C (PEP 538), and programs of the image would see the change."""
    if entries is None:
        entries = read_environment(os.getpid())
    given = [entry for entry in entries if entry.startswith(b"LC_CTYPE=")]
    if given:
        environment["LC_CTYPE"] = os.fsdecode(given[0].partition(b"=")[2])
    elif entries:
        environment.pop("LC_CTYPE", None)


def passed_on(config: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the daemon's environment that commands see."""
    return {name: value for name, value in environment.items() if _is_passed(name, config)}


def _is_passed(name: str, config: Config) -> bool:
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in config.hide_env):
        return False
    is_images = not name.startswith(DAEMONS_PREFIXES) and name not in PROCESS_VARIABLES
    return (config.image_env == "on" and is_images) or any(
        name == pattern or (fnmatch.fnmatchcase(name, pattern) and not name.startswith(OWN_PREFIX))
        for pattern in config.pass_env
    )


def marker_entry(execution_id: str) -> str:
    """Return the entry of the environment that marks an execution's processes."""
    return f"{MARKER}={execution_id}"


def commands_uid(config: Config) -> int:
    """Return the user of commands."""
    return int(config.run_as.partition(":")[0]) if config.run_as else os.geteuid()


def home_of_commands(config: Config, environment: Mapping[str, str]) -> str:
    """Return HOME in an image: of the image's environment, else of passwd, else the base dir.

    Container runtimes set HOME for the user of the container. If commands run as another user, a
    HOME that is only the home of the daemon's user is none of the image.
    """
    uid, home = commands_uid(config), passed_on(config, environment).get("HOME", "")
    if uid != os.geteuid():
        daemons = passwd.entry_of(os.geteuid(), passwd.PATH)
        if home == ("/" if daemons is None else daemons.home):
            home = ""
    if not home:
        account = passwd.entry_of(uid, passwd.PATH)
        home = "" if account is None else account.home
        # User code may have written the file: see ``_user_name``.
        home = home if home.startswith("/") and home.isprintable() else ""
    return home or config.base_dir


def _user_name(uid: int) -> str:
    name = passwd.name_of(uid, passwd.PATH)
    # User code may have written the file: no NUL and no broken UTF-8 may come into the environment.
    return name if name and name.isprintable() else str(uid)


def _cpu_variables(pod_cpus: float) -> dict[str, str]:
    """Variables that size the pools of libraries. Libraries count the node's CPUs, and a pod's
    limit does not change that count."""
    cpus = str(max(1, int(pod_cpus)))
    return {"OMP_NUM_THREADS": cpus, "PYTHON_CPU_COUNT": cpus}
