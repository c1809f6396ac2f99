"""The file routes of the python-runtime dialect."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from execd.api.python_runtime import handlers
from tests.api.conftest import Wire, multipart, request_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]


def names(wire: Wire) -> list[bytes]:
    """Every file below the base dir."""
    root = os.fsencode(wire.base_dir)
    return sorted(
        os.path.relpath(os.path.join(at, name), root)
        for at, _, found in os.walk(root)
        for name in found
    )


# --- upload


async def test_filename_that_is_not_utf_8_is_kept_and_shown_with_a_stand_in(wire: Wire) -> None:
    answer = await wire.upload(b"\xff.bin", b"x")
    assert answer.json() == {"message": "File '\ufffd.bin' uploaded successfully."}
    assert names(wire) == [b"\xff.bin"]


async def test_other_parts_are_skipped_and_the_last_file_counts(wire: Wire) -> None:
    parts = [
        (b'name="x"', b"1"),
        (b'name="file"; filename="a"', b"2"),
        (b'name="y"; filename="b"', b"3"),
        (b'name="file"; filename="c"', b"4"),
        (b'name="z"', b"5"),
    ]
    body = b"".join(multipart(*part)[0].removesuffix(b"--b--\r\n") for part in parts) + b"--b--"
    answer = await wire.request("POST", "/upload", body, multipart(b"", b"")[1])
    assert answer.json() == {"message": "File 'c' uploaded successfully."}
    assert names(wire) == [b"c"]
    assert (wire.base_dir / "c").read_bytes() == b"4"


async def test_upload_over_its_limit_is_413_and_leaves_nothing(serve: Serve) -> None:
    wire = await serve(max_upload_bytes=1000)
    assert (await wire.upload("a", b"x" * 1000)).http_status == 200
    answer = await wire.upload("b", b"x" * 1001)
    assert answer.http_status == 413
    assert answer.json()["message"].startswith("File upload failed: ")
    assert names(wire) == [b"a"]


async def test_limit_of_json_bodies_is_not_that_of_uploads(serve: Serve) -> None:
    wire = await serve(max_body_bytes=1000)
    assert (await wire.upload("a", b"x" * 100_000)).http_status == 200


async def test_file_part_without_a_filename_is_422(wire: Wire) -> None:
    answer = await wire.request("POST", "/upload", *multipart(b'name="file"', b"x"))
    assert answer.http_status == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "file"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/upload"), ("PUT", "/v1/files/a")])
async def test_multipart_body_of_over_1000_parts_is_400_and_leaves_nothing(
    wire: Wire, method: str, path: str
) -> None:
    part = multipart(b'name="file"; filename="a"', b"x")[0].removesuffix(b"--b--\r\n")
    headers = multipart(b"", b"")[1]
    answer = await wire.request(method, path, part * 1001 + b"--b--", headers)
    assert answer.http_status == 400
    assert "over 1000 parts" in answer.json()["message"]
    assert list(wire.base_dir.iterdir()) == []
    answer = await wire.request(method, path, part * 1000 + b"--b--", headers)
    assert answer.http_status in (200, 204)


async def test_multipart_without_a_boundary_is_400(wire: Wire) -> None:
    answer = await wire.request("POST", "/upload", b"x", {"Content-Type": "multipart/form-data"})
    assert (answer.http_status, answer.json()) == (
        400,
        {"detail": "Missing boundary in multipart."},
    )


# --- download


async def test_file_that_shrinks_meanwhile_ends_the_connection(wire: Wire) -> None:
    # More than the buffers of both sockets hold: the server is still sending when the file is cut.
    size = 64 << 20
    with (wire.base_dir / "a").open("wb") as file:
        file.truncate(size)
        connection = await wire.connect()
        await connection.send(request_bytes("GET", "/download/a"))
        async with asyncio.timeout(10):
            head = await connection.reader.readuntil(b"\r\n\r\n")
        file.truncate(1000)
    assert f"Content-Length: {size}".encode() in head
    received = 0
    async with asyncio.timeout(20):
        try:
            while data := await connection.reader.read(1 << 20):
                received += len(data)
        except ConnectionResetError:
            pass  # cut short: the client cannot mistake the reset for an end
    assert received < size


# --- list, exists


async def test_name_that_is_not_utf_8_is_listed(wire: Wire) -> None:
    with open(os.fsencode(wire.base_dir) + b"/\xffx", "wb"):
        pass
    assert [entry["name"] for entry in (await wire.request("GET", "/list")).json()] == ["\ufffdx"]
    assert (await wire.request("GET", "/download/%FFx")).http_status == 200


async def test_list_is_rendered_on_a_thread(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def replace_surrogates(text: str) -> str:
        threads.append(threading.current_thread().name)
        return text

    (wire.base_dir / "x").touch()
    monkeypatch.setattr(handlers, "replace_surrogates", replace_surrogates)
    answer = await wire.request("GET", "/list/")
    assert (answer.http_status, [entry["name"] for entry in answer.json()]) == (200, ["x"])
    assert [name.partition("_")[0] for name in threads] == ["files"]
