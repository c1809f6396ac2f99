"""Keys in the keyrings of a user that no other test has."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process of its own: the real id of a thread changes, and the keys are another user's.
PROGRAM = """
import ctypes, hashlib, os, platform
from execd.proc import kernel_keys
os.setresgid(54399, 54399, 54399)
os.setresuid(54399, 54399, 54399)
libc = ctypes.CDLL(None, use_errno=True)
add = {"x86_64": 248, "aarch64": 217}[platform.machine()]
keyctl = kernel_keys.KEYCTL[platform.machine()]
unlink, set_permissions = 9, 5
before = kernel_keys.read_keys(54399)
assert kernel_keys.read_keys(54399) == before
key = libc.syscall(add, b"user", b"execd-left", b"one", 3, kernel_keys.USER)
assert key > 0, ctypes.get_errno()
first = kernel_keys.read_keys(54399)
assert any(f"{key:#x}" in words for words in first - before), first
assert libc.syscall(add, b"user", b"execd-left", b"two", 3, kernel_keys.USER) == key
assert kernel_keys.read_keys(54399) != first, "another content"
assert libc.syscall(keyctl, unlink, key, kernel_keys.USER) == 0
assert kernel_keys.read_keys(54399) == before
"""


@pytest.mark.root
@pytest.mark.linux_only("gVisor has no keyrings of users")
def test_a_key_of_the_user_is_found_until_it_is_gone() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
