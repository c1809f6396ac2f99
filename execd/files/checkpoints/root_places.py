"""The directories that a checkpoint may have for roots, and how they are found again.

A path of a caller is walked once, with its links. The checkpoint remembers the path without links,
and later opens it without following any: user code may have put a link in the place of a directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from execd.errors import ExecdError, InvalidArgument, NotFound, PermissionDenied
from execd.files.checkpoints.directories import open_below_slash
from execd.files.paths import blame, decode
from execd.files.resolve import held
from execd.files.root import Root, retry_on_change

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICES = "/dev"


class RootPlace(NamedTuple):
    """A directory to be scanned."""

    path: str
    """Absolute, without links."""
    directory: int
    """O_PATH; the caller's."""
    has_content: bool


def open_places(
    root: Root, roots: Sequence[str], watched: Sequence[str], stack: contextlib.ExitStack
) -> list[RootPlace]:
    """Open the directories of a request, which ``stack`` closes. The paths are as user code sees
    them. A directory below another is left out.

    Raises InvalidArgument and NotFound, which name the field.
    """
    places: list[RootPlace] = []
    fields = [(f"roots[{number}]", path, True) for number, path in enumerate(roots)]
    fields += [(f"watched[{number}]", path, False) for number, path in enumerate(watched)]
    for field, path, has_content in fields:
        try:
            found, directory = retry_on_change(partial(_open_place, root, path), path)
        except NotFound as error:
            raise NotFound(f"{field}: {error.message}", field=field) from None
        except ExecdError as error:
            raise InvalidArgument(f"{field}: {error.message}", field=field) from None
        stack.callback(os.close, directory)
        places.append(RootPlace(decode(found), directory, has_content))
    return [
        place
        for number, place in enumerate(places)
        if not any(_covers(other, place, is_earlier=at < number) for at, other in enumerate(places))
    ]


def _covers(other: RootPlace, place: RootPlace, *, is_earlier: bool) -> bool:
    if other.path == place.path:
        return is_earlier
    return (other.has_content or not place.has_content) and is_in(place.path, other.path)


def _open_place(root: Root, path: str) -> tuple[bytes, int]:
    """Raises NotFound, InvalidArgument, TreeChanged, OSError."""
    try:
        with root.resolve(path) as resolved:
            if not resolved.exists:
                raise NotFound(f"{path!r}: no such directory")
            if resolved.names:
                raise InvalidArgument(f"{path!r} is not a directory")
            found = b"/" + resolved.place
            if is_in(decode(found), DEVICES):
                raise InvalidArgument(f"{path!r} is a directory of devices")
            if any(is_in(os.path.realpath(own), decode(found)) for own in root.own_dirs):
                raise InvalidArgument(
                    f"{path!r} holds the files of execd; name the directories of your programs"
                )
            return found, os.dup(resolved.directory)
    except PermissionDenied:
        raise InvalidArgument(f"{path!r} is of the kernel, of execd, or above") from None


def is_in(path: str, directory: str) -> bool:
    """Whether a path is the directory, or lies below."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def open_again(path: str, *, makes: bool = False) -> int:
    """Open a root of a checkpoint (O_PATH). ``makes``: put a directory in the place of whatever
    user code has left there, and make missing directories above, as mkdir(1) would. Raises what
    ``blame`` returns."""
    try:
        try:
            return open_below_slash(path)
        except OSError as error:
            if not makes or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        return _make(path, 0o700, replaces=True)
    except OSError as error:
        raise blame(error, repr(path)) from error


def _make(path: str, mode: int = 0o777, *, replaces: bool = False) -> int:
    """Make a directory, and those above that are missing, and open it. Raises OSError."""
    above, name = os.path.split(path)
    try:
        parent = open_below_slash(above)
    except FileNotFoundError:
        parent = _make(above)
    with held(parent):
        if replaces:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
        os.mkdir(name, mode, dir_fd=parent)
    return open_below_slash(path)
