"""/v1/files beyond a client's view: open descriptors, leftovers, and slow or lost peers."""

from __future__ import annotations

import asyncio
import io
import os
import random
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.api.conftest import Wire, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]

LARGE_BYTES = 64 << 20


def open_below(wire: Wire) -> list[str]:
    """List the paths below the base dir open in this process, removed files included."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(str(wire.base_dir)):
            found.append(target)
    return found


async def test_download_by_sendfile_is_whole_and_the_connection_goes_on(wire: Wire) -> None:
    content = random.Random(1).randbytes(1 << 20) * 5 + b"end"
    (wire.base_dir / "large").write_bytes(content)
    connection = await wire.connect()
    for _ in range(2):
        await connection.send(request_bytes("GET", "/v1/files/large"))
        answer = await connection.receive()
        assert (answer.http_status, answer.body == content) == (200, True)
        await connection.send(
            request_bytes("GET", "/v1/files/large", headers={"Range": "bytes=1000000-4000000"})
        )
        answer = await connection.receive()
        assert (answer.http_status, answer.body == content[1_000_000:4_000_001]) == (206, True)
    await wait_until(
        lambda: open_below(wire) == [],
        "the handler, which ends after its last byte, has closed the file",
    )


async def test_many_slow_downloads_all_arrive_whole(serve: Serve) -> None:
    wire = await serve(is_narrow=True)
    content = random.Random(1).randbytes(1 << 20)
    (wire.base_dir / "large").write_bytes(content)
    connections = [await wire.connect() for _ in range(20)]  # more than there are threads
    for connection in connections:
        await connection.send(request_bytes("GET", "/v1/files/large"))
    for connection in connections:
        assert (await connection.receive()).body == content


async def test_peer_that_leaves_a_download_leaves_nothing_open(wire: Wire) -> None:
    with open(wire.base_dir / "large", "wb") as file:
        file.truncate(LARGE_BYTES)
    connections = [await wire.connect() for _ in range(5)]
    for connection in connections:
        await connection.send(request_bytes("GET", "/v1/files/large"))
        await connection.reader.readexactly(1000)
    assert len(open_below(wire)) == 5
    for connection in connections:
        await connection.close()
    await wait_until(lambda: open_below(wire) == [], "nothing is open any more")


async def test_peer_that_takes_nothing_of_a_download_is_cut(serve: Serve) -> None:
    wire = await serve(stream_stall_seconds=0.2)
    with open(wire.base_dir / "large", "wb") as file:
        file.truncate(LARGE_BYTES)
    connection = await wire.connect()
    connection.writer.transport.pause_reading()
    await connection.send(request_bytes("GET", "/v1/files/large"))
    await wait_until(lambda: open_below(wire), "it is being sent")
    await wait_until(lambda: open_below(wire) == [], "it is given up")


async def test_file_that_becomes_shorter_during_its_download_cuts_the_connection(
    wire: Wire,
) -> None:
    path = wire.base_dir / "large"
    with open(path, "wb") as file:
        file.truncate(LARGE_BYTES)
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/v1/files/large"))
    await connection.reader.readexactly(1000)
    os.truncate(path, 10)
    connection.reader._limit = LARGE_BYTES  # type: ignore[attr-defined]
    read = await asyncio.wait_for(connection.reader.read(-1), 20)
    assert len(read) < LARGE_BYTES - 1000


async def test_peer_that_leaves_an_upload_leaves_the_old_file_and_no_temporary(wire: Wire) -> None:
    (wire.base_dir / "x").write_bytes(b"old")
    for target in ("/v1/files/x", "/v1/archive/x-dir?format=zip", "/v1/archive/y-dir"):
        connection = await wire.connect()
        await connection.send(
            request_bytes("PUT", target, headers={"Content-Length": "1000000"}) + bytes(1000)
        )
        await wait_until(lambda: len(os.listdir(wire.base_dir)) > 1, "a temporary is there")
        await connection.close()
        await wait_until(lambda: os.listdir(wire.base_dir) == ["x"], "the temporary is gone")
    assert (wire.base_dir / "x").read_bytes() == b"old"
    assert open_below(wire) == []


async def test_upload_that_is_too_large_is_refused_before_it_is_sent(serve: Serve) -> None:
    wire = await serve(max_upload_bytes=100)
    for target in ("/v1/files/x", "/v1/files/x?append=true", "/v1/archive/d"):
        connection = await wire.connect()
        await connection.send(request_bytes("PUT", target, headers={"Content-Length": "101"}))
        answer = await connection.receive()
        assert (answer.http_status, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (await wire.request("PUT", "/v1/files/x?offset=0", bytes(100))).http_status == 204
    assert (await wire.request("PUT", "/v1/files/x?append=true", b"x")).http_status == 413
    assert (await wire.request("PUT", "/v1/files/y", bytes(100))).http_status == 204


async def test_watch_that_is_left_holds_nothing(wire: Wire) -> None:
    (wire.base_dir / "d/e").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/v1/watch/d?recursive=true"))
    await connection.reader.readuntil(b"watching")
    assert len(open_below(wire)) >= 1
    await connection.close()
    await wait_until(
        lambda: open_below(wire) == [] and len(os.listdir("/proc/self/fd")) <= before,
        "it is all closed",
    )


async def test_watch_without_news_has_heartbeats(serve: Serve) -> None:
    wire = await serve(stream_heartbeat_seconds=0.1)
    connection = await wire.connect()
    await connection.send(request_bytes("GET", "/v1/watch/"))
    await asyncio.wait_for(connection.reader.readuntil(b": heartbeat\n"), 20)
    (wire.base_dir / "x").touch()
    await asyncio.wait_for(connection.reader.readuntil(b'"created"'), 20)


async def test_description_of_a_file_has_an_etag_and_that_of_a_directory_has_none(
    wire: Wire,
) -> None:
    (wire.base_dir / "x").touch()
    described = (await wire.request("GET", "/v1/fs/stat?path=x")).json()
    content = await wire.request("GET", "/v1/files/x")
    assert described["etag"] == content.headers["ETag"]
    assert "etag" not in (await wire.request("GET", "/v1/fs/stat?path=.")).json()


async def test_watch_of_a_base_dir_that_became_a_file_is_a_conflict(wire: Wire) -> None:
    away = wire.base_dir.with_name("away")
    wire.base_dir.rename(away)
    try:
        wire.base_dir.touch()
        answer = await wire.request("GET", "/v1/watch")
        assert (answer.http_status, answer.json()["code"]) == (409, "CONFLICT")
    finally:
        wire.base_dir.unlink()
        away.rename(wire.base_dir)


async def test_watch_with_an_unknown_parameter_is_refused_by_name(wire: Wire) -> None:
    answer = await wire.request("GET", "/v1/watch?recursiv=true")
    assert answer.http_status == 400
    assert answer.json()["message"] == (
        "recursiv: unknown field, did you mean recursive? known are: debounce_seconds, recursive"
    )


@pytest.mark.parametrize(
    ("query", "content_type"),
    [("", "application/zip"), ("", "text/plain"), ("?format=zip", "application/x-tar")],
)
async def test_format_of_an_archive_is_that_of_the_query_or_of_the_first_bytes(
    wire: Wire, query: str, content_type: str
) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("x", "content")
    headers = {"Content-Type": content_type}
    answer = await wire.request("PUT", f"/v1/archive/d{query}", raw.getvalue(), headers)
    assert (answer.http_status, answer.json()["files"]) == (200, 1)
    assert (wire.base_dir / "d/x").read_text() == "content"
