"""Changes to the tree that copy no bytes: make a directory, remove, move, change the mode.

Each call names a file by a directory's descriptor and a single name, from a walk of ``resolve``.
The kernel cannot remove or rename the file behind a descriptor. So there is a race: first the walk,
then user code puts another file under the name, then the call. The call then changes the other
file, which is inside the root just as well. A link itself is removed or moved, never the target.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from typing import TYPE_CHECKING

from execd.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from execd.files.mounts import mount_of, mount_points
from execd.files.paths import blame_below, decode
from execd.files.read import etag
from execd.files.resolve import TreeChanged, identity
from execd.files.root import Root, existing, retrying
from execd.files.syscalls import rename_without_replacing
from execd.files.tree_walk import Step, walk
from execd.files.write import replace
from execd.model import NO_PRECONDITION

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.resolve import Forbidden, ResolvedPath
    from execd.model import Precondition


@retrying
def make_directory(root: Root, path: str, *, mode: int | None = None, parents: bool = True) -> None:
    """Make the directory at ``path``. With ``parents`` also missing parents; an existing directory
    is no error.

    Raises Conflict (the path exists), NotFound (no parent), InvalidArgument, PermissionDenied,
    NoSpace, ReadOnly.
    """
    with root.resolve(path) as resolved:
        if resolved.exists:
            if parents and not resolved.names:
                return
            raise Conflict(f"{path!r}: there is something already; remove it, or use another path")
        if resolved.leaf_stat is not None:
            raise InvalidArgument(f"{path!r}: a parent is not a directory")
        if len(resolved.names) > 1 and not parents:
            raise NotFound(f"{path!r}: its parent does not exist")
        resolved.make_directories()
        try:
            os.mkdir(resolved.names[0], 0o777 if mode is None else mode, dir_fd=resolved.directory)
        except (FileExistsError, FileNotFoundError):
            raise TreeChanged from None
        if mode is not None:
            with resolved.below(resolved.names[0]) as made:  # mkdir applied the umask
                _chmod(made.directory, mode)


def change_mode(root: Root, path: str, mode: int) -> None:
    """Set the permission bits of the file at the end of ``path``'s links.

    Raises NotFound, PermissionDenied, InvalidArgument, ReadOnly.
    """

    _change(root, path, lambda fd: _chmod(fd, mode))


def change_owner(root: Root, path: str, uid: int | None, gid: int | None) -> None:
    """Set the owner and the group of the file at the end of ``path``'s links; None keeps a number.

    Raises NotFound, PermissionDenied, InvalidArgument, ReadOnly.
    """

    # chown(2): -1 keeps a number. As for chmod, fchown takes no O_PATH descriptor.
    owner = (-1 if uid is None else uid, -1 if gid is None else gid)
    _change(root, path, lambda fd: os.chown(f"/proc/self/fd/{fd}", *owner))


@retrying
def _change(root: Root, path: str, change: Callable[[int], None]) -> None:
    with root.resolve(path) as resolved:
        existing(resolved, path)
        change(resolved.leaf if resolved.names else resolved.directory)


def _chmod(fd: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod(2) takes no O_PATH descriptor


@retrying
def remove(
    root: Root, path: str, *, recursive: bool = False, precondition: Precondition = NO_PRECONDITION
) -> None:
    """Remove the file at ``path``; a link itself. ``recursive`` removes a directory with its
    content, and of the root only the content.

    An entry that cannot be removed stays, and the error, which names the entry, is raised after
    everything else is removed. Where a mount point is in the way nothing is removed. Raises
    NotFound, Conflict (a directory that is not empty, a mount point), PermissionDenied,
    PreconditionFailed, ReadOnly.
    """
    with root.resolve(path, follow=False) as resolved:
        precondition.check(etag(existing(resolved, path)), repr(path))
        if resolved.names:
            os.unlink(resolved.names[0], dir_fd=resolved.directory)
            return
        if resolved.is_root and not root.is_base_dir_only:
            raise Conflict("the root of the whole tree cannot be removed; name a path below it")
        if resolved.is_root and not recursive:
            raise Conflict("the root directory cannot be removed; pass recursive=true to empty it")
        if recursive:
            _refuse_mount_points(resolved, path)
            first_error = _remove_content(resolved.directory, resolved.forbidden)
            if first_error is not None:
                raise blame_below(first_error, path, first_error.filename)
        if resolved.is_root:
            return
        _rmdir(*resolved.parent())


def _refuse_mount_points(resolved: ResolvedPath, path: str) -> None:
    """Refuse to remove a tree in which the kernel will keep a directory or a file. Raises
    Conflict."""
    found = {posixpath.join(path, decode(point)) for point in mount_points(resolved.directory)}
    if not resolved.is_root:
        parent, name = resolved.parent()
        if name in mount_points(parent):
            found.add(path)
    if found:
        raise Conflict(
            f"{min(found)!r}: is a mount point, which cannot be removed, so nothing was removed; "
            "remove the files in it and beside it by their own paths"
        )


def _rmdir(parent: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            # sandboxd's words
            raise Conflict("directory is not empty; pass recursive=true to remove it") from None
        raise


def remove_below(parent: int, name: bytes, forbidden: Forbidden) -> None:
    """Remove a directory with its content. Raises TreeChanged, OSError."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        first_error = _remove_content(fd, forbidden)
    finally:
        os.close(fd)
    if first_error is not None:
        raise first_error
    os.rmdir(name, dir_fd=parent)


