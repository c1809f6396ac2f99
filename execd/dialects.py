"""The dialects beyond port 8888: reads which dialects the settings ask for, and loads these.

A *wing* is a distribution with dialects. Its entry points of the group ``execd.dialects`` name a
module for each dialect (``DialectModule``), which imports the wing's other modules in ``open``
only. Entry points are read only if a dialect is asked for: a daemon without dialects pays nothing.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import msgspec

from execd.config import ConfigError, convert, flag, given, split_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from execd.api.wire.port import PortContext, PortServer
    from execd.engine.engine import Engine

GROUP = "execd.dialects"
FOLDERS = {
    "sandboxd-rest": "wings/sandboxd",
    "sandboxd-grpc": "wings/sandboxd",
    "opensandbox": "wings/opensandbox",
    "e2b-envd": "wings/e2b",
    "e2b-code": "wings/e2b",
}
"""The wings of execd's repository, for the advice to install them."""
PORT_FLAGS = {
    "sandboxd_rest_port": "sandboxd-rest",
    "sandboxd_grpc_port": "sandboxd-grpc",
    "e2b_envd_port": "e2b-envd",
    "e2b_code_port": "e2b-code",
    "opensandbox_port": "opensandbox",
}
"""Older settings, each of which is ``--dialect NAME=PORT``."""
INIT_VARIABLE = "EXECD_OPENSANDBOX_RUNTIME_INIT"
VARIABLE_FLAGS = {
    "e2b_open_contexts": "EXECD_E2B_OPEN_CONTEXTS",
    "opensandbox_line_ends": "EXECD_OPENSANDBOX_LINE_ENDS",
    "opensandbox_env_file": "EXECD_OPENSANDBOX_ENV_FILE",
    "runtime_init": INIT_VARIABLE,
}
"""Older settings, each of which is the variable of a dialect."""
MAX_PORT = 65535


class DialectModule(Protocol):
    """A dialect of a wing."""

    TITLE: str
    """The service, in the log line of the port: ``OpenSandbox``."""
    SETTINGS_NAME: str
    """A word with underscores. The variable EXECD_<SETTINGS_NAME>_<FIELD>, in capitals, sets a
    field of ``Settings``. Dialects of one name share their settings."""
    Settings: type[msgspec.Struct]
    """All fields have a default. Values are converted from text."""

    def open(self, engine: Engine, settings: Any, context: PortContext) -> PortServer:
        """Return the server of a port, which does not listen yet. ``settings``: a ``Settings``. The
        engine outlives the server."""


class ChosenDialect(NamedTuple):
    """A dialect that was asked for."""

    module: DialectModule
    port: int
    settings: msgspec.Struct


def choose(flags: Mapping[str, object], environment: Mapping[str, str]) -> list[ChosenDialect]:
    """Import the dialects that the flags and the environment ask for, and check their settings.
    Raises ConfigError."""
    ports = read_ports(flags, environment)
    variables, sources = read_variables(flags, environment)
    asks_for_init = variables.get(INIT_VARIABLE, "").strip().lower() not in ("", "0", "false")
    # A daemon that has to wait for an init, and lacks the route of the init, would serve everybody.
    if asks_for_init and "opensandbox" not in ports:
        raise ConfigError(
            f"{sources.get(INIT_VARIABLE, INIT_VARIABLE)}: needs --dialect opensandbox=PORT, whose "
            "route takes the init"
        )
    if not ports:
        return []
    installed = _installed(sys.path)
    found = []
    for name, port in ports.items():
        modules = installed.get(name, set())
        if not modules:
            raise ConfigError(_not_installed(name, sorted(installed)))
        if len(modules) > 1:
            raise ConfigError(
                f"--dialect: {name}: in two packages, {' and '.join(sorted(modules))}"
            )
        module = _import(name, *modules)
        found.append(ChosenDialect(module, port, _read_settings(module, variables, sources)))
    return found


