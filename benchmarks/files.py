"""Large files: execd beside the FastAPI server and a bare copy between socket and file, natively
and inside gVisor.

    python -m benchmarks.files [--rounds N] [--runsc PATH] [--only native|gvisor]

1 GiB each way on a single connection over loopback; server and client share the machine's cores.
Each round starts every server afresh; the table shows medians over the rounds. The bare copy is
recv and write, and sendfile, in a blocking server without further work: the limit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import machine
from benchmarks.servers import Place, baseline_interpreter
from benchmarks.transfers import CHUNK, FILE_BYTES, connect, download, upload

if TYPE_CHECKING:
    from collections.abc import Iterator


def put(port: int, path: str = "/v1/files/large.bin") -> float:
    """Seconds for a PUT of the raw bytes."""
    with connect(port) as connection:
        started = time.perf_counter()
        connection.sendall(
            b"PUT %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), FILE_BYTES)
        )
        for _ in range(FILE_BYTES // len(CHUNK)):
            connection.sendall(CHUNK)
        answer = connection.recv(65536)
        assert answer.split()[1] in (b"200", b"204"), answer
        return time.perf_counter() - started


def get(port: int, path: str = "/v1/files/large.bin") -> float:
    """Seconds for a GET."""
    buffer = bytearray(1 << 20)
    with connect(port) as connection:
        started = time.perf_counter()
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        missing = FILE_BYTES - len(received.partition(b"\r\n\r\n")[2])
        while missing:
            count = connection.recv_into(buffer)
            assert count, "the connection was closed"
            missing -= count
        return time.perf_counter() - started


def peak_mib(pid: int) -> float:
    """VmHWM: the server's peak memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(place: Place, kind: str, found: dict[str, list[float]]) -> None:
    # A fresh server with an empty folder for each direction: a second gigabyte would pay for the
    # disk writes of the first.
    if kind != "copy":
        with _watched(place, kind, found) as port:
            found["multipart"].append(upload(port)["mb_per_second"])
            found["/download"].append(download(port)["mb_per_second"])
    if kind != "baseline":
        with _watched(place, kind, found) as port:
            found["PUT"].append(FILE_BYTES / 1e6 / put(port))
            found["GET"].append(FILE_BYTES / 1e6 / get(port))


@contextmanager
def _watched(place: Place, kind: str, found: dict[str, list[float]]) -> Iterator[int]:
    """The port of a server whose memory is sampled, where possible."""
    os.sync()
    with place.serving(kind) as server:
        before = peak_mib(server.pid)
        yield server.port
        if place.runsc is None:
            found["memory"].append(peak_mib(server.pid) - before)


def table(place: Place, rounds: int) -> str:
    found: dict[str, dict[str, list[float]]] = {
        kind: defaultdict(list) for kind in ("execd", "baseline", "copy")
    }
    kinds = list(found)
    for _ in range(rounds):
        for kind in kinds:
            measure(place, kind, found[kind])
        kinds = kinds[1:] + kinds[:1]
    median = {
        kind: {name: statistics.median(values) for name, values in figures.items()}
        for kind, figures in found.items()
    }
    execd, baseline, copy = median["execd"], median["baseline"], median["copy"]
    lines = [
        f"| {place.name}, MB/s | execd | baseline | ratio | bare copy | of it |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row, mine, theirs, limit in (
        ("upload, multipart", "multipart", "multipart", "PUT"),
        ("upload, PUT", "PUT", "multipart", "PUT"),
        ("download, /download", "/download", "/download", "GET"),
        ("download, GET", "GET", "/download", "GET"),
    ):
        lines.append(
            f"| {row} | {execd[mine]:.0f} | {baseline[theirs]:.0f} | "
            f"{execd[mine] / baseline[theirs]:.1f} "
            f"| {copy[limit]:.0f} | {execd[mine] / copy[limit]:.2f} |"
        )
    if place.runsc is None:
        lines.append(
            f"| memory gained meanwhile, MiB | {execd['memory']:.1f} | {baseline['memory']:.1f} | "
            "| | |"
        )
    return "\n".join(lines)


def serve_copy(port: int, folder: str) -> None:
    """The bare copy: a connection at a time, a request per connection, nothing checked."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                _answer(connection, os.path.join(folder, "large.bin"))


def _answer(connection: socket.socket, path: str) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(65536)
        if not data:
            return
        received += data
    if received.startswith(b"GET / "):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    elif received.startswith(b"PUT"):
        buffer = bytearray(1 << 20)
        with open(path, "wb", buffering=0) as file:
            left = FILE_BYTES - file.write(received.partition(b"\r\n\r\n")[2])
            while left:
                count = connection.recv_into(buffer)
                left -= file.write(memoryview(buffer)[:count])
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    else:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FILE_BYTES)
        with open(path, "rb") as file:
            connection.sendfile(file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--runsc", default=os.environ.get("RUNSC") or shutil.which("runsc"), help="default: on PATH"
    )
    parser.add_argument("--only", choices=["native", "gvisor"])
    args = parser.parse_args()
    baseline_interpreter()
    places = [Place()] if args.only != "gvisor" else []
    if args.runsc and args.only != "native":
        places.append(Place(args.runsc))
    print(f"{machine()}; servers and client share its CPUs. Medians of {args.rounds} rounds.\n")
    for place in places:
        print(table(place, args.rounds) + "\n", flush=True)


if __name__ == "__main__":
    main()
