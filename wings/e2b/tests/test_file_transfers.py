"""``/files`` and ``/files/compose``."""

from __future__ import annotations

import errno
import gzip
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.api.conftest import JSON

if TYPE_CHECKING:
    from tests.api.conftest import Answer
    from wings.e2b.tests.conftest import Box

OCTETS = {"Content-Type": "application/octet-stream"}
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def form(*files: tuple[str, bytes], name: str = "file") -> bytes:
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
        % (name.encode(), filename.encode(), content)
        for filename, content in files
    ]
    return b"".join(parts) + b"--b--\r\n"


async def post(box: Box, target: str, body: bytes, headers: dict[str, str]) -> Answer:
    return await box.wire.request("POST", target, body, headers)


async def test_download_has_a_type_a_date_and_ranges(box: Box) -> None:
    (box.wire.base_dir / "page.html").write_text("<b>bold</b>")
    whole = await box.get("/files?path=page.html")
    assert whole.headers["Content-Type"] == "text/html"
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    assert "Last-Modified" in whole.headers
    assert whole.headers["Content-Disposition"] == 'attachment; filename="page.html"'
    part = await box.get("/files?path=page.html", {"Range": "bytes=3-6"})
    assert (part.http_status, part.body) == (206, b"bold")


@pytest.mark.parametrize(
    ("target", "http_status"),
    [
        ("/files?path=nothing", 404),
        ("/files?path=/", 400),
        ("/files", 400),
        ("/files?path=~bob", 400),
        ("/files?path=/proc/self/environ", 403),
        ("/files?path=x&username=no-such-user", 401),
    ],
)
async def test_refused_download_has_envd_s_shape(box: Box, target: str, http_status: int) -> None:
    answer = await box.get(target)
    assert answer.http_status == http_status
    assert answer.json()["code"] == http_status
    assert answer.json()["message"]
    assert "signed" not in answer.json()["message"]


async def test_form_with_several_files_writes_each_under_its_whole_filename(box: Box) -> None:
    base_dir = box.wire.base_dir
    files = (("a/one", b"1"), (f"{base_dir}/two", b"22"), ("né", b""))
    answer = await post(box, "/files", form(*files), FORM)
    paths = [str(base_dir / name) for name, _ in files]
    assert [written["path"] for written in answer.json()] == paths
    assert [(base_dir / name).read_bytes() for name, _ in files] == [b"1", b"22", b""]


async def test_path_of_the_query_wins_over_the_filename(box: Box) -> None:
    answer = await post(box, "/files?path=wanted", form(("other", b"x")), FORM)
    assert answer.json()[0]["name"] == "wanted"
    assert (box.wire.base_dir / "wanted").read_bytes() == b"x"


async def test_second_file_for_a_target_is_refused_and_the_first_stays(box: Box) -> None:
    for target, files in (
        ("/files", (("same", b"first"), ("./same", b"second"))),
        ("/files?path=same", (("a", b"first"), ("b", b"second"))),
    ):
        answer = await post(box, target, form(*files), FORM)
        assert (answer.http_status, answer.json()["code"]) == (400, 400)
        assert (box.wire.base_dir / "same").read_bytes() == b"first"


async def test_gzip_is_unpacked_in_bytes_and_in_forms(box: Box) -> None:
    content = b"long " * 500_000
    zipped = {"Content-Encoding": "gzip"}
    members = gzip.compress(content[:1000]) + gzip.compress(content[1000:])
    await post(box, "/files?path=bytes", members, OCTETS | zipped)
    await post(box, "/files", gzip.compress(form(("form", content))), FORM | zipped)
    for name in ("bytes", "form"):
        assert (box.wire.base_dir / name).read_bytes() == content


# Without the time of the run, which would give each process of a run another name of the test.
CUT_GZIP = gzip.compress(b"x" * 999, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("target", "body", "headers"),
    [
        ("/files", b"x", OCTETS),
        ("/files?path=x", b"x", {"Content-Type": "text/plain"}),
        ("/files?path=x", b"x", {}),
        ("/files?path=/", b"x", OCTETS),
        ("/files?path=x", b"no gzip", OCTETS | {"Content-Encoding": "gzip"}),
        ("/files?path=x", CUT_GZIP, OCTETS | {"Content-Encoding": "gzip"}),
        ("/files?path=x", b"x", OCTETS | {"Content-Encoding": "br"}),
        ("/files", form(), FORM),
        ("/files", form(("x", b"x"), name="other"), FORM),
        ("/files", form(("", b"x")), FORM),
        ("/files", form(("x", b"content"))[:-12], FORM),
    ],
)
async def test_upload_that_breaks_a_rule_is_400_and_writes_nothing(
    box: Box, target: str, body: bytes, headers: dict[str, str]
) -> None:
    answer = await post(box, target, body, headers)
    assert (answer.http_status, answer.json()["code"]) == (400, 400)
    assert list(box.wire.base_dir.iterdir()) == []


