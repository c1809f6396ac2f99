"""The dialects beyond port 8888: which were asked for, with which settings.

A *wing* is a distribution with dialects. Its entry points of the group ``execd.dialects`` name a
module for each dialect (``DialectModule``), which imports the wing's other modules in ``open``
only. Entry points are read only if a dialect is asked for: a daemon without dialects pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from execd.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.metadata import EntryPoint

    from execd.api.wire.port import PortContext, PortServer
    from execd.engine.engine import Engine

GROUP = "execd.dialects"
DISTRIBUTIONS = {
    "sandboxd-rest": "execd-sandboxd",
    "sandboxd-grpc": "execd-sandboxd",
    "opensandbox": "execd-opensandbox",
    "e2b-envd": "execd-e2b",
    "e2b-code": "execd-e2b",
}
"""The distributions of the wings that execd's repository has, for the advice to install them."""


class DialectModule(Protocol):
    """A dialect of a wing."""

    TITLE: str
    """The service, in the log line of the port: ``OpenSandbox``."""
    NAME: str
    """A word with underscores. The variable EXECD_<NAME>_<FIELD>, in capitals, sets a field of
    ``Settings``. Dialects of one name share their settings."""
    Settings: type[msgspec.Struct]
    """All fields have a default. Values are converted from text."""

    def open(self, engine: Engine, settings: Any, context: PortContext) -> PortServer:
        """Return the server of a port, which does not listen yet. ``settings``: a ``Settings``. The
        engine outlives the server."""


class Dialect(NamedTuple):
    """A dialect that was asked for."""

    module: DialectModule
    port: int
    settings: msgspec.Struct


def choose(
    ports: Sequence[tuple[str, int]], variables: Mapping[str, str], sources: Mapping[str, str]
) -> list[Dialect]:
    """Import the dialects of these names and ports, and check their settings. ``variables``: the
    environment. ``sources``: the flag or the variable that a user gave, by the name of a variable
    that stands for it. Raises ConfigError."""
    if not ports:
        return []
    installed = _installed()
    found = []
    for name, port in ports:
        if name not in installed:
            raise ConfigError(_not_installed(name, sorted(installed)))
        module: DialectModule = installed[name].load()
        found.append(Dialect(module, port, _read_settings(module, variables, sources)))
    return found


def _installed() -> dict[str, EntryPoint]:
    # The import costs 1 MiB and 10 ms.
    from importlib.metadata import entry_points

    return {each.name: each for each in entry_points(group=GROUP)}


def _not_installed(name: str, installed: list[str]) -> str:
    if name in DISTRIBUTIONS:
        return (
            f"--dialect: {name} is not installed; install the package {DISTRIBUTIONS[name]} beside "
            "execd"
        )
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
        field.name: f"EXECD_{module.NAME}_{field.name}".upper()
        for field in msgspec.structs.fields(module.Settings)
    }
    values = {
        field: variables[variable].strip()
        for field, variable in names.items()
        if variables.get(variable, "").strip()
    }
    try:
        return msgspec.convert(values, module.Settings, strict=False)
    except msgspec.ValidationError as error:
        text, _, where = str(error).rpartition(" - at `$.")
        variable = names.get(where.rstrip("`"), where)
        raise ConfigError(f"{sources.get(variable, variable)}: {text}") from None
