"""A root with an outside folder next to the root, and helpers to drop privileges and to fill a
disk. The helpers work for root and for any user."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from execd.files.listing import Entry, open_listing
from execd.files.root import Root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base"
    path.mkdir()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_bytes(b"secret")
    return path


@pytest.fixture
def root(base: Path) -> Iterator[Root]:
    before = set(os.listdir("/proc/self/fd"))
    yield Root(str(base))
    assert set(os.listdir("/proc/self/fd")) == before, "descriptors leaked"


def unprivileged(call: Callable[[], Any]) -> Any:
    """Return or raise as ``call`` does where modes count. Root's right to ignore modes is a
    capability of a thread."""
    outcome: list[Any] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
        assert libc.capset(header, bytes(24)) == 0, os.strerror(ctypes.get_errno())
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


# Mounts in new namespaces: works for any uid, natively and in gVisor. Both ids are mapped to
# themselves: a tmpfs takes no files if the owner has no name in the namespace.
_ON_TMPFS = """
import ctypes, json, os, sys
mount_point, flags, script = sys.argv[1:]
uid, gid = os.getuid(), os.getgid()
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.unshare(0x10000000 | 0x20000))  # CLONE_NEWUSER | CLONE_NEWNS
try:
    with open("/proc/self/setgroups", "w") as f:
        f.write("deny")
except OSError:
    pass  # gVisor has no such file, and does not ask for it
for name, value in ("uid_map", uid), ("gid_map", gid):
    with open(f"/proc/self/{name}", "w") as f:
        f.write(f"{value} {value} 1")
check(libc.mount(b"tmpfs", mount_point.encode(), b"tmpfs", 0, b"size=256k,mode=777"))
if flags == "ro":
    MS_RDONLY, MS_REMOUNT = 1, 32
    check(libc.mount(b"tmpfs", mount_point.encode(), b"tmpfs", MS_RDONLY | MS_REMOUNT, None))
result = {}
exec(script, {"mount_point": mount_point, "result": result})
print(json.dumps(result))
"""


def on_small_tmpfs(mount_point: Path, script: str, *, read_only: bool = False) -> dict[str, Any]:
    """Run ``script`` in a process with a tmpfs of 256 KiB at ``mount_point``. Return the script's
    ``result``."""
    done = subprocess.run(
        [sys.executable, "-c", _ON_TMPFS, str(mount_point), "ro" if read_only else "rw", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def entries(root: Root, path: str) -> list[Entry]:
    """All pieces of a listing together."""
    with contextlib.closing(open_listing(root, path)) as listing:
        return list(itertools.chain.from_iterable(iter(listing.read, [])))
