"""The Pythons that may serve sessions, in order of preference; ``python`` of commands leads to the
first.

The image's Python has the packages of the image, so it comes before execd's own. Whether a Python
can serve shows only when it starts (``sessions.interpreter_choice``).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from execd.model import Interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.config import Config

CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Where images keep the certificates of authorities: Debian, Alpine and BSD, Fedora."""


def find(config: Config, search_path: str, own: str) -> tuple[Interpreter, ...]:
    """Return the interpreters that ``--python`` allows, at least one. ``search_path``: PATH of the
    image. ``own``: the Python that runs execd."""
    if config.python not in ("auto", "image", "own"):
        return (Interpreter(os.path.abspath(config.python), "setting", "--python names it"),)
    if config.python == "own":
        return (Interpreter(own, "own", "--python own"),)
    image = _on_path(config, search_path, os.path.dirname(own))
    if image is not None:
        found = Interpreter(image, "image", "the first python3 on PATH")
        if config.python == "image":
            return (found,)
        return (found, Interpreter(own, "own", "the image's Python cannot serve sessions"))
    if config.python == "image":
        # A name without a path: a start fails with the words of a missing program, until the image
        # has one.
        return (Interpreter("python3", "image", "--python image"),)
    return (Interpreter(own, "own", "the image has no python3 on PATH"),)


def _on_path(config: Config, search_path: str, own_dir: str) -> str | None:
    """Return the first python3 outside execd's own environment."""
    for directory in search_path.split(os.pathsep):
        candidate = os.path.join(directory, "python3")
        if (
            directory
            and os.path.realpath(directory) != os.path.realpath(own_dir)
            and _is_program(candidate, may_be_script=config.image_env == "on")
        ):
            return os.path.abspath(candidate)
    return None


def _is_program(path: str, *, may_be_script: bool) -> bool:
    """Version managers put shell scripts named python3 on PATH: slow to start, and lost without
    variables of their own, which only ``--image-env on`` passes."""
    try:
        # User code may have left a FIFO of the name, whose opening waits for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        is_elf = is_file and os.read(fd, 4) == b"\x7fELF"
        return is_file and os.access(path, os.X_OK) and (is_elf or may_be_script)
    except OSError:
        return False
    finally:
        os.close(fd)


def certificates_for_tree(tree: str | None) -> dict[str, str]:
    """Return SSL_CERT_FILE for the tree's Python, whose OpenSSL looks where the Debian of its build
    keeps certificates. Any other Python is at home where it runs."""
    files = () if tree is None else CERTIFICATES
    return next(({"SSL_CERT_FILE": path} for path in files if os.path.isfile(path)), {})


def for_own_python(env: Mapping[str, str], certificates: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a session on execd's own Python. PYTHONHOME is of the image's
    Python, and no other Python starts with it."""
    kept = {name: value for name, value in env.items() if name != "PYTHONHOME"}
    return {**certificates, **kept}
