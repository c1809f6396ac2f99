"""What the standard library has no word for: the type of a file system (statfs(2)), a rename that
replaces nothing (renameat2(2)), and a umask for one thread (unshare(2))."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_RENAME_NOREPLACE = 1
_CLONE_FS = 0x200

# linux/magic.h: file systems that are interfaces of the kernel. What is meant is not every pseudo
# file system but those where a file is a switch, a secret or a process.
KERNEL_INTERFACES = frozenset(
    {
        0x9FA0,  # proc
        0x62656572,  # sysfs
        0x27E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0x62656570,  # configfs
        0xCAFE4A11,  # bpf
        0xDE5E81E4,  # efivarfs
        0x1CD1,  # devpts
    }
)


class _Statfs(ctypes.Structure):
    # f_type comes first and is as wide as a long on every 64-bit Linux; the rest (120 bytes) is
    # room, and then some.
    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.POINTER(_Statfs))


def is_kernel_interface(fd: int) -> bool:
    """Whether the file lies on one of those. ``fd`` may be O_PATH. Raises OSError."""
    found = _Statfs()
    if _libc.fstatfs(fd, ctypes.byref(found)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found.f_type & 0xFFFFFFFF in KERNEL_INTERFACES


def rename_without_replacing(
    old_parent: int, old_name: bytes, new_parent: int, new_name: bytes
) -> None:
    """Raises FileExistsError, OSError."""
    # Not every C library has a wrapper, and some file systems have no such rename: then a last look
    # is as good as it gets.
    renameat2 = getattr(_libc, "renameat2", None)
    if (
        renameat2 is not None
        and renameat2(old_parent, old_name, new_parent, new_name, _RENAME_NOREPLACE) == 0
    ):
        return
    error = ctypes.get_errno() if renameat2 is not None else errno.ENOSYS
    if error in (errno.ENOSYS, errno.EINVAL):
        try:
            os.stat(new_name, dir_fd=new_parent, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(old_name, new_name, src_dir_fd=old_parent, dst_dir_fd=new_parent)
            return
        error = errno.EEXIST
    raise OSError(error, os.strerror(error))


@contextlib.contextmanager
def no_umask() -> Iterator[None]:
    """In this block the calling thread, and no other, makes files with just the mode it names.

    Where unshare(2) is forbidden (Docker's default seccomp profile) the umask stays in force. The
    thread keeps a working directory of its own afterwards, which nobody here ever changes.
    """
    if _libc.unshare(_CLONE_FS) != 0:
        yield
        return
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
