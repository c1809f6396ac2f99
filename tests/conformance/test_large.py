"""Large files: every byte, in constant memory."""

from __future__ import annotations

import hashlib
import http.client
import random
from typing import TYPE_CHECKING

import pytest

from .target import LARGE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Run
    from .target import Target

MIB = 1 << 20
BLOCK = random.Random(20_261_121).randbytes(MIB)  # content, not a secret
SIZES = [
    pytest.param(64, id="64MiB"),
    pytest.param(
        2048,
        id="2GiB",
        marks=pytest.mark.skipif(not LARGE, reason="takes a minute: set EXECD_CONFORMANCE_LARGE=1"),
    ),
]
GROWTH_BYTES = 16 * MIB


def blocks(count: int) -> Iterator[bytes]:
    """``count`` different MiB."""
    for number in range(count):
        yield number.to_bytes(8, "big") + BLOCK[8:]


@pytest.mark.parametrize("size_mib", SIZES)
def test_round_trip_is_identical_and_memory_stays_flat(
    target: Target, run: Run, folder: str, size_mib: int
) -> None:
    name = f"{folder}/large.bin"
    head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    peak_bytes = before_bytes = target.resident_bytes() if target.pid else 0

    def watched(content: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal peak_bytes
        for number, block in enumerate(content):
            yield block
            if target.pid and number % 16 == 0:
                peak_bytes = max(peak_bytes, target.resident_bytes())

    def body() -> Iterator[bytes]:
        yield head
        for block in watched(blocks(size_mib)):
            wanted.update(block)
            yield block
        yield b"\r\n--b--\r\n"

    def received() -> Iterator[bytes]:
        while block := response.read(MIB):
            yield block

    wanted, found = hashlib.sha256(), hashlib.sha256()
    connection = http.client.HTTPConnection(*target.address, timeout=300)
    try:
        connection.request(
            "POST",
            "/upload",
            body(),
            {"Content-Type": "multipart/form-data; boundary=b"},
            encode_chunked=True,
        )
        response = connection.getresponse()
        assert (response.status, response.read()[:10]) == (200, b'{"message"')

        inside = run(f"sha256sum {name}", timeout_seconds=120)
        assert inside.stdout.split()[0] == wanted.hexdigest()

        connection.request("GET", f"/download/{name}")
        response = connection.getresponse()
        assert int(response.headers["content-length"]) == size_mib * MIB
        for block in watched(received()):
            found.update(block)
    finally:
        connection.close()
    assert found.hexdigest() == wanted.hexdigest()
    assert peak_bytes - before_bytes < GROWTH_BYTES
    assert run.out(f"ls -A {folder}") == "large.bin\n"


def test_range_beyond_four_gigabytes_is_served(target: Target, run: Run, folder: str) -> None:
    run.out(f"truncate -s 5G {folder}/sparse; printf end >> {folder}/sparse")
    answer = target.request(
        "GET", f"/download/{folder}/sparse", headers={"Range": f"bytes={5 << 30}-"}
    )
    assert (answer.http_status, answer.content) == (206, b"end")


def test_slow_reader_and_slow_writer_hold_up_no_one(target: Target, run: Run, folder: str) -> None:
    run.out(f"head -c 200000000 /dev/zero > {folder}/x")
    with target.connect() as reader, target.connect() as writer:
        reader.sendall(f"GET /download/{folder}/x HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        writer.sendall(
            b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
            b'Content-Disposition: form-data; name="file"; filename="'
            + folder.encode()
            + b'/y"\r\n\r\nsome'
        )
        for _ in range(20):
            assert run("echo hi").stdout == "hi\n"
    wait_until(
        lambda: run.out(f"ls -A {folder}") == "x\n", 5, "nothing of the unfinished upload is left"
    )
