"""Keys that a user's programs leave in the kernel: keyrings(7). For the daemon, which compares the
present with the time before any user code ran.

The user's own keyrings outlive every process of the user, and belong to a user namespace: where
user code has one of its own, its keys die with it. Nothing is removed here, because containers
without user namespaces share the keyrings of a user with each other and with the host.

Docker's and Kubernetes' default profiles refuse keyctl(2), to user code as to the daemon, and
gVisor has no such keyrings: then there is nothing to compare.
"""

from __future__ import annotations

import ctypes
import errno
import os

from execd.proc.spawn import check

# asm/unistd.h; linux/keyctl.h.
KEYCTL = {"x86_64": 250, "aarch64": 219}
SETRESUID = {"x86_64": 117, "aarch64": 147}
DESCRIBE, READ, GET_PERSISTENT = 6, 11, 22
THREAD, USER, USER_SESSION = -1, -4, -5
REFUSED = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)
UNREADABLE = "cannot be read"

_libc = ctypes.CDLL(None, use_errno=True)


def read_keys(uid: int) -> frozenset[str]:
    """Return all that the user's keyrings hold, in words that change with the content. Blocking.
    The calling thread acts as the user already, and ends after the call."""
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        return frozenset((f"keyrings: this machine's {UNREADABLE}",))
    if os.getuid() != uid:  # the kernel finds keyrings by the real id
        check(_libc.syscall(SETRESUID[os.uname().machine], uid, -1, -1))
    found: set[str] = set()
    todo = [(USER_SESSION, "user session keyring"), (USER, "user keyring")]
    persistent = _libc.syscall(number, GET_PERSISTENT, uid, THREAD, 0, 0)
    if persistent >= 0:
        todo.append((persistent, "persistent keyring"))
    elif ctypes.get_errno() not in REFUSED:
        found.add(f"the persistent keyring {UNREADABLE}")
    seen = set()
    while todo:
        key, where = todo.pop()
        if key in seen:
            continue
        seen.add(key)
        facts, payload = _ask(number, DESCRIBE, key), _ask(number, READ, key)
        if key < 0 and isinstance(payload, int):
            if payload not in REFUSED:
                found.add(f"the {where} {UNREADABLE}: {os.strerror(payload)}")
            continue
        # What a keyring holds is found one by one.
        is_ring = key < 0 or (isinstance(facts, bytes) and facts.startswith(b"keyring;"))
        if key >= 0 and key != persistent:  # which expires, and comes anew
            digest = _digest(facts, b"" if is_ring else payload)
            found.add(f"the key {key:#x} in the {where}, {digest}")
        if is_ring and isinstance(payload, bytes):
            ids = memoryview(payload[: len(payload) // 4 * 4]).cast("i")
            todo += [(one, where) for one in ids if one > 0]
        elif is_ring:
            found.add(f"the keyring {key:#x} in the {where} {UNREADABLE}")
    return frozenset(found)


def _ask(number: int, operation: int, key: int) -> bytes | int:
    """Return the answer, or the number of the error."""
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        n_bytes = _libc.syscall(number, operation, key, buffer, size, 0)
        if n_bytes < 0:
            return ctypes.get_errno()
        if n_bytes <= size:
            return buffer.raw[:n_bytes]
        size = n_bytes


def _digest(*parts: bytes | int) -> str:
    import hashlib  # see lean_imports

    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
