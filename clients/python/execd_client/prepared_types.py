"""The first use of each type that the client decodes, at the import of the client.

msgspec 0.22 works out the fields of a Struct at the first use of the type, and shows the unfinished
list to other threads: two threads that use a type for the first time at once end the process with
SIGSEGV. A lock at the first use would not do: a fork by another thread would leave the lock locked
in the child, and a signal handler could wait for the code that the handler interrupted.
"""

from __future__ import annotations

import msgspec

from execd_client import models, results


def _types() -> set[type[msgspec.Struct]]:
    return {
        found
        for module in (models, results)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, msgspec.Struct)
    } - {msgspec.Struct}


for _kind in _types():
    msgspec.json.Decoder(_kind)
