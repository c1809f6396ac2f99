"""The settings that a restored pod brings: /proc/gvisor/spec_environ."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from execd.config import ConfigError, environment_name, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.config import Config

log = logging.getLogger(__name__)

SPEC_ENVIRONMENT = "/proc/gvisor/spec_environ"
FOLLOWED = ("token_sha256", "pod_memory_bytes")
"""The settings that a restored pod may change."""


def parse(variables: bytes) -> dict[str, str]:
    """Read the variables, each of which ends in a NUL (proc_pid_environ(5))."""
    pairs = (os.fsdecode(variable).partition("=") for variable in variables.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


class SpecEnvironment:
    """The settings that a restored pod brings. Remembers the values of the last look.

    A restored process keeps the environment of its start. A gVisor of 2026 shows in this file what
    the pod's specification says now, as in /proc/self/environ (measured with runsc 20260905). Two
    settings follow: another pod has other callers, and perhaps another size.
    """

    def __init__(self, config: Config, path: str = SPEC_ENVIRONMENT) -> None:
        self._path = path
        self._settings = {name: getattr(config, name) for name in FOLLOWED}
        self._known = self._read() or dict.fromkeys(FOLLOWED)

    def changes(self) -> dict[str, object]:
        """Return the settings that have other values since the last look, by their names.

        A variable that is missing or cannot be used changes nothing: no pod loses its token. Nor
        does a variable that a flag has overruled.
        """
        if (found := self._read()) is None:
            return {}
        changes = {
            name: value
            for name, value in found.items()
            if value not in (None, self._known[name])
            and self._settings[name] in (None, self._known[name])
        }
        self._settings |= changes
        self._known = found
        return changes

    def _read(self) -> Mapping[str, object] | None:
        try:
            with open(self._path, "rb") as file:
                variables = parse(file.read())
            names = map(environment_name, FOLLOWED)
            config = load({}, {name: variables[name] for name in names if name in variables})
        except FileNotFoundError:
            return None  # this kernel has no such file
        except OSError as error:  # for example without a descriptor
            log.error("the settings of a pod cannot be read", extra={"error": str(error)})
            return None
        except ConfigError as error:
            log.error("a setting of the restored pod cannot be used", extra={"error": str(error)})
            return None
        return {name: getattr(config, name) for name in FOLLOWED}
