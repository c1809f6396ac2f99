"""Which file systems are interfaces of the kernel, whose files act when they are opened, read or written (statfs(2))."""

from __future__ import annotations

import ctypes
import os

# linux/magic.h. What is meant is not every pseudo file system but those where a file is a switch, a secret or a process.
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
    # f_type comes first and is as wide as a long on every 64-bit Linux; the rest (120 bytes) is room, and then some.
    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.POINTER(_Statfs))


def is_kernel_interface(fd: int) -> bool:
    """Whether the file lies on one of those. ``fd`` may be O_PATH. Raises OSError."""
    found = _Statfs()
    if _libc.fstatfs(fd, ctypes.byref(found)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found.f_type & 0xFFFFFFFF in KERNEL_INTERFACES
