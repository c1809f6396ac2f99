"""Changes to the tree that move no bytes: make a directory, remove, move, set permissions.

Each names its object by a directory's descriptor and one name in it, from a walk of ``resolve``.
The kernel offers no way to remove or rename "what this descriptor is", so between the walk and the
call user code may put something else under that name: then that is what goes, and it is no less
inside the root than the other was. A link is removed or moved itself, never what it leads to.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from execd.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from execd.files.read import etag
from execd.files.resolve import TreeChanged, identity
from execd.files.root import Root, retry_on_change
from execd.files.syscalls import rename_without_replacing
from execd.files.tree_walk import Step, walk
from execd.model import NO_PRECONDITION

if TYPE_CHECKING:
    from execd.files.resolve import Forbidden, ResolvedPath
    from execd.model import Precondition


def make_directory(root: Root, path: str, *, mode: int | None = None, parents: bool = True) -> None:
    """Make the directory at ``path``. With ``parents`` missing ones are made too, and one that is
    there already will do.

    Raises Conflict (something is there), NotFound (no parent), InvalidArgument, PermissionDenied,
    NoSpace, ReadOnly.
    """

    def attempt() -> None:
        with root.resolve(path) as resolved:
            if resolved.exists:
                if parents and not resolved.names:
                    return
                raise Conflict(f"{path!r}: there is something already")
            if resolved.leaf_stat is not None:
                raise InvalidArgument(f"{path!r}: a parent is not a directory")
            if len(resolved.names) > 1 and not parents:
                raise NotFound(f"{path!r}: its parent does not exist")
            resolved.make_directories()
            try:
                os.mkdir(
                    resolved.names[0], 0o777 if mode is None else mode, dir_fd=resolved.directory
                )
            except (FileExistsError, FileNotFoundError):
                raise TreeChanged from None
            if mode is not None:
                with resolved.below(resolved.names[0]) as made:  # the umask took some of it
                    _chmod(made.directory, mode)

    retry_on_change(attempt, path)


def change_mode(root: Root, path: str, mode: int) -> None:
    """chmod(2) of what is at the end of ``path``'s links. Raises NotFound, PermissionDenied,
    InvalidArgument, ReadOnly."""

    def attempt() -> None:
        with root.resolve(path) as resolved:
            if not resolved.exists:
                raise NotFound(f"{path!r}: no such file or directory")
            _chmod(resolved.leaf if resolved.names else resolved.directory, mode)

    retry_on_change(attempt, path)


def _chmod(fd: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod(2) takes no O_PATH descriptor


def remove(
    root: Root, path: str, *, recursive: bool = False, precondition: Precondition = NO_PRECONDITION
) -> None:
    """Remove what is at ``path``; a link itself. ``recursive``: a directory with all that is in it;
    of the root, only that.

    What cannot be removed stays and is the error, after all the rest is gone. Raises NotFound,
    Conflict (a directory with something in it), PermissionDenied, PreconditionFailed, ReadOnly.
    """

    def attempt() -> None:
        with root.resolve(path, follow=False) as resolved:
            info = resolved.stat
            if info is None:
                raise NotFound(f"{path!r}: no such file or directory")
            precondition.check(etag(info), repr(path))
            if resolved.names:
                os.unlink(resolved.names[0], dir_fd=resolved.directory)
                return
            if resolved.is_root and not root.is_base_dir_only:
                raise Conflict("the root of the whole tree cannot be removed")
            if resolved.is_root and not recursive:
                raise Conflict(
                    "the root directory cannot be removed; pass recursive=true to empty it"
                )
            if recursive and (first := _empty(resolved.directory, resolved.forbidden)) is not None:
                raise first
            if resolved.is_root:
                return
            _rmdir(*resolved.parent())

    retry_on_change(attempt, path)


def _rmdir(parent: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            # sandboxd's words
            raise Conflict("directory is not empty; pass recursive=true to remove it") from None
        raise


def remove_below(parent: int, name: bytes, forbidden: Forbidden) -> None:
    """Remove a directory with all that is in it. Raises TreeChanged, OSError."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        first = _empty(fd, forbidden)
    finally:
        os.close(fd)
    if first is not None:
        raise first
    os.rmdir(name, dir_fd=parent)


