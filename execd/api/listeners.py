"""The listeners of the daemon: the settings of their ports, and the dialect that each serves.

A dialect is imported only when the setting of a port asks for the dialect: a dialect that is off
costs neither memory nor time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from execd.api.wire.dialect import Dialect
    from execd.config import Config


class Listener(NamedTuple):
    """A dialect, and the ports that serve the dialect."""

    names: Mapping[str, str]
    """The name of the service in the log, by the setting of the port. The port without a name is
    the daemon's own."""
    load: Callable[[], Dialect]
    """Import the dialect."""

    def ports(self, config: Config) -> list[tuple[str, int]]:
        """Return the name and the port of each setting that is set."""
        found = ((name, getattr(config, setting)) for setting, name in self.names.items())
        return [(name, port) for name, port in found if port is not None]


def _port_8888() -> Dialect:
    from execd.api.routes import PORT_8888

    return PORT_8888


def _e2b() -> Dialect:
    from execd.api.e2b.table import E2B

    return E2B


def _opensandbox() -> Dialect:
    from execd.api.opensandbox.opensandbox_dialect import OPENSANDBOX

    return OPENSANDBOX


LISTENERS = (
    Listener({"e2b_envd_port": "E2B's envd", "e2b_code_port": "E2B's code interpreter"}, _e2b),
    Listener({"opensandbox_port": "OpenSandbox"}, _opensandbox),
    # Port 8888 comes last: "listening" is the line that everything is up.
    Listener({"sandboxd_rest_port": "sandboxd REST", "port": ""}, _port_8888),
)