def _remove_content(directory: int, forbidden: Forbidden) -> OSError | None:
    """Remove a directory's content. Return why an entry stayed, else None: ``filename`` is the
    path of the entry below the directory. Raises TreeChanged, OSError."""
    first_error: OSError | None = None
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
                    # an unreadable directory may be empty
                    os.rmdir(visit.name, dir_fd=visit.directory)
        except FileNotFoundError:
            pass  # user code was faster
        except OSError as error:
            # The first error is the cause; the following errors only say that parents are not
            # empty.
            if first_error is None:
                first_error = visit.error or error
                first_error.filename = visit.path
    return first_error


@retrying
def move(root: Root, source: str, target: str, *, overwrite: bool = False) -> None:
    """Rename ``source`` to ``target``, the new name itself, never a directory to move into.

    Missing parents of ``target`` are made. A mounted file at ``target`` gets the content. Raises
    NotFound, Conflict (``target`` exists and ``overwrite`` is not set, ``target`` is a directory
    that is not empty, or a mount point), InvalidArgument (into itself, or to another file system),
    PermissionDenied, ReadOnly.
    """
    with (
        root.resolve(source, follow=False) as origin,
        root.resolve(target, follow=False) as resolved,
    ):
        existing(origin, source)
        refuse_own_dirs_below(root, origin)
        if not resolved.exists and resolved.leaf_stat is not None:
            raise InvalidArgument(f"{target!r}: a parent is not a directory")
        if not origin.names and resolved.is_in_or_below(origin.directory_stat):
            if not resolved.names and identity(resolved.directory_stat) == identity(
                origin.directory_stat
            ):
                raise Conflict(f"{target!r}: is what is to be moved; name another dest")
            raise InvalidArgument(f"{target!r}: a directory cannot be moved into itself")
        old_parent, old_name = _parent_and_name(origin)
        if len(resolved.names) > 1:  # rename(2) finds these errors after the parents are made
            if mount_of(old_parent) != mount_of(resolved.directory):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if old_name in mount_points(old_parent):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        resolved.make_directories()
        new_parent, new_name = _parent_and_name(resolved)
        # The error of rename(2) would be reported for ``source``, so the kinds are compared
        # here.
        if overwrite and resolved.exists and bool(origin.names) != bool(resolved.names):
            other = "a directory" if origin.names else "no directory"
            raise InvalidArgument(
                f"{target!r}: is {other}, and what is to be moved is not of that kind"
            )
        if overwrite:
            replace(old_parent, old_name, new_parent, new_name)
            _unlink_second_name(origin, resolved)
        else:
            try:
                rename_without_replacing(old_parent, old_name, new_parent, new_name)
            except FileExistsError:
                raise Conflict(
                    f"{target!r}: there is something already; pass overwrite=true to replace it"
                ) from None


def _parent_and_name(resolved: ResolvedPath) -> tuple[int, bytes]:
    """Return the parent's descriptor and the name of a walk's end. Raises PermissionDenied for the
    root."""
    return (resolved.directory, resolved.names[0]) if resolved.names else resolved.parent()


def _unlink_second_name(origin: ResolvedPath, target: ResolvedPath) -> None:
    """Remove the old name after a move to another name of the same file: rename(2) leaves both, but
    not in gVisor."""
    there, moved = target.leaf_stat, origin.leaf_stat
    if there is None or moved is None or identity(there) != identity(moved):
        return
    is_same_name = (origin.names, identity(origin.directory_stat)) == (
        target.names,
        identity(target.directory_stat),
    )
    # A file system that ignores the case of letters has a single link under both spellings.
    if moved.st_nlink > 1 and not is_same_name:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(origin.names[0], dir_fd=origin.directory)


def refuse_own_dirs_below(root: Root, resolved: ResolvedPath) -> None:
    """Refuse a directory that contains the state dir or the tree, which would move along. Raises
    PermissionDenied."""
    if resolved.names:
        return
    for own in root.own_dirs:
        path = os.path.realpath(own)
        while path != "/":
            path = os.path.dirname(path)
            try:
                if identity(os.stat(path)) == identity(resolved.directory_stat):
                    raise PermissionDenied("a directory of the daemon is in there")
            except OSError:
                continue