def read_ports(flags: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, int]:
    """Return the ports by dialect. A flag wins over a variable, and ``--dialect`` over the older
    settings. Raises ConfigError."""
    found: dict[str, int] = {}
    nothing: Mapping[str, str] = {}
    for some_flags, variables in ((nothing, environment), (flags, nothing)):
        for name, dialect in PORT_FLAGS.items():
            port, source = given(name, some_flags, variables)
            if port is not None:
                found[dialect] = _parse_port(port, source)
        pairs, source = given("dialect", some_flags, variables)
        found |= _parse_ports(pairs or (), source)
    return found


def _parse_ports(pairs: object, source: str) -> dict[str, int]:
    """Raises ConfigError."""
    found: dict[str, int] = {}
    for pair in split_items(pairs):
        name, _, port = pair.partition("=")
        if not re.fullmatch("[a-z][a-z0-9-]{0,31}", name) or not port:
            raise ConfigError(f"{source}: {pair!r} is not NAME=PORT")
        if name in found:
            raise ConfigError(f"{source}: {name}: given twice; a dialect has one port")
        found[name] = _parse_port(port, f"{source}: {name}")
    return found


def _parse_port(value: object, source: str) -> int:
    """Raises ConfigError."""
    if not re.fullmatch("[0-9]{1,5}", str(value)) or int(str(value)) > MAX_PORT:
        raise ConfigError(f"{source}: {value!r} is no port from 0 to {MAX_PORT}")
    return int(str(value))


def read_variables(
    flags: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment with the older settings under the names of the dialects' variables,
    and for each of these the flag or the variable that was given. A flag wins over a variable, and
    of two variables the newer. Raises ConfigError."""
    variables, sources = dict(environment), {}
    for name, variable in VARIABLE_FLAGS.items():
        value, source = given(name, flags, environment)
        is_flag = source == flag(name)
        if is_flag and not str(value).strip():
            raise ConfigError(f"{source}: empty; give a value, or leave the flag out")
        if value is not None and (is_flag or not environment.get(variable, "").strip()):
            variables[variable], sources[variable] = str(value), source
    return variables, sources


def _installed(folders: Sequence[str]) -> dict[str, set[str]]:
    """Return the modules of each dialect's name. ``folders``: of ``sys.path``.

    Rejected: importlib.metadata, which costs 2.5 MiB and 30 ms. The format is that of the
    specification "Entry points" of the Python Packaging Authority.
    """
    found: dict[str, set[str]] = {}
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # an archive, or no folder
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                for dialect, module in _entry_points(os.path.join(folder, name)):
                    found.setdefault(dialect, set()).add(module)
    return found


def _entry_points(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the modules of the group."""
    try:
        # "replace": a package that has nothing to do with execd must not end the start.
        with open(f"{folder}/entry_points.txt", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif group == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, module = line.partition("=")
            yield name.strip(), module.strip()


def _import(name: str, module: str) -> DialectModule:
    try:
        return cast("DialectModule", importlib.import_module(module))
    except ImportError as error:
        raise ConfigError(f"--dialect: {name}: cannot import {module}: {error}") from None


def _not_installed(name: str, installed: list[str]) -> str:
    if name in FOLDERS:
        return f"--dialect: {name} is not installed; install {FOLDERS[name]} of execd's repository"
    known = f"installed are {', '.join(installed)}" if installed else "no dialect is installed"
    return (
        f"--dialect: no installed package has the dialect {name!r} (entry points of the group "
        f"{GROUP}); {known}"
    )


def _read_settings(
    module: DialectModule, variables: Mapping[str, str], sources: Mapping[str, str]
) -> msgspec.Struct:
    """Convert the variables of a dialect. A blank variable is unset, as everywhere."""
    names = {
        field.name: f"EXECD_{module.SETTINGS_NAME}_{field.name}".upper()
        for field in msgspec.structs.fields(module.Settings)
    }
    values = {
        field: variables[variable].strip()
        for field, variable in names.items()
        if variables.get(variable, "").strip()
    }
    given_as = {field: sources.get(variable, variable) for field, variable in names.items()}
    return convert(values, module.Settings, given_as)
