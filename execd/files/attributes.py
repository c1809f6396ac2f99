"""Extended attributes that belong to the user (the class ``user`` of xattr(7)).

Not every file system has them. A file is then written without its attributes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


READ_BYTES = 4096
"""Read of a file's attributes, names without the prefix included. User code can give a file 64 KiB
in each of many attributes, and a listing holds many files."""


def set_attributes(fd: int, attributes: Mapping[str, bytes]) -> bool:
    """Set all ``attributes`` of a new file. Return whether the file has them: all, or none."""
    try:
        for name, value in attributes.items():
            assert name.startswith("user.")
            os.setxattr(fd, name, value)
    except OSError:
        for name in attributes:
            _remove(fd, name)
        return False
    return True


def _remove(fd: int, name: str) -> None:
    try:
        os.removexattr(fd, name)
    except OSError:
        pass  # the file has no such attribute


def read_attributes(
    directory: int, name: bytes, prefix: str, *, limit_bytes: int = READ_BYTES
) -> dict[str, bytes]:
    """Return the attributes of a file below an open directory whose names begin with ``prefix``.
    ``name`` empty: of ``directory`` itself, which may then be any open file. Attributes that would
    exceed ``limit_bytes`` are left out.

    No attributes: the file system has none, or the file is gone.
    """
    assert b"/" not in name
    # By the descriptor's magic link: there is no call for attributes relative to a descriptor, and
    # fgetxattr(2) refuses O_PATH descriptors. A link called ``name`` is not followed.
    path = f"/proc/self/fd/{directory}".encode() + (b"/" + name if name else b"")
    follows = not name
    found: dict[str, bytes] = {}
    left = limit_bytes
    try:
        for each in os.listxattr(path, follow_symlinks=follows):
            if not each.startswith(prefix):
                continue
            value = os.getxattr(path, each, follow_symlinks=follows)
            size_bytes = len(each) - len(prefix) + len(value)
            if size_bytes <= left:
                found[each] = value
                left -= size_bytes
    except OSError:
        return {}
    return found
