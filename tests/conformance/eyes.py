"""Independent eyes on a sandbox: what files, processes and objects of the kernel there are.

The judge of resets (``test_pollutions.py``, ``reset_rounds.py``) believes nothing that execd says,
so nothing here shares code with execd: files are walked by descriptors, read and hashed anew, and
processes are looked for in /proc of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FOLDER = READ | os.O_DIRECTORY
CHUNK_BYTES = 1 << 20
GET_FLAGS = 0x80086601
WATCHED_FLAGS = 0x10 | 0x20
"""FS_IOC_GETFLAGS of linux/fs.h, and the flags "immutable" and "append only"."""
WATCHED_ATTRIBUTES = ("user.", "system.posix_acl_", "security.capability")


class Finding(NamedTuple):
    """Something that is not as before."""

    kind: str
    """"file", "process", "socket", "object", "shm", "mount", "state"."""
    what: str
    """The path of a file, the pid of a process, otherwise words that a difference must have."""
    words: str


class Facts(NamedTuple):
    """All of a file that a program could change, but for what no program can set back."""

    kind: int
    mode: int
    owner: tuple[int, int]
    size: int
    content: bytes
    """The digest of a file, the target of a link, or why it could not be read."""
    modified_ns: int
    attributes: tuple[tuple[bytes, bytes], ...]
    n_links: int
    links: tuple[bytes, ...]
    """All names of the same file in the tree."""


def see_files(root: str, *, is_watched: bool = False) -> dict[bytes, Facts]:
    """All names below the root, and the root itself (b""). ``is_watched``: without the times of
    directories, which change when a file was made and removed again."""
    found: dict[bytes, Look] = {}
    try:
        top = os.open(root, FOLDER)
    except OSError as error:
        info = os.lstat(root) if os.path.lexists(root) else None
        if info is None:
            return {}
        found[b""] = (info, _reason(error), ())
    else:
        try:
            found[b""] = (os.fstat(top), b"", _attributes(top))
            # The parents stay open: a path may be longer than the kernel takes.
            _see_below(top, b"", found)
        finally:
            os.close(top)
    groups: dict[tuple[int, int], list[bytes]] = {}
    for path, (info, _, _) in found.items():
        if not stat.S_ISDIR(info.st_mode):
            groups.setdefault((info.st_dev, info.st_ino), []).append(path)
    seen = {}
    for path, (info, content, attributes) in found.items():
        is_folder, is_file = stat.S_ISDIR(info.st_mode), stat.S_ISREG(info.st_mode)
        seen[path] = Facts(
            stat.S_IFMT(info.st_mode),
            stat.S_IMODE(info.st_mode),
            (info.st_uid, info.st_gid),
            info.st_size if is_file else 0,
            content,
            0 if is_watched and is_folder else info.st_mtime_ns,
            attributes,
            0 if is_folder else info.st_nlink,
            tuple(sorted(groups.get((info.st_dev, info.st_ino), ()))),
        )
    return seen


Look = tuple[os.stat_result, bytes, tuple[tuple[bytes, bytes], ...]]


def _see_below(top: int, start: bytes, found: dict[bytes, Look]) -> None:
    stack = [(os.dup(top), start)]
    try:
        while stack:
            folder, path = stack.pop()
            try:
                for name in os.listdir(f"/proc/self/fd/{folder}".encode()):
                    below = path + b"/" + name if path else name
                    with contextlib.suppress(FileNotFoundError):  # removed at this moment
                        found[below], inner = _see_one(folder, name)
                        if inner >= 0:
                            stack.append((inner, below))
            finally:
                os.close(folder)
    finally:
        for folder, _ in stack:
            os.close(folder)


def _see_one(folder: int, name: bytes) -> tuple[Look, int]:
    """With the descriptor of a directory, or -1."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except PermissionError as error:
        return (os.fstat(folder), _reason(error), ()), -1
    is_folder = stat.S_ISDIR(info.st_mode)
    try:
        if stat.S_ISLNK(info.st_mode):
            return (info, os.readlink(name, dir_fd=folder), ()), -1
        if not is_folder and not stat.S_ISREG(info.st_mode):
            return (info, b"", ()), -1
        fd = os.open(name, FOLDER if is_folder else READ, dir_fd=folder)
    except OSError as error:  # not readable, or another one by now
        return (info, _reason(error), ()), -1
    if is_folder:
        return (info, b"", _attributes(fd)), fd
    try:
        return (info, _hash(fd), _attributes(fd)), -1
    finally:
        os.close(fd)


def _reason(error: OSError) -> bytes:
    return f"unreadable: {error.strerror}".encode()


def _hash(fd: int) -> bytes:
    digest = hashlib.sha256()
    while data := os.read(fd, CHUNK_BYTES):
        digest.update(data)
    return digest.digest()


def _attributes(fd: int) -> tuple[tuple[bytes, bytes], ...]:
    found = []
    with contextlib.suppress(OSError):
        found.extend(
            (name.encode(), os.getxattr(fd, name))
            for name in os.listxattr(fd)
            if name.startswith(WATCHED_ATTRIBUTES)
        )
    flags = 0
    with contextlib.suppress(OSError):  # a file system without flags
        flags = struct.unpack("=q", fcntl.ioctl(fd, GET_FLAGS, bytes(8)))[0] & WATCHED_FLAGS
    if flags:
        found.append((b"flags", bytes((flags,))))
    return tuple(sorted(found))


def compare_files(
    root: str, before: dict[bytes, Facts], after: dict[bytes, Facts]
) -> Iterator[Finding]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        full = f"{root}/{os.fsdecode(path)}" if path else root
        if old is None:
            words = "is new"
        elif new is None:
            words = "is gone"
        else:
            words = ", ".join(
                f"{field}: {was!r} and now {now!r}"
                for field, was, now in zip(Facts._fields, old, new, strict=True)
                if was != now
            )
        yield Finding("file", full, words)


# --- processes


class Process(NamedTuple):
    pid: int
    start: int
    parent: int
    is_dead: bool
    name: str


def see_processes() -> dict[int, Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                first, _, rest = file.read().rpartition(b")")
                fields = rest.split()
                found[int(name)] = Process(
                    int(name),
                    int(fields[19]),
                    int(fields[1]),
                    fields[0] in b"ZX",
                    first.partition(b"(")[2].decode(errors="replace"),
                )
    return found


def below(pid: int, processes: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def signs(pid: int, marks: tuple[bytes, ...], namespaces: Container[str]) -> str:
    """Why a process must be of the sandbox of these marks; empty: nothing says so."""
    folder = f"/proc/{pid}"
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            data = file.read()
            for mark in marks:
                if mark in data:
                    return f"{mark.decode()} in {name}"
    with contextlib.suppress(OSError):
        if os.readlink(f"{folder}/ns/pid") in namespaces:
            return "in the PID namespace of a former warden"
    return ""
