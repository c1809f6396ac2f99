"""The program ``execctl``. Its packages are the extra ``cli``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

REFUSED = 125
"""The exit code when execd cannot be reached, or refuses; docker and chroot use the same."""
STANDARD_MODES = "rww"
"""How a process uses the descriptors 0, 1 and 2."""


def main() -> None:
    """The entry point. Without the extra, say how to install it."""
    _open_missing_descriptors()
    try:
        if find_spec("prompt_toolkit") is None:  # the import would take 50 ms
            raise ModuleNotFoundError(name="prompt_toolkit")
        from execd_client.cli.program import execctl
    except ModuleNotFoundError as missing:
        print(
            f"execctl: the package {missing.name} is missing. Install the command line with\n"
            "    pip install 'execd-client[cli]'",
            file=sys.stderr,
        )
        sys.exit(REFUSED)
    execctl()


def _open_missing_descriptors() -> None:
    """A standard descriptor that the caller has closed becomes /dev/null. Else the next descriptor
    that is made, for example a connection, would get the number and be read as the input."""
    for number, mode in enumerate(STANDARD_MODES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "open() takes the lowest free descriptor (POSIX)"
            stream = os.fdopen(number, mode, closefd=False)
            setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
