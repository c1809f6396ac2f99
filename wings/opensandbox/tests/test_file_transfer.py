"""Upload and download."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from wings.opensandbox.tests.test_file_routes import ODD_NAMES, query

if TYPE_CHECKING:
    from pathlib import Path

    from tests.api.conftest import Answer
    from wings.opensandbox.tests.conftest import OpenSandbox

FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def part(name: str, content: bytes, filename: str | None = "x") -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    disposition = f'Content-Disposition: form-data; name="{name}"{named}'
    return b"--b\r\n" + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


def pair(content: bytes, **metadata: Any) -> bytes:
    return part("metadata", json.dumps(metadata).encode()) + part("file", content)


async def upload(opensandbox: OpenSandbox, *parts: bytes, end: bytes = b"--b--\r\n") -> Answer:
    return await opensandbox.request("POST", "/files/upload", b"".join(parts) + end, FORM)


async def test_metadata_needs_no_filename_and_may_come_all_first(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    names = [json.dumps({"path": f"{tmp_path}/{n}"}).encode() for n in (1, 2)]
    answer = await upload(
        opensandbox,
        *(part("metadata", name, None) for name in names),
        *(part("file", content) for content in (b"a", b"b")),
    )
    assert answer.http_status == 200
    assert [(tmp_path / str(n)).read_bytes() for n in (1, 2)] == [b"a", b"b"]


async def test_owner_of_an_upload_is_set(opensandbox: OpenSandbox, tmp_path: Path) -> None:
    uid, gid = opensandbox.engine.owner
    path = f"{tmp_path}/f"
    answer = await upload(opensandbox, pair(b"x", path=path, owner=str(uid), group=str(gid)))
    assert answer.http_status == 200
    refused = await upload(opensandbox, pair(b"x", path=path, owner="no-such-user"))
    assert refused.http_status == 400


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([part("file", b"x")], "metadata before it"),
        ([part("metadata", b'{"path":"/tmp/x"}')], "a part called file behind it"),
        ([part("metadata", b"{")], "metadata: not JSON"),
        ([part("metadata", b"{}")], "path: required"),
        ([part("metadata", b'{"path":"' + b"x" * 70_000 + b'"}')], "over 65536 bytes"),
        ([], "no part of this name"),
    ],
)
async def test_malformed_form_is_400_with_the_rule(
    opensandbox: OpenSandbox, parts: list[bytes], rule: str
) -> None:
    answer = await upload(opensandbox, *parts)
    assert answer.http_status == 400
    assert answer.json()["code"] == "INVALID_FILE_METADATA"
    assert rule in answer.json()["message"]


async def test_form_that_breaks_off_leaves_no_file_of_the_broken_part(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    body = part("metadata", json.dumps({"path": f"{tmp_path}/f"}).encode())
    answer = await upload(opensandbox, body, part("file", b"x").removesuffix(b"\r\n"), end=b"")
    assert answer.http_status == 400
    assert os.listdir(tmp_path) == []


async def test_body_that_is_no_form_is_400(opensandbox: OpenSandbox) -> None:
    assert (await opensandbox.refused("POST", "/files/upload", {}))[0] == 400


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_are_written_and_read(
    opensandbox: OpenSandbox, tmp_path: Path, name: str
) -> None:
    assert (await upload(opensandbox, pair(b"x", path=f"{tmp_path}/{name}"))).http_status == 200
    assert os.listdir(tmp_path) == [name]
    answer = await opensandbox.request("GET", "/files/download" + query(f"{tmp_path}/{name}"))
    assert (answer.http_status, answer.body) == (200, b"x")


async def test_download_has_ranges(opensandbox: OpenSandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    path = "/files/download" + query(f"{tmp_path}/f")
    whole = await opensandbox.request("GET", path)
    assert (whole.http_status, whole.body) == (200, b"0123456789")
    assert whole.headers["Content-Disposition"] == 'attachment; filename="f"'
    some = await opensandbox.request("GET", path, b"", {"Range": "bytes=2-4"})
    assert (some.http_status, some.body) == (206, b"234")
    assert some.headers["Content-Range"] == "bytes 2-4/10"
    none = await opensandbox.request("GET", path, b"", {"Range": "bytes=10-"})
    assert (none.http_status, none.json()["code"]) == (416, "UNKNOWN")
    for ignored in ("bytes=0-1,4-5", "bytes=x"):
        answer = await opensandbox.request("GET", path, b"", {"Range": ignored})
        assert (answer.http_status, answer.body) == (200, b"0123456789")


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({"offset": 2}, "two\nthree"),
        ({"offset": 2, "limit": 1}, "two"),
        ({"limit": 2}, "one\ntwo"),
        ({"offset": 9}, ""),
        ({"offset": 0, "limit": 1}, "one"),
    ],
)
async def test_download_of_lines(
    opensandbox: OpenSandbox, tmp_path: Path, window: dict[str, int], text: str
) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\nthree\n")
    answer = await opensandbox.request("GET", "/files/download" + query(f"{tmp_path}/f", **window))
    assert answer.body.decode() == text
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_lines_do_not_go_with_a_range(opensandbox: OpenSandbox, tmp_path: Path) -> None:
    path = "/files/download" + query(str(tmp_path), limit=1)
    assert (await opensandbox.refused("GET", path, headers={"Range": "bytes=0-1"}))[0] == 400


async def test_download_of_a_directory_a_missing_file_and_no_path(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    path = "/files/download"
    assert (await opensandbox.refused("GET", path + query(str(tmp_path))))[0] == 400
    missing = await opensandbox.refused("GET", path + query(f"{tmp_path}/no"))
    assert missing[:2] == (404, "FILE_NOT_FOUND")
    assert (await opensandbox.refused("GET", path))[:2] == (400, "MISSING_QUERY")
