"""Copy a file, or a directory with its content, to another name under the same root.

A file is copied like an upload: whole, under a temporary name, then put in place. A directory
appears at once and fills. Links are copied as links. Permission bits are kept; owners and times are
new. Holes of a file stay holes. FIFOs, sockets and devices are left out and counted, since reading
them does not give their content.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from execd.errors import Conflict, InvalidArgument, PreconditionFailed
from execd.files import write
from execd.files.paths import blame_below
from execd.files.resolve import TreeChanged, identity, open_directory, reopen
from execd.files.root import Root, existing, retrying
from execd.files.syscalls import rename_without_replacing
from execd.files.tree_walk import Step, Visit, walk
from execd.files.write import COPIED_AT_ONCE_BYTES, TEMPORARY_PREFIX, Writing
from execd.model import NO_PRECONDITION, Precondition

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.files.resolve import Forbidden, ResolvedPath
    from execd.files.root import Room

STAT_BLOCK_BYTES = 512  # stat(2): the unit of st_blocks
# A descriptor for each level. A program cannot open a path with more names than half of PATH_MAX.
MAX_DEPTH = 2048
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Copied(msgspec.Struct):
    """The counts of a copy."""

    n_files: int = 0
    n_directories: int = 0
    n_links: int = 0
    n_bytes: int = 0
    n_skipped: int = 0
    """FIFOs, sockets, devices, and files that vanished or may not be served."""


@retrying
def copy(
    root: Root,
    source: str,
    target: str,
    *,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Copied:
    """Copy to ``target``, the new name itself; missing parents are made. Directories are merged.

    Ends early if ``stop`` returns True; the part copied so far stays. Raises NotFound, Conflict
    (the target exists), InvalidArgument (into itself), PermissionDenied, NoSpace, ReadOnly.
    """

    def copy_to(directory: int, origin: ResolvedPath, mode: int | None) -> Copied:
        return copy_tree(
            origin.directory,
            directory,
            origin.forbidden,
            source_path=source,
            mode=mode,
            overwrite=overwrite,
            stop=stop,
            room=root.room_of(directory),
        )

    with root.resolve(source) as origin:
        info = existing(origin, source)
        if stat.S_ISREG(info.st_mode):
            return _copy_single_file(root, origin, target, overwrite, stop)
        if origin.names:
            raise InvalidArgument(f"{source!r} is neither a regular file nor a directory")
        with root.resolve(target) as resolved:
            if resolved.is_in_or_below(info):
                raise InvalidArgument(f"{target!r}: a directory cannot be copied into itself")
            if resolved.exists and not overwrite:
                raise _target_exists(target)
            if resolved.names and resolved.leaf_stat is not None:
                raise InvalidArgument(f"{target!r}: is not a directory, or a parent of it is not")
            if resolved.names:
                resolved.make_directories()
                try:
                    os.mkdir(resolved.names[0], 0o700, dir_fd=resolved.directory)
                except (FileExistsError, FileNotFoundError):
                    raise TreeChanged from None
                with resolved.below(resolved.names[0]) as made:
                    return copy_to(made.directory, origin, info.st_mode)
            return copy_to(resolved.directory, origin, None)


def _target_exists(target: str) -> Conflict:
    return Conflict(f"{target!r}: there is something already; pass overwrite=true to replace it")


def _copy_single_file(
    root: Root, origin: ResolvedPath, target: str, overwrite: bool, stop: Callable[[], bool]
) -> Copied:
    assert origin.leaf_stat is not None
    fd = reopen(origin.leaf, os.O_RDONLY)
    try:
        with root.resolve(target) as resolved:
            if resolved.leaf_stat is not None and identity(resolved.leaf_stat) == identity(
                origin.leaf_stat
            ):
                raise Conflict(f"{target!r}: is what is to be copied; name another dest")
        draft = write.create(
            root,
            target,
            Writing(
                mode=stat.S_IMODE(origin.leaf_stat.st_mode) & 0o777,
                precondition=NO_PRECONDITION if overwrite else Precondition(none_match="*"),
            ),
        )
        try:
            n_bytes = copy_bytes(fd, draft.write, draft.skip, stop)
            draft.commit()
        finally:
            draft.abort()
        return Copied(n_files=1, n_bytes=n_bytes)
    except PreconditionFailed:
        raise _target_exists(target) from None
    finally:
        os.close(fd)


def copy_bytes(
    source: int,
    put: Callable[[bytes], object],
    skip: Callable[[int], object],
    stop: Callable[[], bool],
) -> int:
    """Copy a file from the beginning. ``skip`` gets the lengths of holes. Return the size."""
    info = os.fstat(source)
    at, end = 0, 0 if info.st_blocks * STAT_BLOCK_BYTES < info.st_size else sys.maxsize
    while True:
        if at == end:
            start, end = _next_data(source, at)
            if start > at:
                skip(start - at)
            at = os.lseek(source, start, os.SEEK_SET)
        data = os.read(source, min(COPIED_AT_ONCE_BYTES, end - at))
        if not data:
            return at
        if stop():
            raise Conflict("the copy was given up; repeat the request")
        put(data)
        at += len(data)


def _next_data(file: int, at: int) -> tuple[int, int]:
    """Return the start and the end of the next data at or after ``at``; twice the size of the
    file if there is only a hole."""
    try:
        start = os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        start = os.lseek(file, 0, os.SEEK_END)
        return start, start
    return start, os.lseek(file, start, os.SEEK_HOLE)


def copy_tree(
    source: int,
    target: int,
    forbidden: Forbidden,
    *,
    source_path: str,
    mode: int | None,
    overwrite: bool = False,
    stop: Callable[[], bool] = lambda: False,
    room: Room | None = None,
    keeps_times: bool = False,
) -> Copied:
    """Copy the content of the directory ``source`` into the directory ``target``, which gets
    ``mode`` at the end. ``source_path`` is for errors. ``keeps_times``: files get the time of the
    last change of the content.

    Each directory of the copy is held open, so the way up is never "..". Raises as ``copy``.
    """
    done = Copied(n_directories=1)
    # The mode is set once a directory is complete, since the mode may forbid writing.
    made: list[tuple[int, int | None]] = []
    try:
        made.append((reopen(target, os.O_RDONLY | os.O_DIRECTORY), mode))
        for visit in walk(source, forbidden, TEMPORARY_PREFIX):
            if stop():
                break
            try:
                match visit.step:
                    case Step.ENTER:
                        assert visit.info is not None
                        if len(made) > MAX_DEPTH:
                            raise InvalidArgument(
                                f"what is to be copied is more than {MAX_DEPTH} directories deep"
                            )
                        child, is_new = _enter(made[-1][0], visit.name)
                        made.append((child, visit.info.st_mode if is_new else None))
                        done.n_directories += 1
                    case Step.LEAVE:
                        assert len(made) > 1, "the walk never leaves the top"
                        _leave(*made.pop())
                    case Step.LEAF:
                        _copy_leaf(visit, made[-1][0], overwrite, done, stop, room, keeps_times)
                    case Step.REFUSED if visit.error is not None:
                        raise visit.error
                    case Step.REFUSED:
                        done.n_skipped += 1
            except OSError as error:
                raise blame_below(error, source_path, visit.path) from error
    except TreeChanged:
        # a second attempt would meet the files of the first attempt
        raise Conflict("what is to be copied was moved meanwhile; repeat the request") from None
    finally:
        while made:
            _leave(*made.pop())
    return done


def _enter(parent: int, name: bytes) -> tuple[int, bool]:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        is_new = True
    except FileExistsError:
        is_new = False
    return open_directory(name, parent), is_new


def _leave(fd: int, mode: int | None) -> None:
    try:
        if mode is not None:
            os.fchmod(fd, stat.S_IMODE(mode) & 0o3777)
    finally:
        os.close(fd)


def _copy_leaf(
    visit: Visit,
    target: int,
    overwrite: bool,
    done: Copied,
    stop: Callable[[], bool],
    room: Room | None,
    keeps_times: bool,
) -> None:
    assert visit.info is not None
    temporary = TEMPORARY_PREFIX + secrets.token_hex(8).encode()
    try:
        if stat.S_ISLNK(visit.info.st_mode):
            os.symlink(os.readlink(visit.name, dir_fd=visit.directory), temporary, dir_fd=target)
            done.n_links += 1
        elif stat.S_ISREG(visit.info.st_mode):
            done.n_bytes += _copy_file(visit, target, temporary, stop, room, keeps_times)
            done.n_files += 1
        else:
            done.n_skipped += 1
            return
    except FileNotFoundError:
        done.n_skipped += 1  # removed meanwhile
        return
    try:
        if overwrite:
            write.replace(target, temporary, target, visit.name)
        else:
            rename_without_replacing(target, temporary, target, visit.name)
    except BaseException:
        os.unlink(temporary, dir_fd=target)
        raise


def _copy_file(
    visit: Visit,
    target: int,
    temporary: bytes,
    stop: Callable[[], bool],
    room: Room | None,
    keeps_times: bool,
) -> int:
    source, info = visit.open_file()
    try:
        made = os.open(temporary, _CREATE, 0o600, dir_fd=target)

        def put(data: bytes) -> None:
            if room is not None:
                room.take(len(data))
            write.write_all(made, data)

        try:
            n_bytes = copy_bytes(source, put, partial(write.leave_hole, made), stop)
            os.fchmod(made, stat.S_IMODE(info.st_mode) & 0o777)
            if keeps_times:
                os.utime(made, ns=(info.st_atime_ns, info.st_mtime_ns))
            return n_bytes
        except BaseException:
            os.unlink(temporary, dir_fd=target)
            raise
        finally:
            os.close(made)
    finally:
        os.close(source)
