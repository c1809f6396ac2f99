"""Free ports for servers of tests and benchmarks. ``python3 tests/free_port.py`` prints one."""

from __future__ import annotations

import os
import secrets
import socket

PORTS = range(20_000, 32_768)
"""Below the ports that Linux gives to outgoing connections (``ip_local_port_range``). The kernel's
own choice (port 0) is one of those: between the choice and the server's start, a connection of
another test may take the port."""
N_TRIES = 200
N_WORKERS = 16


def free_port() -> int:
    """Return a port of 127.0.0.1 that no socket has now. Random, for tests that run at once; not
    by ``random``, which hypothesis seeds alike in each process. Each worker of pytest has ports of
    its own: until a server listens, its port is free for another worker too."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    ports = PORTS[int(worker) % N_WORKERS :: N_WORKERS] if worker else PORTS
    for _ in range(N_TRIES):
        port = secrets.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no free port in {N_TRIES} tries between {PORTS.start} and {PORTS.stop}")


if __name__ == "__main__":
    print(free_port())
