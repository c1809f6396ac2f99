"""jupyter_client and ipykernel, measured. Runs in the comparison's own environment, and prints
JSON.

kernels.py starts N [meminfo]   start N kernels: median start time, and median memory
kernels.py cells                a single kernel; for each line of standard input, a number N, the
                                time of N cells
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from typing import Any

from jupyter_client.manager import KernelManager


def used_bytes() -> int:
    """The whole memory in sight: inside gVisor, the sandbox's memory."""
    with open("/proc/meminfo") as file:
        found = dict(re.findall(r"^(\w+): +(\d+) kB$", file.read(), re.MULTILINE))
    return (int(found["MemTotal"]) - int(found["MemFree"])) * 1024


def private_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return (
            sum(
                int(size)
                for size in re.findall(r"^Private_\w+: +(\d+) kB$", file.read(), re.MULTILINE)
            )
            * 1024
        )


def start() -> tuple[Any, Any]:
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    return manager, client


def cell_ms(client: Any) -> float:
    began = time.perf_counter()
    client.execute_interactive("1+1", output_hook=lambda message: None, timeout=60)
    return (time.perf_counter() - began) * 1000


def starts(count: int, by_meminfo: bool) -> None:
    created, memory = [], []
    for _ in range(count):
        before = used_bytes()
        began = time.perf_counter()
        manager, client = start()
        created.append((time.perf_counter() - began) * 1000)
        cell_ms(client)
        memory.append(
            used_bytes() - before if by_meminfo else private_bytes(manager.provisioner.process.pid)
        )
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    figures = {"create_ms": created, "memory_mib": [size / (1 << 20) for size in memory]}
    print(json.dumps({name: statistics.median(values) for name, values in figures.items()}))


def cells() -> None:
    manager, client = start()
    for line in sys.stdin:
        print(json.dumps([cell_ms(client) for _ in range(int(line))]), flush=True)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


if sys.argv[1] == "starts":
    starts(int(sys.argv[2]), "meminfo" in sys.argv)
else:
    cells()