def _empty(directory: int, forbidden: Forbidden) -> OSError | None:
    """Remove what is in it; why something stayed. Raises TreeChanged, OSError."""
    first: OSError | None = None
    for visit in walk(directory, forbidden):
        try:
            match visit.step:
                case Step.LEAF:
                    os.unlink(visit.name, dir_fd=visit.directory)
                case Step.LEAVE:
                    os.rmdir(visit.name, dir_fd=visit.directory)
                case Step.REFUSED if visit.error is None:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                case Step.REFUSED:
                    # what cannot be listed may be empty
                    os.rmdir(visit.name, dir_fd=visit.directory)
        except FileNotFoundError:
            pass  # user code was faster
        except OSError as error:
            # Of what follows, that its parents are not empty, the first is the reason.
            first = first or visit.error or error
    return first


def move(root: Root, source: str, target: str, *, overwrite: bool = False) -> None:
    """rename(2): ``target`` is the new name itself, never a directory to move into. Its missing
    parents are made.

    Raises NotFound, Conflict (something is at ``target`` and ``overwrite`` is not set, or it is a
    directory with something in it), InvalidArgument (into itself, or to another file system),
    PermissionDenied, ReadOnly.
    """

    def attempt() -> None:
        with (
            root.resolve(source, follow=False) as origin,
            root.resolve(target, follow=False) as resolved,
        ):
            if origin.stat is None:
                raise NotFound(f"{source!r}: no such file or directory")
            refuse_state_dir_below(root, origin)
            if not resolved.exists and resolved.leaf_stat is not None:
                raise InvalidArgument(f"{target!r}: a parent is not a directory")
            if not origin.names and resolved.passes(origin.directory_stat):
                if not resolved.names and identity(resolved.directory_stat) == identity(
                    origin.directory_stat
                ):
                    raise Conflict(f"{target!r}: is what is to be moved")
                raise InvalidArgument(f"{target!r}: a directory cannot be moved into itself")
            resolved.make_directories()
            (old_parent, old_name), (new_parent, new_name) = _located(origin), _located(resolved)
            # What rename(2) says of the two would be told of the first.
            if overwrite and resolved.exists and bool(origin.names) != bool(resolved.names):
                other = "a directory" if origin.names else "no directory"
                raise InvalidArgument(
                    f"{target!r}: is {other}, and what is to be moved is not of that kind"
                )
            if overwrite:
                os.rename(old_name, new_name, src_dir_fd=old_parent, dst_dir_fd=new_parent)
            else:
                try:
                    rename_without_replacing(old_parent, old_name, new_parent, new_name)
                except FileExistsError:
                    raise Conflict(
                        f"{target!r}: there is something already; pass overwrite=true to replace it"
                    ) from None

    retry_on_change(attempt, source)


def _located(resolved: ResolvedPath) -> tuple[int, bytes]:
    """The directory that what was landed on lies in, and its name there. Raises PermissionDenied
    (the root)."""
    return (resolved.directory, resolved.names[0]) if resolved.names else resolved.parent()


def refuse_state_dir_below(root: Root, resolved: ResolvedPath) -> None:
    """Raises PermissionDenied if the state dir lies in the directory: it would go along."""
    if resolved.names or root.state_dir is None:
        return
    path = os.path.realpath(root.state_dir)
    while path != "/":
        path = os.path.dirname(path)
        try:
            if identity(os.stat(path)) == identity(resolved.directory_stat):
                raise PermissionDenied("the daemon's state dir is in there")
        except OSError:
            continue