async def test_parts_are_joined_in_order_and_removed(box: Box) -> None:
    base_dir = box.wire.base_dir
    for name, content in (("one", b"1" * 700_000), ("two", b"2"), ("three", b"")):
        (base_dir / name).write_bytes(content)
    body = {"source_paths": ["one", "~/two", f"{base_dir}/three"], "destination": "new/whole"}
    answer = await post(box, "/files/compose", json.dumps(body).encode(), JSON)
    assert answer.json() == {"path": f"{base_dir}/new/whole", "name": "whole", "type": "file"}
    assert (base_dir / "new/whole").read_bytes() == b"1" * 700_000 + b"2"
    assert [path.name for path in base_dir.iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("body", "http_status"),
    [
        ({"source_paths": [], "destination": "x"}, 400),
        ({"source_paths": ["one"], "destination": "one"}, 400),
        ({"source_paths": ["one"], "destination": ""}, 400),
        ({"source_paths": ["one", "nothing"], "destination": "x"}, 404),
        ({"source_paths": ["one"]}, 400),
    ],
)
async def test_refused_join_leaves_the_parts(
    box: Box, body: dict[str, object], http_status: int
) -> None:
    (box.wire.base_dir / "one").touch()
    answer = await post(box, "/files/compose", json.dumps(body).encode(), JSON)
    assert (answer.http_status, answer.json()["code"]) == (http_status, http_status)
    assert [path.name for path in box.wire.base_dir.iterdir()] == ["one"]


async def test_metadata_of_an_upload_is_kept_with_the_file(box: Box) -> None:
    headers = OCTETS | {"X-Metadata-Owner": "a b", "x-metadata-empty": ""}
    answer = await post(box, "/files?path=m", b"1", headers)
    metadata = {"owner": "a b", "empty": ""}
    path = f"{box.wire.base_dir}/m"
    assert answer.json() == [{"path": path, "name": "m", "type": "file", "metadata": metadata}]
    assert os.getxattr(path, "user.e2b.owner") == b"a b"
    _, stat = await box.call("filesystem.Filesystem/Stat", {"path": "m"})
    assert stat["entry"]["metadata"] == metadata
    _, listed = await box.call("filesystem.Filesystem/ListDir", {"path": "~"})
    assert [entry.get("metadata") for entry in listed["entries"]] == [metadata]
    # The next upload replaces all of the metadata.
    await post(box, "/files?path=m", b"2", OCTETS)
    _, stat = await box.call("filesystem.Filesystem/Stat", {"path": "m"})
    assert "metadata" not in stat["entry"]


async def test_metadata_of_a_form_is_kept_with_each_file(box: Box) -> None:
    answer = await post(box, "/files", form(("a", b"1"), ("b", b"")), FORM | {"X-Metadata-K": "v"})
    assert [entry["metadata"] for entry in answer.json()] == [{"k": "v"}] * 2


@pytest.mark.parametrize(
    ("header", "value", "rule"),
    [
        ("X-Metadata-", "v", "1 to 246 bytes"),
        ("X-Metadata-" + "k" * 247, "v", "1 to 246 bytes"),
        ("X-Metadata-K", "naïve", "printable ASCII"),
        ("X-Metadata-K", "v" * 4096, "4097 bytes in all"),
    ],
)
async def test_metadata_that_no_file_can_have_is_refused(
    box: Box, header: str, value: str, rule: str
) -> None:
    answer = await post(box, "/files?path=m", b"1", OCTETS | {header: value})
    assert answer.http_status == 400
    assert rule in answer.json()["message"]
    assert not (box.wire.base_dir / "m").exists()


async def test_upload_without_the_support_of_the_file_system_has_no_metadata(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refuse)
    answer = await post(box, "/files?path=m", b"1", OCTETS | {"X-Metadata-K": "v"})
    assert answer.http_status == 200
    assert "metadata" not in answer.json()[0]
