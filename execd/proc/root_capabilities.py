"""Capabilities of Linux (capabilities(7)): names, the set that a root command may have, and the two
kernel calls that take capabilities away from the calling process."""

from __future__ import annotations

import ctypes

from execd.proc.spawn import check

CAPABILITY_NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""By number, without CAP_ (linux/capability.h)."""

ROOT_CAPABILITIES = frozenset({
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP",
})  # fmt: skip
"""The capabilities that a command of root may have: the default set of containerd and Docker.

Every other capability leads out of the walls or past the limits: SYS_ADMIN uncovers mounts,
DAC_READ_SEARCH opens what mounts cover (open_by_handle_at), SYS_PTRACE traces the warden, SYS_TIME
sets the clock of the machine, SYS_RESOURCE raises limits."""

assert set(CAPABILITY_NAMES) >= ROOT_CAPABILITIES

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522


def capability_name(number: int) -> str:
    """The name without CAP_. A kernel newer than the table may know more capabilities; the name of
    an unknown capability is its number."""
    assert 0 <= number < 64, "capability sets have 64 bits"
    return CAPABILITY_NAMES[number] if number < len(CAPABILITY_NAMES) else str(number)


def numbers_of(mask: int) -> list[int]:
    """The numbers of the capabilities in a set of 64 bits, in ascending order."""
    return [number for number in range(64) if mask >> number & 1]


def drop_from_bounding_set(number: int) -> None:
    """Deny the capability to every program that this process or a child executes from now on.

    Raises OSError: EPERM without SETPCAP.
    """
    assert 0 <= number < 64, "capability sets have 64 bits"
    check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))


def clear_inheritable_capabilities() -> None:
    """Empty the inheritable set. Raises OSError.

    Exec adds the inheritable set to the capabilities of a root program, and the bounding set does
    not limit that part (capabilities(7)).
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # effective, permitted, inheritable of capabilities 0 to 31, then the same three of 32 to 63
    sets = (ctypes.c_uint32 * 6)()
    check(_libc.capget(header, sets))
    sets[2] = sets[5] = 0
    check(_libc.capset(header, sets))
