"""GET /download: bytes, ranges, validators, and special files."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .conftest import Run
    from .target import Target

    Upload = Callable[[str, bytes], httpx.Response]

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def path(upload: Upload, folder: str) -> str:
    """The URL path of a file with the content CONTENT."""
    assert upload(f"{folder}/data.bin", CONTENT).status_code == 200
    return f"/download/{folder}/data.bin"


def test_download_is_the_file_with_the_known_headers(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.content == CONTENT
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-length"] == str(len(CONTENT))
    assert response.headers["accept-ranges"] == "bytes"
    assert response.headers["content-disposition"] == 'attachment; filename="data.bin"'
    assert response.headers["etag"].strip('W/"')
    assert parsedate_to_datetime(response.headers["last-modified"])


def test_head_tells_the_same_without_the_bytes(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert head.status_code == 200
    assert head.content == b""
    for name in ("content-length", "content-type", "etag", "last-modified", "accept-ranges"):
        assert head.headers[name] == got.headers[name]
    assert client.head(path + ".none").status_code == 404


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [
        ("0-0", 0, 0),
        ("0-9", 0, 9),
        ("1000-", 1000, 1023),
        ("-24", 1000, 1023),
        ("5-99999", 5, 1023),
        ("-5000", 0, 1023),
    ],
)
def test_range_is_served(
    client: httpx.Client, path: str, wanted: str, first: int, last: int
) -> None:
    response = client.get(path, headers={"Range": f"bytes={wanted}"})
    assert response.status_code == 206
    assert response.content == CONTENT[first : last + 1]
    assert response.headers["content-range"] == f"bytes {first}-{last}/{len(CONTENT)}"
    assert response.headers["content-length"] == str(last + 1 - first)


@pytest.mark.parametrize("wanted", ["1024-", "5000-6000", "-0"])
def test_range_outside_the_file_is_416_and_tells_the_size(
    client: httpx.Client, path: str, wanted: str
) -> None:
    response = client.get(path, headers={"Range": f"bytes={wanted}"})
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(CONTENT)}"


@pytest.mark.parametrize(
    "wanted", ["bytes=abc", "bytes=9-2", "lines=1-2", "bytes", "bytes=", "bytes=1-2-3"]
)
def test_range_that_makes_no_sense_is_never_a_server_fault(
    client: httpx.Client, path: str, wanted: str
) -> None:
    response = client.get(path, headers={"Range": wanted})
    assert response.status_code in (200, 400, 416)
    assert response.status_code != 200 or response.content == CONTENT


def test_several_ranges_are_served_or_the_whole_file_is(client: httpx.Client, path: str) -> None:
    response = client.get(path, headers={"Range": "bytes=0-1,10-11"})
    assert response.status_code in (200, 206)
    if response.status_code == 200:
        assert response.content == CONTENT
    else:
        assert response.headers["content-type"].startswith("multipart/byteranges")
        assert b"\x00\x01" in response.content
        assert b"\x0a\x0b" in response.content


def test_file_that_has_not_changed_is_304(client: httpx.Client, path: str) -> None:
    etag = client.get(path).headers["etag"]
    for given in (etag, f'"other", {etag}', "*"):
        response = client.get(path, headers={"If-None-Match": given})
        assert response.status_code == 304
        assert response.content == b""
        assert response.headers["etag"] == etag
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_etag_changes_with_the_content_even_at_equal_size(
    client: httpx.Client, upload: Upload, path: str, folder: str
) -> None:
    before = client.get(path).headers["etag"]
    upload(f"{folder}/data.bin", CONTENT[::-1])
    after = client.get(path)
    assert after.headers["etag"] != before
    assert client.get(path, headers={"If-None-Match": before}).content == CONTENT[::-1]


def test_range_of_a_file_that_has_changed_is_the_whole_file(
    client: httpx.Client, path: str
) -> None:
    etag = client.get(path).headers["etag"]
    same = client.get(path, headers={"Range": "bytes=0-9", "If-Range": etag})
    assert (same.status_code, same.content) == (206, CONTENT[:10])
    other = client.get(path, headers={"Range": "bytes=0-9", "If-Range": '"stale"'})
    assert (other.status_code, other.content) == (200, CONTENT)


def test_empty_file_is_downloaded(client: httpx.Client, upload: Upload, folder: str) -> None:
    upload(f"{folder}/empty", b"")
    response = client.get(f"/download/{folder}/empty")
    assert (response.status_code, response.content, response.headers["content-length"]) == (
        200,
        b"",
        "0",
    )
    assert client.get(f"/download/{folder}/empty", headers={"Range": "bytes=0-"}).status_code in (
        200,
        416,
    )


@pytest.mark.parametrize("name", ["none", "none/none", "x/below-a-file"])
def test_missing_file_is_404_with_the_known_text(
    client: httpx.Client, upload: Upload, folder: str, name: str
) -> None:
    upload(f"{folder}/x", b"1")
    response = client.get(f"/download/{folder}/{name}")
    assert response.status_code == 404
    assert response.json() == {"message": "File not found"}


def test_directory_is_not_found(client: httpx.Client, folder: str) -> None:
    for path in (f"/download/{folder}", f"/download/{folder}/", "/download/."):
        response = client.get(path)
        assert response.status_code == 404
        assert response.json() == {"message": "File not found"}


def test_unicode_name_comes_back_in_the_disposition(
    client: httpx.Client, upload: Upload, folder: str
) -> None:
    upload(f'{folder}/naïve "x".txt', b"1")
    response = client.get(f"/download/{folder}/na%C3%AFve%20%22x%22.txt")
    assert response.status_code == 200
    disposition = response.headers["content-disposition"]
    assert disposition.startswith("attachment")
    assert "na%C3%AFve" in disposition


def test_disposition_cannot_be_broken_out_of(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(f"printf 1 > {folder}/\"$(printf 'a\\r\\nX-Evil: 1')\"")
    response = client.get(f"/download/{folder}/a%0D%0AX-Evil%3A%201")
    assert response.status_code == 200
    assert "x-evil" not in response.headers


@pytest.mark.parametrize(
    "kind",
    ["mkfifo {0}", "python3 -c 'import socket; socket.socket(1).bind(\"{0}\")'", "ln -s none {0}"],
)
def test_what_is_no_regular_file_is_not_found_and_blocks_nothing(
    client: httpx.Client, run: Run, folder: str, kind: str
) -> None:
    run.out(kind.format(f"{folder}/odd"))
    for method in ("GET", "HEAD"):
        assert client.request(method, f"/download/{folder}/odd", timeout=20).status_code == 404


@pytest.mark.parametrize(
    "what", ["/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/dev/zero", "/"]
)
def test_link_that_leaves_the_base_dir_is_refused(
    client: httpx.Client, run: Run, folder: str, what: str
) -> None:
    run.out(f"ln -s {what} {folder}/link")
    response = client.get(f"/download/{folder}/link")
    assert response.status_code == 403
    assert response.json() == {"message": "Access denied"}


def test_link_that_stays_inside_is_followed(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(f"echo hi > {folder}/x; ln -s x {folder}/link; ln -s $PWD/{folder}/x {folder}/absolute")
    for name in ("link", "absolute"):
        assert client.get(f"/download/{folder}/{name}").content == b"hi\n"


def test_link_loop_is_the_caller_s_fault(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(f"ln -s loop {folder}/loop")
    assert client.get(f"/download/{folder}/loop").status_code in (403, 404)


def test_file_that_no_one_may_read_is_not_a_server_fault(
    client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(f"echo secret > {folder}/x; chmod 000 {folder}/x")
    # 200: root reads everything
    assert client.get(f"/download/{folder}/x").status_code in (200, 403, 404)


def test_file_that_grows_meanwhile_is_served_at_its_first_size(
    run: Run, target: Target, folder: str
) -> None:
    run.out(f"yes 0123456789abcde | head -c 4000000 > {folder}/x")
    with target.connect() as connection:
        connection.sendall(
            (
                f"GET /download/{folder}/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            ).encode()
        )
        received = connection.recv(1 << 16)
        run.out(f"yes more | head -c 1000000 >> {folder}/x")
        while data := connection.recv(1 << 16):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-length: 4000000" in head.lower()
    assert len(body) == 4_000_000
    assert b"more" not in body


def test_reader_that_leaves_half_way_does_no_harm(
    client: httpx.Client, run: Run, target: Target, folder: str
) -> None:
    run.out(f"head -c 50000000 /dev/zero > {folder}/x")
    for _ in range(20):
        with target.connect() as connection:
            connection.sendall(
                f"GET /download/{folder}/x HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            assert connection.recv(100)
    assert client.get("/").status_code == 200
