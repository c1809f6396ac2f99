"""glibc's malloc, in processes of their own: arenas, and the free memory between living objects."""

from __future__ import annotations

import math
import subprocess
import sys

from execd.allocator import ARENAS, PAUSE_SECONDS, MemoryReturn

COUNT_ARENAS = """
import ctypes, threading
from execd.allocator import limit_arenas
limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
everybody = threading.Barrier(12)

def take():
    everybody.wait()
    libc.malloc(2000)
    everybody.wait()

threads = [threading.Thread(target=take) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, libc.fopen(b"/proc/self/fd/1", b"w"))
libc.fflush(None)
"""
LEAVE_HOLES = """
import resource
from execd.allocator import MemoryReturn

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

blocks = [bytes(2000) for _ in range(20_000)]
kept = blocks[::50]
del blocks
before = resident_bytes()
MemoryReturn().step(0.0)
print(before - resident_bytes())
"""
HOLES_BYTES = 40_000_000


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_twelve_threads_share_two_arenas() -> None:
    assert run(COUNT_ARENAS).count("<heap nr=") == ARENAS


def test_the_holes_between_living_objects_go_back_to_the_kernel() -> None:
    assert int(run(LEAVE_HOLES)) > HOLES_BYTES / 2


def test_memory_goes_back_at_most_once_a_pause() -> None:
    memory_return = MemoryReturn()
    assert memory_return.step(1000.0) == math.inf
    assert memory_return.step(1000.0 + PAUSE_SECONDS / 2) == 1000.0 + PAUSE_SECONDS
    assert memory_return.step(1000.0 + PAUSE_SECONDS) == math.inf
    assert memory_return.step(1001.0 + PAUSE_SECONDS) == 1000.0 + 2 * PAUSE_SECONDS
