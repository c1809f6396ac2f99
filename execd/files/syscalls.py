"""System calls that the standard library lacks: statfs(2), renameat2(2), unshare(2), syncfs(2)."""

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

# linux/magic.h: file systems that are interfaces of the kernel. Not every pseudo file system is
# listed, only those where a file is a switch, a secret or a process.
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
    # f_type comes first and is as wide as a long on every 64-bit Linux. The rest has 120 bytes; the
    # struct leaves twice the room.
    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.POINTER(_Statfs))


def is_kernel_interface(fd: int) -> bool:
    """Whether the file lies on a kernel interface. ``fd`` may be O_PATH. Raises OSError."""
    found = _Statfs()
    if _libc.fstatfs(fd, ctypes.byref(found)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found.f_type & 0xFFFFFFFF in KERNEL_INTERFACES


def sync_file_system(fd: int) -> None:
    """Write all changed pages of the file system to its disk. ``fd``: of any file there, and not
    O_PATH. Raises OSError."""
    if _libc.syncfs(fd) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def rename_without_replacing(
    old_parent: int, old_name: bytes, new_parent: int, new_name: bytes
) -> None:
    """Rename a file, unless the new name is taken. Raises FileExistsError, OSError."""
    # Some C libraries have no wrapper, and some file systems have no such rename. Then a stat of
    # the new name just before the rename is the best available check.
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
    """Suspend the umask for the calling thread only.

    Where unshare(2) is forbidden (Docker's default seccomp profile) the umask stays in force.
    Afterwards the thread has its own working directory, which no code here changes.
    """
    if _libc.unshare(_CLONE_FS) != 0:
        yield
        return
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
