"""The meaning of paths, and of the kernel's errors about paths. Pure."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterable

from execd.errors import (
    Conflict,
    ExecdError,
    Internal,
    InvalidArgument,
    NoSpace,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    ReadOnly,
    ResourceExhausted,
)

Readings = Callable[[bytes, Iterable[bytes]], tuple[bytes, ...]]
"""Maps a path as sent, and the names of the base dir, to the possible meanings: paths to walk from
the root, the preferred meaning first."""

# PATH_MAX counts the final NUL. User code could not open a longer path either.
MAX_PATH_BYTES = 4095

# NAME_MAX of every file system in use. execd checks the length itself, since the kernel checks no
# name below a missing directory.
MAX_NAME_BYTES = 255


def denied() -> PermissionDenied:
    # The exact text is the python-runtime's; tests of clients compare the text. The message names
    # no path: a peer must not learn whether an outside path exists.
    return PermissionDenied("Access denied")


def blame(error: OSError, subject: str) -> ExecdError:
    """Translate an OSError into the ExecdError that says who has to act.

    Messages quote paths by repr: a path may hold newlines, and surrogates that no JSON encoder
    takes.
    """
    reason = f"{subject}: {os.strerror(error.errno) if error.errno else error}"
    match error.errno:
        case errno.ENOENT:
            return NotFound(reason)
        case errno.EACCES | errno.EPERM:
            return PermissionDenied(reason)
        case errno.ENAMETOOLONG:
            return InvalidArgument(f"{reason} (a name may have at most {MAX_NAME_BYTES} bytes)")
        case errno.EISDIR:
            return InvalidArgument(f"{subject} is a directory")
        case errno.ENOTDIR:
            return InvalidArgument(f"{subject}: a parent is not a directory")
        case errno.EINVAL | errno.EILSEQ:
            return InvalidArgument(f"{reason} (this file system refuses the name)")
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace(reason)
        case errno.EROFS:
            return ReadOnly(reason)
        case errno.EFBIG:
            return PayloadTooLarge(
                f"{reason}: the file system or the daemon's file size limit ends before it"
            )
        case errno.EBUSY:
            return Conflict(
                f"{reason}, as a mount point, which can be neither moved, replaced nor removed; "
                "name the files in it"
            )
        case errno.ETXTBSY | errno.ENOTEMPTY | errno.EEXIST | errno.EAGAIN:
            return Conflict(reason)
        case errno.EXDEV:
            return InvalidArgument(
                f"{subject}: cannot be moved to another file system; copy it, then remove it"
            )
        case errno.EMFILE | errno.ENFILE | errno.ENOMEM:
            return ResourceExhausted(reason)
    return Internal(reason)


def blame_below(error: OSError, top: str, below: bytes) -> ExecdError:
    """Translate an error about a file below the directory ``top``."""
    return blame(error, repr(posixpath.join(top, decode(below[-MAX_PATH_BYTES:]))))


def encode(path: str) -> bytes:
    """Return the bytes of ``path`` as they came over the wire. Raises PermissionDenied,
    InvalidArgument.

    Not os.fsencode: fsencode follows the locale of the daemon, and the wire is always UTF-8.
    """
    if len(path) > MAX_PATH_BYTES:  # before any message quotes the path
        raise InvalidArgument(f"a path may have at most {MAX_PATH_BYTES} bytes")
    if "\0" in path:
        raise denied()  # the python-runtime's answer
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"path {path!r} has a surrogate that stands for no byte") from None
    if len(raw) > MAX_PATH_BYTES:
        raise InvalidArgument(f"a path may have at most {MAX_PATH_BYTES} bytes")
    if any(len(name) > MAX_NAME_BYTES for name in raw.split(b"/")):
        raise InvalidArgument(f"{path!r}: a name in a path may have at most {MAX_NAME_BYTES} bytes")
    return raw


def decode(name: bytes) -> str:
    """The inverse of ``encode``."""
    return name.decode("utf-8", "surrogateescape")


def readings(path: bytes, base_names: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the possible meanings of ``path``, the preferred meaning first.

    A meaning is a path of the whole tree, or relative to the base dir. A leading slash means the
    base dir (sandboxd and the python-runtime agree). But user code prints absolute paths below the
    base dir, and agents send them back, so such a path means itself. The python-runtime's meaning,
    base/app/x for /app/x, is the second. "Below" is judged on the normalised path and at component
    borders: /app2/x is not below /app.
    """
    if not path.startswith(b"/"):
        return (path,)
    relative = path.lstrip(b"/")
    normal = os.path.normpath(b"/" + relative)
    for base in base_names:
        if normal == base or normal.startswith(base.rstrip(b"/") + b"/"):
            return (b"/" + relative, relative)
    return (relative,)


def sandboxd_readings(path: bytes, base_names: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return only the preferred of the ``readings``: a path below the base dir means itself, also
    if missing."""
    return readings(path, base_names)[:1]


def absolute_readings(path: bytes, base_names: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the path as user code means the path: absolute, or relative to the base dir."""
    return (path if path.startswith(b"/") else next(iter(base_names)) + b"/" + path,)
