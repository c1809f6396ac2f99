"""The files of the page: headers, encodings and tags."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec
import pytest
from multidict import CIMultiDict

from execd.api.docs.viewer import FOLDER, PIECE_BYTES, ROUTES, accepts_gzip, read_stored
from tests.api.conftest import LIMITS, request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.api.conftest import Wire

    Serve = Callable[..., Awaitable[Wire]]

FILES = [route.path for route in ROUTES]
PAGES = ["/docs", "/docs/"]
COMPRESSED = ["/openapi.json", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"]
GZIP = {"Accept-Encoding": "gzip, deflate, br"}

each_file = pytest.mark.parametrize("path", FILES)


def stored(path: str) -> bytes:
    """The content of a file of the page."""
    if path == "/docs/":
        return stored("/docs").replace(b"docs/", b"")
    name = "index.html" if path == "/docs" else path.rpartition("/")[2]
    found = [*FOLDER.rglob(name), *FOLDER.rglob(f"{name}.gz")]
    [file] = found
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


@each_file
@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
async def test_a_file_arrives_whole_in_the_encoding_that_the_caller_accepts(
    wire: Wire, path: str, headers: dict[str, str]
) -> None:
    answer = await wire.exchange("GET", path, headers=headers)
    assert answer.http_status == 200
    is_gzip = bool(headers) and path in COMPRESSED
    assert answer.headers.get("Content-Encoding") == ("gzip" if is_gzip else None)
    assert answer.headers.get("Vary") == ("Accept-Encoding" if path in COMPRESSED else None)
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert (gzip.decompress(answer.body) if is_gzip else answer.body) == stored(path)


@each_file
async def test_head_is_get_without_the_body(wire: Wire, path: str) -> None:
    got, head = await wire.exchange("GET", path), await wire.exchange("HEAD", path)
    assert head.http_status == 200
    assert not head.body
    for name in ("Content-Type", "Content-Length", "ETag", "Content-Security-Policy"):
        assert head.headers[name] == got.headers[name]


@each_file
async def test_a_browser_with_the_present_file_gets_304(wire: Wire, path: str) -> None:
    tags = set()
    for headers in ({}, GZIP):
        first = await wire.exchange("GET", path, headers=headers)
        etag = first.headers["ETag"]
        tags.add(etag)
        for tag in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = await wire.exchange("GET", path, headers={**headers, "If-None-Match": tag})
            assert (again.http_status, again.body) == (304, b""), tag
            assert again.headers["ETag"] == etag
        other = await wire.exchange("GET", path, headers={**headers, "If-None-Match": '"other"'})
        assert other.http_status == 200
    assert len(tags) == (2 if path in COMPRESSED else 1), "other bytes, another tag"


@pytest.mark.parametrize("path", FILES)
async def test_the_headers_allow_the_page_nothing_but_its_own_files(wire: Wire, path: str) -> None:
    headers = (await wire.exchange("GET", path)).headers
    policy = dict(
        directive.strip().split(" ", 1)
        for directive in headers["Content-Security-Policy"].split(";")
    )
    assert policy.pop("img-src") == "'self' data:"
    assert {name for name, value in policy.items() if value == "'self'"} == {
        "script-src",
        "style-src",
        "connect-src",
    }
    assert {name for name, value in policy.items() if value == "'none'"} == {
        "default-src",
        "base-uri",
        "form-action",
        "frame-ancestors",
    }
    assert len(policy) == 7
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("path", PAGES)
async def test_the_page_names_its_files_and_the_document_by_relative_urls(
    wire: Wire, path: str
) -> None:
    page = (await wire.exchange("GET", path)).body.decode()
    urls = re.findall(r'(?:href|src)="([^"]+)"', page)
    named = {urljoin(f"http://router/pods/a{path}?x=1", url) for url in urls if url != "data:,"}
    files = {*FILES, "/openapi.json"} - {*PAGES}
    assert named == {f"http://router/pods/a{file}" for file in files}


async def test_no_other_name_below_docs_is_served(wire: Wire) -> None:
    for path in ("/docs/index.html", "/docs/page/viewer.js", "/docs/LICENSE", "/docs/../viewer.py"):
        assert (await wire.exchange("GET", path)).http_status == 404, path


async def test_many_slow_readers_all_get_the_whole_viewer(serve: Serve) -> None:
    wire = await serve(is_narrow=True)
    path = "/docs/swagger-ui-bundle.js"
    connections = [await wire.connect(read_ahead_bytes=4096) for _ in range(20)]
    for connection in connections:
        await connection.send(request_bytes("GET", path))
    for connection in connections:
        assert (await connection.receive()).body == stored(path)


async def test_a_reader_who_takes_nothing_of_the_viewer_is_cut(serve: Serve) -> None:
    limits = msgspec.structs.replace(LIMITS, max_open=1, stall_grace_seconds=0.2)
    wire = await serve(limits, stream_stall_seconds=0.2, is_narrow=True)
    loop = asyncio.get_running_loop()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        await loop.sock_connect(reader, ("127.0.0.1", wire.port))
        await loop.sock_sendall(reader, request_bytes("GET", "/docs/swagger-ui-bundle.js"))
        await loop.sock_recv(reader, 1)  # the reply has begun

        async def is_free() -> bool:
            return (await wire.exchange("GET", "/list")).http_status == 200

        await wait_until(is_free, "the connection is cut, and its place is free")


@pytest.mark.parametrize("name", ["index.html", "swagger-ui-bundle.js"])
def test_all_replies_share_the_bytes_of_a_file(name: str) -> None:
    """Half a megabyte for each slow reader would add up."""
    file = read_stored(name)
    assert read_stored(name) is file
    pieces = [*file.pieces(is_decompressed=False)]
    assert all(isinstance(piece, memoryview) and piece.obj is file.content for piece in pieces)
    assert b"".join(pieces) == file.content
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("path", COMPRESSED)
def test_a_decompressed_file_comes_in_pieces_of_the_told_size(path: str) -> None:
    file = read_stored(path.rpartition("/")[2])
    pieces = [*file.pieces(is_decompressed=True)]
    assert b"".join(pieces) == stored(path)
    assert file.size_bytes(is_decompressed=True) == len(stored(path))
    assert max(map(len, pieces)) < 16 * PIECE_BYTES


@pytest.mark.parametrize(
    ("header", "is_accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("br, x-gzip;q=0.5", True),
        ("deflate, gzip ; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; Q=0.000", False),
        ("gzip;q=0.001", True),
        ("identity", False),
        ("br", False),
        ("*", False),
    ],
)
def test_gzip_is_sent_only_to_who_names_gzip(header: str | None, is_accepted: bool) -> None:
    headers = CIMultiDict[str]() if header is None else CIMultiDict({"Accept-Encoding": header})
    assert accepts_gzip(headers) is is_accepted


def test_nothing_is_read_before_the_first_request() -> None:
    program = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda name, args: name == 'open' and opened.append(str(args[0])))\n"
        "from execd.api.routes import routes\n"
        "routes()\n"
        "print([path for path in opened if '/docs/' in path and '.py' not in path])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
