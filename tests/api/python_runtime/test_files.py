"""The file routes of the python-runtime dialect."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from execd.api.python_runtime import handlers
from tests.api.conftest import Wire, multipart, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[..., Awaitable[Wire]]

DENIED = {"message": "Access denied"}
NOT_FOUND = {"message": "File not found"}
NO_DIRECTORY = {"message": "Path is not a directory"}
MISSING_FILE = {
    "detail": [{"type": "missing", "loc": ["body", "file"], "msg": "Field required", "input": None}]
}


def names(wire: Wire) -> list[bytes]:
    """Every file below the base dir."""
    root = os.fsencode(wire.base_dir)
    return sorted(
        os.path.relpath(os.path.join(at, name), root)
        for at, _, found in os.walk(root)
        for name in found
    )


# --- upload


async def test_uploaded_file_is_where_its_filename_says(wire: Wire) -> None:
    answer = await wire.upload("dir/sub/a.txt", b"content\r\n\xff")
    assert (answer.http_status, answer.json()) == (
        200,
        {"message": "File 'dir/sub/a.txt' uploaded successfully."},
    )
    assert (wire.base_dir / "dir/sub/a.txt").read_bytes() == b"content\r\n\xff"


@pytest.mark.parametrize(
    ("sent", "stored", "shown"),
    [
        (b"say %22hi%22.txt", b'say "hi".txt', 'say "hi".txt'),
        ("日本.txt".encode(), "日本.txt".encode(), "日本.txt"),
        (b"\xff.bin", b"\xff.bin", "\ufffd.bin"),
        (b"100%25.txt", b"100%25.txt", "100%25.txt"),
        (b"/etc/passwd", b"etc/passwd", "/etc/passwd"),
    ],
)
async def test_filename_is_taken_as_it_was_meant(
    wire: Wire, sent: bytes, stored: bytes, shown: str
) -> None:
    answer = await wire.upload(sent, b"x")
    assert answer.json() == {"message": f"File '{shown}' uploaded successfully."}
    assert names(wire) == [stored]


async def test_upload_may_come_in_chunks_of_any_size(wire: Wire) -> None:
    body, headers = multipart(b'name="file"; filename="a"', b"\r\n--c" * 50)
    connection = await wire.connect()
    await connection.send(
        request_bytes(
            "POST", "/upload/", headers=headers | {"Transfer-Encoding": "chunked"}
        ).replace(b"Content-Length: 0\r\n", b"")
    )
    for start in range(0, len(body), 7):
        piece = body[start : start + 7]
        await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    await connection.send(b"0\r\n\r\n")
    assert (await connection.receive()).http_status == 200
    assert (wire.base_dir / "a").read_bytes() == b"\r\n--c" * 50


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


@pytest.mark.parametrize("filename", ["../out", "a/../../out", "a\0b"])
async def test_upload_out_of_the_base_dir_is_denied(wire: Wire, filename: str) -> None:
    answer = await wire.upload(filename, b"x")
    assert (answer.http_status, answer.json()) == (403, DENIED)


@pytest.mark.parametrize("filename", ["", ".", "dir", "file/below", "n" * 300])
async def test_upload_to_where_no_file_can_be_is_the_callers_fault(
    wire: Wire, filename: str
) -> None:
    (wire.base_dir / "dir").mkdir()
    (wire.base_dir / "file").write_bytes(b"kept")
    answer = await wire.upload(filename, b"x")
    assert answer.http_status == 400
    assert answer.json()["message"].startswith("File upload failed: ")
    assert names(wire) == [b"file"]


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


async def test_upload_without_a_file_is_422(wire: Wire) -> None:
    other, headers = multipart(b'name="other"; filename="a"', b"x")
    for body, content_type in (
        (b"", ""),
        (b"x", "application/octet-stream"),
        (other, headers["Content-Type"]),
    ):
        answer = await wire.request(
            "POST", "/upload", body, {"Content-Type": content_type} if content_type else {}
        )
        assert (answer.http_status, answer.json()) == (422, MISSING_FILE)


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


async def test_body_that_ends_early_is_refused_and_leaves_nothing(wire: Wire) -> None:
    body, headers = multipart(b'name="file"; filename="a"', b"x" * 100)
    for size in (len(body) - 10, len(body) - 60, 20):
        answer = await wire.request("POST", "/upload", body[:size], headers)
        assert answer.http_status == 400
        assert answer.json()["message"].startswith("File upload failed: ")
    assert names(wire) == []


async def test_client_that_hangs_up_leaves_nothing(wire: Wire) -> None:
    body, headers = multipart(b'name="file"; filename="a"', b"x" * 100_000)
    connection = await wire.connect()
    await connection.send(
        request_bytes("POST", "/upload", headers=headers | {"Content-Length": str(len(body))})
        + body[:-10]
    )
    await wait_until(lambda: names(wire), "the upload has begun")
    await connection.close()
    await wait_until(lambda: not names(wire), "nothing is left of it")


# --- download


async def test_download_is_the_file_with_its_facts(wire: Wire) -> None:
    (wire.base_dir / "sub").mkdir()
    (wire.base_dir / "sub/é.bin").write_bytes(b"\0\r\n\xff")
    os.utime(wire.base_dir / "sub/é.bin", (1, 1))
    for target in (
        "/download/sub/%C3%A9.bin",
        "/download/sub%2F%C3%A9.bin",
        "/download//sub%2f%c3%a9.bin",
    ):
        answer = await wire.request("GET", target)
        assert (answer.http_status, answer.body) == (200, b"\0\r\n\xff")
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert (
            answer.headers["Content-Disposition"]
            == "attachment; filename=\"_.bin\"; filename*=UTF-8''%C3%A9.bin"
        )
        assert answer.headers["Last-Modified"] == "Thu, 01 Jan 1970 00:00:01 GMT"
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert answer.headers["ETag"].startswith('"')


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_download_of_any_size_is_whole(wire: Wire, size: int) -> None:
    content = random.Random(1).randbytes(size)
    (wire.base_dir / "a").write_bytes(content)
    answer = await wire.request("GET", "/download/a")
    assert answer.body == content


async def test_head_tells_what_get_would_send(wire: Wire) -> None:
    (wire.base_dir / "a").write_bytes(b"content")
    answer = await wire.request("HEAD", "/download/a", headers={"Range": "bytes=0-1"})
    assert (answer.http_status, answer.headers["Content-Length"]) == (200, "7")
    assert (await wire.request("HEAD", "/download/b")).http_status == 404


@pytest.mark.parametrize(
    ("range_", "http_status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-1", 206, b"9", "bytes 9-9/10"),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
async def test_range_gives_a_part(
    wire: Wire, range_: str, http_status: int, body: bytes | None, content_range: str | None
) -> None:
    (wire.base_dir / "a").write_bytes(b"0123456789")
    answer = await wire.request("GET", "/download/a", headers={"Range": range_})
    assert answer.http_status == http_status
    assert answer.headers.get("Content-Range") == content_range
    if body is not None:
        assert answer.body == body


async def test_validators_save_a_transfer(wire: Wire) -> None:
    (wire.base_dir / "a").write_bytes(b"0123456789")
    tag = (await wire.request("HEAD", "/download/a")).headers["ETag"]
    answer = await wire.request("GET", "/download/a", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (answer.http_status, answer.headers["ETag"]) == (304, tag)
    ranged = {"Range": "bytes=0-1", "If-Range": tag}
    assert (await wire.request("GET", "/download/a", headers=ranged)).body == b"01"
    await wire.upload("a", b"abcdefghij")
    assert (await wire.request("GET", "/download/a", headers=ranged)).body == b"abcdefghij"
    assert (
        await wire.request("GET", "/download/a", headers={"If-None-Match": tag})
    ).http_status == 200


async def test_what_is_no_file_is_not_found(wire: Wire) -> None:
    (wire.base_dir / "dir").mkdir()
    os.mkfifo(wire.base_dir / "fifo")
    for target in (
        "/download",
        "/download/",
        "/download/.",
        "/download/dir",
        "/download/fifo",
        "/download/none",
        "/download/" + "n" * 300,
    ):
        answer = await wire.request("GET", target)
        assert (answer.http_status, answer.json()) == (404, NOT_FOUND)


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


@pytest.mark.parametrize("target", ["/list", "/list/", "/list/.", "/list/sub/..", "/list/%2e"])
async def test_list_is_sorted_and_whole(wire: Wire, target: str) -> None:
    (wire.base_dir / "sub").mkdir()
    (wire.base_dir / "b").write_bytes(b"12")
    (wire.base_dir / ".hidden").write_bytes(b"")
    (wire.base_dir / "dangling").symlink_to("nowhere")
    os.utime(wire.base_dir / "b", (1.5, 1.5))
    answer = await wire.request("GET", target)
    entries = answer.json()
    assert [(entry["name"], entry["type"]) for entry in entries] == [
        (".hidden", "file"),
        ("b", "file"),
        ("dangling", "file"),
        ("sub", "directory"),
    ]
    assert entries[1] == {"name": "b", "size": 2, "type": "file", "mod_time": 1.5}


@pytest.mark.parametrize("target", ["/list", "/v1/files/"])
async def test_large_directory_is_listed_whole_in_one_reply(wire: Wire, target: str) -> None:
    wanted = [f"{number:05}" for number in range(5000)]
    for name in wanted:
        os.close(os.open(wire.base_dir / name, os.O_CREAT | os.O_WRONLY))
    answer = await wire.request("GET", target)
    assert (answer.http_status, answer.headers["Content-Type"]) == (200, "application/json")
    listing = answer.json()
    entries = listing["entries"] if isinstance(listing, dict) else listing
    assert [entry["name"] for entry in entries] == wanted
    assert (await wire.request("HEAD", target)).body == b""


async def test_name_that_is_not_utf_8_is_listed(wire: Wire) -> None:
    with open(os.fsencode(wire.base_dir) + b"/\xffx", "wb"):
        pass
    assert [entry["name"] for entry in (await wire.request("GET", "/list")).json()] == ["\ufffdx"]
    assert (await wire.request("GET", "/download/%FFx")).http_status == 200


async def test_what_is_no_directory_is_404(wire: Wire) -> None:
    (wire.base_dir / "file").write_bytes(b"")
    for target in ("/list/file", "/list/none", "/list/" + "n" * 300):
        answer = await wire.request("GET", target)
        assert (answer.http_status, answer.json()) == (404, NO_DIRECTORY)


@pytest.mark.parametrize(
    ("rest", "path", "found"),
    [
        ("", "", True),
        ("/", "", True),
        ("/.", ".", True),
        ("/a", "a", True),
        ("//a", "/a", True),
        ("/%2Fa", "/a", True),
        ("/b", "b", False),
        ("/a/b", "a/b", False),
        ("/100%25.txt", "100%.txt", True),
        ("/100%2525.txt", "100%25.txt", False),
        ("/new%0Aline", "new\nline", False),
        ("/%FF", "\ufffd", False),
        ("/" + "n" * 300, "n" * 300, False),
    ],
)
async def test_exists_echoes_the_path_decoded_once(
    wire: Wire, rest: str, path: str, found: bool
) -> None:
    (wire.base_dir / "a").write_bytes(b"")
    (wire.base_dir / "100%.txt").write_bytes(b"")
    answer = await wire.request("GET", f"/exists{rest}")
    assert (answer.http_status, answer.json()) == (200, {"path": path, "exists": found})


@pytest.mark.parametrize("route", ["list", "exists", "download"])
@pytest.mark.parametrize("path", ["..", "../x", "%2e%2e/x", "..%2Fx", "a%00b"])
async def test_path_that_leaves_the_base_dir_is_denied(wire: Wire, route: str, path: str) -> None:
    answer = await wire.request("GET", f"/{route}/{path}")
    assert (answer.http_status, answer.json()) == (403, DENIED)


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
