"""Mount points: names that no rename and no removal can change, and whose files lie elsewhere.

rename(2) fails with EXDEV between two mounts, even of one file system. On a mount point rename,
unlink and rmdir fail with EBUSY. The device number shows neither: a bind mount, or a second volume
on the same disk, has the number of its surroundings. So the kernel's list decides.
"""

from __future__ import annotations

import os
import re

_ESCAPE = re.compile(rb"\\([0-7]{3})")


def mount_points(directory: int) -> set[bytes]:
    """Return the mount points below an open directory, as paths relative to the directory.

    Mounts of other mount namespaces are not listed, and hinder no rename here. Raises OSError.
    """
    top = _path_of(directory).rstrip(b"/") + b"/"
    return {path[len(top) :] for path in _all() if path.startswith(top)} - {b""}


def mount_of(directory: int) -> bytes:
    """Return the mount point that an open directory is below, or is. The mount of a chroot's root
    may have none: b"". Raises OSError."""
    path = _path_of(directory).rstrip(b"/") + b"/"
    return max(
        (at for at in _all() if path.startswith(at.rstrip(b"/") + b"/")), key=len, default=b""
    )


def _all() -> list[bytes]:
    # proc(5): the fifth field is the mount point; blanks, tabs, newlines and backslashes are octal
    # escapes.
    with open("/proc/self/mountinfo", "rb") as file:
        return [
            _ESCAPE.sub(lambda escape: bytes((int(escape[1], 8),)), line.split(b" ", 5)[4])
            for line in file
        ]


def _path_of(directory: int) -> bytes:
    return os.fsencode(os.readlink(f"/proc/self/fd/{directory}"))
