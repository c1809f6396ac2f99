"""/v1/files: the REST half of sandboxd to the letter, and execd's additions on the same routes and
on /v1/fs/file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from ..patience import patience
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .conftest import Run
    from .target import Answer, Target

NOT_EMPTY = {
    "code": "CONFLICT",
    "message": "directory is not empty; pass recursive=true to remove it",
}


class Files:
    """The routes, for names below a folder."""

    def __init__(self, target: Target, folder: str) -> None:
        self.target = target
        self.folder = folder

    def __call__(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.target.request(method, f"/v1/files/{self.folder}/{path}", body, named)

    def tree(
        self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.target.request(
            method, f"/v1/fs/file?path={quote(path, safe='')}{query}", body, named
        )

    def names(self, path: str = "") -> list[str]:
        answer = self("GET", path)
        assert answer.http_status == 200, answer.content
        return [entry["name"] for entry in answer.json()["entries"]]


@pytest.fixture
def files(target: Target, folder: str) -> Files:
    return Files(target, folder)


@pytest.fixture
def base(run: Run) -> str:
    """The base dir, as a command sees the dir."""
    return run.out("pwd -P").strip()


def refused(answer: Answer) -> tuple[int, str]:
    body = answer.json()
    assert set(body) <= {"code", "message", "details"}
    return answer.http_status, body["code"]


def sha256(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


# --- sandboxd's contract


def test_file_that_was_put_is_got_with_its_length(files: Files) -> None:
    answer = files("PUT", "new/parents/x", b"content\r\n\xff\0")
    assert (answer.http_status, answer.content) == (204, b"")
    answer = files("GET", "new/parents/x")
    assert (answer.http_status, answer.content) == (200, b"content\r\n\xff\0")
    assert (answer.headers["Content-Type"], answer.headers["Content-Length"]) == (
        "application/octet-stream",
        "11",
    )


def test_put_replaces_the_file_and_leaves_nothing_else(files: Files, run: Run, folder: str) -> None:
    files("PUT", "x", b"a longer content")
    files("PUT", "x", b"short")
    assert files("GET", "x").content == b"short"
    assert run.out(f"ls -A {folder}") == "x\n"


def test_directory_is_a_sorted_listing_of_five_fields(files: Files, run: Run, folder: str) -> None:
    run.out(
        f"cd {folder}; mkdir sub; printf 12345 > file; chmod 640 file; "
        "touch -d @1700000000.7 file; touch B a .h"
    )
    answer = files("GET", "")
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert set(body) == {"path", "entries"}
    assert body["path"] == f"/{folder}"
    assert [entry["name"] for entry in body["entries"]] == [".h", "B", "a", "file", "sub"]
    *_, file, directory = body["entries"]
    assert file == {
        "name": "file",
        "size": 5,
        "type": "file",
        "modified_at": "2023-11-14T22:13:20Z",
        "mode": "0640",
    }
    assert set(directory) == set(file)
    assert (directory["type"], directory["mode"]) == ("directory", "0755")


def test_empty_directory_has_an_empty_list(files: Files) -> None:
    assert files("GET", "").content.endswith(b'"entries":[]}')


@pytest.mark.parametrize("spelling", ["", "/", "/.", "/%2E", "//", "/%2F"])
def test_root_is_listed_by_every_spelling(target: Target, folder: str, spelling: str) -> None:
    answer = target.request("GET", f"/v1/files{spelling}")
    assert answer.http_status == 200
    assert answer.json()["path"] == "/"
    assert folder in [entry["name"] for entry in answer.json()["entries"]]


def test_head_tells_whether_it_exists(files: Files) -> None:
    files("PUT", "x", b"12345")
    answer = files("HEAD", "x")
    assert (answer.http_status, answer.headers["Content-Length"], answer.content) == (200, "5", b"")
    assert files("HEAD", "").headers["Content-Type"] == files("GET", "").headers["Content-Type"]
    assert files("HEAD", "none").http_status == 404
    assert files("HEAD", "x/below").http_status == 404


def test_what_is_not_there_is_404(files: Files) -> None:
    for method in ("GET", "DELETE"):
        assert refused(files(method, "none")) == (404, "NOT_FOUND")


@pytest.mark.parametrize("mode", ["0644", "0755", "0600", "0777", "0000"])
def test_mode_asked_for_is_the_mode(files: Files, run: Run, folder: str, mode: str) -> None:
    for _ in range(2):  # for a new file, and for a replaced file
        assert files("PUT", f"x?mode={mode}", b"x").http_status == 204
        assert run.out(f"stat -c %a {folder}/x").strip() == mode.lstrip("0").rjust(1, "0")


def test_empty_mode_is_none_at_all(files: Files, run: Run, folder: str) -> None:
    assert files("PUT", "x?mode=", b"x").http_status == 204
    assert run.out(f"stat -c %a {folder}/x").strip() == "644"


@pytest.mark.parametrize("mode", ["0999", "777", "abcd", "01777", "0644x", "0644%0A", "-644"])
def test_mode_that_is_none_is_400(files: Files, mode: str) -> None:
    assert refused(files("PUT", f"x?mode={mode}", b"x")) == (400, "INVALID_ARGUMENT")
    assert files.names() == []


def test_multipart_put_takes_the_part_called_file(
    files: Files, client: httpx.Client, folder: str
) -> None:
    content = b"--b\r\nnot a boundary\r\n" * 1000
    response = client.put(
        f"/v1/files/{folder}/x", files={"file": ("any/name", content)}, data={"other": "1"}
    )
    assert response.status_code == 204
    assert files("GET", "x").content == content
    # as a field, without a filename
    form = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n%b\r\n--b--\r\n'
    head = {"Content-Type": "multipart/form-data; boundary=b"}
    assert (
        client.put(f"/v1/files/{folder}/x", content=form % b"first", headers=head).status_code
        == 204
    )
    assert files("GET", "x").content == b"first"
    both = (form % b"first").removesuffix(b"--\r\n") + b"\r\n" + form % b"second"
    assert client.put(f"/v1/files/{folder}/x", content=both, headers=head).status_code == 204
    assert files("GET", "x").content == b"first"


def test_multipart_put_without_a_file_part_is_400(
    files: Files, client: httpx.Client, folder: str
) -> None:
    response = client.put(
        f"/v1/files/{folder}/x", files={"other": ("file", b"x")}, data={"another": "x"}
    )
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert files.names() == []


def test_put_on_a_directory_is_400(files: Files, run: Run, folder: str) -> None:
    run.out(f"mkdir {folder}/sub")
    assert refused(files("PUT", "sub", b"x")) == (400, "INVALID_ARGUMENT")
    assert refused(files("PUT", "", b"x")) == (400, "INVALID_ARGUMENT")


def test_escaped_slashes_nest(files: Files, folder: str) -> None:
    assert files.target.request("PUT", f"/v1/files/{folder}%2Fa%2Fb", b"x").http_status == 204
    assert files("GET", "a/b").content == b"x"
    assert files.target.request("GET", f"/v1/files/%2E%2F{folder}%2Fa/%2E/b").content == b"x"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../../etc/passwd",
        "%2E%2E",
        "%2E%2E/etc",
        "%2e%2e%2fetc",
        "{folder}/../../x",
        "..%2f..%2Fetc%2fpasswd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_path_out_of_the_root_is_403(target: Target, folder: str, path: str, method: str) -> None:
    answer = target.request(
        method, f"/v1/files/{path.format(folder=folder)}", b"x" if method == "PUT" else b""
    )
    assert answer.http_status == 403
    if method != "HEAD":
        assert refused(answer) == (403, "PERMISSION_DENIED")


def test_absolute_path_below_the_root_means_itself_and_any_other_is_re_rooted(
    files: Files, run: Run, base: str, folder: str
) -> None:
    files("PUT", "x", b"found")
    request = files.target.request
    for path in (f"{base}/{folder}/x", f"//{base}/{folder}/x"):
        assert request("GET", f"/v1/files/{quote(path)}").content == b"found"
        assert request("GET", f"/v1/files/{quote(path, safe='')}").content == b"found"
    # Also where the old reading of the python-runtime would find a file.
    run.out(f"mkdir -p .{base}/{folder}; printf other > .{base}/{folder}/y")
    try:
        assert (
            request("GET", f"/v1/files/{quote(f'{base}/{folder}/y', safe='')}").http_status == 404
        )
        # A sibling whose name begins like the root's name.
        assert (
            request("PUT", f"/v1/files/{quote(f'{base}2/{folder}', safe='')}", b"x").http_status
            == 204
        )
        assert run.out(f"cat .{base}2/{folder}") == "x"
    finally:
        run.out(f"rm -r ./{base.split('/')[1]}")


def test_link_that_leads_out_is_403(files: Files, run: Run, folder: str) -> None:
    run.out(
        f"cd {folder}; ln -s /etc etc; ln -s /etc/hostname name; ln -s ../../.. up; ln -s etc twice"
    )
    for path in ("etc", "etc/hostname", "name", "up", "twice/hostname"):
        assert refused(files("GET", path)) == (403, "PERMISSION_DENIED")
    for path in ("etc/new", "name", "up/new", "twice/new"):
        assert refused(files("PUT", path, b"x")) == (403, "PERMISSION_DENIED")
    assert refused(files("DELETE", "etc/hostname")) == (403, "PERMISSION_DENIED")
    assert files.names() == []


def test_links_that_lead_nowhere_are_not_listed(files: Files, run: Run, folder: str) -> None:
    run.out(
        f"cd {folder}; mkdir sub; touch file; "
        "ln -s sub to-sub; ln -s file to-file; ln -s none dangling; ln -s loop loop"
    )
    entries = files("GET", "").json()["entries"]
    assert [(entry["name"], entry["type"]) for entry in entries] == [
        ("file", "file"), ("sub", "directory"), ("to-file", "file"), ("to-sub", "directory"),
    ]  # fmt: skip


def test_files_and_empty_directories_are_deleted(files: Files, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; touch file; mkdir empty")
    for path in ("file", "empty"):
        answer = files("DELETE", path)
        assert (answer.http_status, answer.content) == (204, b"")
    assert files.names() == []


def test_directory_with_something_in_it_is_deleted_on_request_only(
    files: Files, run: Run, folder: str
) -> None:
    run.out(
        f"cd {folder}; mkdir -p full/a/b; touch full/a/x full/a/b/.y; ln -s /etc full/link; "
        "mkfifo full/fifo; ln -s . full/self"
    )
    for query in ("", "?recursive=false", "?recursive=0", "?recursive="):
        answer = files("DELETE", f"full{query}")
        assert (answer.http_status, answer.json()) == (409, NOT_EMPTY)
    assert files("DELETE", "full?recursive=true").http_status == 204
    assert files.names() == []
    assert run.out("test -d /etc && echo there") == "there\n"


def test_deleting_a_link_deletes_the_link(files: Files, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; mkdir sub; touch sub/x; ln -s sub link; ln -s /etc/hostname out")
    assert files("DELETE", "link?recursive=true").http_status == 204
    assert files("DELETE", "out").http_status == 204
    assert files.names("sub") == ["x"]
    assert run.out(f"ls -A {folder}") == "sub\n"


@pytest.mark.parametrize("value", ["xx", "yes", "2", "tRUE"])
def test_recursive_that_is_no_boolean_is_400(files: Files, value: str) -> None:
    assert refused(files("DELETE", f"?recursive={value}")) == (400, "INVALID_ARGUMENT")


def test_root_is_never_deleted_but_emptied(own_daemon: Callable[..., Target]) -> None:
    daemon = own_daemon()
    assert daemon.request("DELETE", "/v1/files").http_status == 409
    daemon.request("PUT", "/v1/files/a/b", b"x")
    assert refused(daemon.request("DELETE", "/v1/files/")) == (409, "CONFLICT")
    assert daemon.request("DELETE", "/v1/files?recursive=true").http_status == 204
    assert daemon.request("GET", "/v1/files/").json() == {"path": "/", "entries": []}


def test_health_and_metadata_are_as_sandboxd_has_them(own_daemon: Callable[..., Target]) -> None:
    daemon = own_daemon(SANDBOX_NAME="one", SANDBOX_API_KEY="hidden", OTHER="no")
    health = daemon.request("GET", "/v1/health").json()
    assert set(health) == {"status", "uptime_seconds"}
    assert health["status"] == "ok"
    assert type(health["uptime_seconds"]) is int
    assert daemon.request("GET", "/v1/metadata").json() == {"env": {"SANDBOX_NAME": "one"}}


def test_dates_are_conditions_where_they_can_be_kept(files: Files, run: Run, folder: str) -> None:
    run.out(f"echo x > {folder}/x; touch -d @1000000000.5 {folder}/x")
    at, before = "Sun, 09 Sep 2001 01:46:40 GMT", "Sun, 09 Sep 2001 01:46:39 GMT"
    assert files("GET", "x").headers["Last-Modified"] == at
    for method in ("GET", "HEAD"):
        assert files(method, "x", **{"If-Modified-Since": at}).http_status == 304
        assert files(method, "x", **{"If-Modified-Since": before}).http_status == 200
        assert files(method, "x", **{"If-Unmodified-Since": at}).http_status == 200
        assert files(method, "x", **{"If-Unmodified-Since": before}).http_status == 412
        assert (
            files(method, "x", **{"If-Unmodified-Since": before, "If-Match": "*"}).http_status
            == 200
        )
    for method in ("PUT", "DELETE"):
        assert refused(files(method, "x", b"", **{"If-Unmodified-Since": at})) == (
            400,
            "INVALID_ARGUMENT",
        )
    assert files("GET", "x").content == b"x\n"


def test_compressed_body_is_kept_as_it_was_sent(files: Files) -> None:
    content = gzip.compress(b"x" * 1000)
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"
    assert (
        files(
            "PUT", "x.gz", content, **{"Content-Encoding": "gzip", "Repr-Digest": digest}
        ).http_status
        == 204
    )
    assert files("GET", "x.gz").content == content


def test_piece_does_not_take_the_place_of_the_whole(files: Files) -> None:
    files("PUT", "x", b"whole")
    assert refused(files("PUT", "x", b"pi", **{"Content-Range": "bytes 0-1/5"})) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert files("GET", "x").content == b"whole"


# --- beyond sandboxd


def test_range_of_a_file_is_served(files: Files) -> None:
    files("PUT", "x", b"0123456789")
    answer = files("GET", "x", Range="bytes=2-4")
    assert (answer.http_status, answer.content, answer.headers["Content-Range"]) == (
        206,
        b"234",
        "bytes 2-4/10",
    )
    answer = files("GET", "x", Range="bytes=10-")
    assert (*refused(answer), answer.headers["Content-Range"]) == (
        416,
        "RANGE_NOT_SATISFIABLE",
        "bytes */10",
    )


def test_put_tells_the_tag_that_get_has(files: Files) -> None:
    tag = files("PUT", "x", b"1").headers["ETag"]
    assert files("GET", "x").headers["ETag"] == tag
    assert files("GET", "x", If_None_Match=tag).http_status == 304
    assert files("GET", "x", If_Match=tag).http_status == 200
    assert refused(files("GET", "x", If_Match='"other"')) == (412, "PRECONDITION_FAILED")
    assert files("PUT", "x", b"1").headers["ETag"] != tag


def test_put_with_if_match_replaces_that_version_only(files: Files, run: Run, folder: str) -> None:
    first = files("PUT", "x", b"first").headers["ETag"]
    second = files("PUT", "x", b"second", If_Match=f'"other", {first}').headers["ETag"]
    assert refused(files("PUT", "x", b"late", If_Match=first)) == (412, "PRECONDITION_FAILED")
    assert refused(files("PUT", "x", b"weak", If_Match=f"W/{second}")) == (
        412,
        "PRECONDITION_FAILED",
    )
    assert refused(files("PUT", "none/x", b"x", If_Match="*")) == (412, "PRECONDITION_FAILED")
    assert refused(files("DELETE", "x", If_Match=first)) == (412, "PRECONDITION_FAILED")
    assert files("GET", "x").content == b"second"
    assert run.out(f"ls -A {folder}") == "x\n"
    assert files("DELETE", "x", If_Match=second).http_status == 204


def test_put_with_if_none_match_makes_new_files_only(files: Files, run: Run, folder: str) -> None:
    assert files("PUT", "x", b"first", If_None_Match="*").http_status == 204
    assert refused(files("PUT", "x", b"second", If_None_Match="*")) == (412, "PRECONDITION_FAILED")
    assert files("GET", "x").content == b"first"
    assert run.out(f"ls -A {folder}") == "x\n"


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_one_of_many_conditional_puts_at_once_wins(files: Files, condition: str) -> None:
    value = "*" if condition == "If-None-Match" else files("PUT", "x", b"old").headers["ETag"]
    bodies = [b"%d" % number * 5000 for number in range(20)]
    with ThreadPoolExecutor(20) as threads:
        answers = list(
            threads.map(lambda body: files("PUT", "x", body, **{condition: value}), bodies)
        )
    winners = [number for number, answer in enumerate(answers) if answer.http_status == 204]
    assert len(winners) == 1
    assert {answer.http_status for answer in answers} == {204, 412}
    assert files("GET", "x").content == bodies[winners[0]]
    assert files.names() == ["x"]


@pytest.mark.parametrize("header", ["Repr_Digest", "Content_Digest"])
def test_upload_with_another_digest_is_refused_and_leaves_nothing(
    files: Files, run: Run, folder: str, header: str
) -> None:
    assert refused(files("PUT", "x", b"damaged", **{header: sha256(b"intended")})) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert run.out(f"ls -A {folder}") == ""
    assert (
        files("PUT", "x", b"intended", **{header: f"md5=:AAAA:, {sha256(b'intended')}"}).http_status
        == 204
    )
    assert refused(files("PUT", "x", b"damaged", **{header: sha256(b"intended")})) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert files("GET", "x").content == b"intended"
    assert refused(files("PUT", "x", b"x", **{header: "sha-256=:AAAA:"})) == (
        400,
        "INVALID_ARGUMENT",
    )


def test_digest_of_a_download_is_told_on_request(files: Files) -> None:
    files("PUT", "x", b"content")
    assert "Repr-Digest" not in files("GET", "x").headers
    for method, more in (("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=0-1"})):
        assert files(method, "x", Want_Repr_Digest="sha-512=3, sha-256=10", **more).headers[
            "Repr-Digest"
        ] == sha256(b"content")
    assert "Repr-Digest" not in files("GET", "x", Want_Repr_Digest="sha-256=0").headers


def test_content_type_is_that_of_the_name_on_request(files: Files) -> None:
    for name, kind in (
        ("a.html", "text/html"),
        ("b.png", "image/png"),
        ("c.tar.gz", "application/octet-stream"),
        ("none", "application/octet-stream"),
    ):
        files("PUT", name, b"x")
        answer = files("GET", f"{name}?content_type=auto")
        assert answer.headers["Content-Type"] == kind
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Disposition"].startswith("attachment")


def test_append_adds_to_the_end_and_makes_the_file(files: Files) -> None:
    for piece in (b"one\n", b"two\n", b""):
        assert files("PUT", "new/log?append=true", piece).http_status == 204
    assert files("GET", "new/log").content == b"one\ntwo\n"


def test_file_written_in_place_keeps_its_inode(files: Files, run: Run, folder: str) -> None:
    files("PUT", "file", b"a long content before")
    run(f"ln {folder}/file {folder}/link")
    assert files("PUT", "file?in_place=true", b"new").http_status == 204
    assert files("GET", "link").content == b"new"
    assert files("PUT", "file", b"replaced").http_status == 204
    assert files("GET", "link").content == b"new"
    assert files("PUT", "fresh?in_place=true", b"made").http_status == 204
    assert files("GET", "fresh").content == b"made"
    both = files("PUT", "file?in_place=true&append=true", b"")
    assert (both.http_status, both.json()["details"]["field"]) == (400, "in_place")


def test_file_that_may_not_be_written_is_refused_in_place(
    files: Files, run: Run, folder: str
) -> None:
    files("PUT", "file?mode=0444", b"before")
    answer = files("PUT", "file?in_place=true", b"after")
    is_root = run(f"stat -c %u {folder}/file").stdout == "0\n"  # the daemon
    assert answer.http_status == (204 if is_root else 403)
    assert files("GET", "file").content == (b"after" if is_root else b"before")
    assert files("PUT", "file", b"replaced").http_status == 204


def test_appends_at_once_all_arrive(files: Files) -> None:
    lines = [b"%03d%b\n" % (number, b"x" * 1000) for number in range(50)]
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda line: files("PUT", "log?append=true", line), lines))
    assert {answer.http_status for answer in answers} == {204}
    assert sorted(files("GET", "log").content.splitlines(keepends=True)) == lines


def test_upload_that_broke_off_is_resumed_where_head_says(
    files: Files, target: Target, folder: str
) -> None:
    content = bytes(range(256)) * 4000
    head = (
        f"PUT /v1/files/{folder}/big?offset=0 HTTP/1.1\r\n"
        "Host: localhost\r\n"
        f"Content-Length: {len(content)}\r\n"
        "\r\n"
    )
    with target.connect() as connection:
        connection.sendall(head.encode() + content[:700_000])
        wait_until(
            lambda: int(files("HEAD", "big").headers.get("Content-Length", "0")) > 600_000,
            20,
            "it is being written",
        )
    wait_until(
        lambda: files("PUT", "big?offset=1", b"").json().get("details"),
        20,
        "the broken upload has ended",
    )
    size = int(files("HEAD", "big").headers["Content-Length"])
    answer = files("PUT", "big?offset=5", b"x")
    assert (*refused(answer), answer.json()["details"]["size_bytes"]) == (409, "CONFLICT", size)
    assert (
        files("PUT", f"big?offset={size}", content[size:], Repr_Digest=sha256(content)).http_status
        == 204
    )
    assert files("GET", "big").content == content


def test_last_piece_that_makes_another_digest_is_taken_back(files: Files) -> None:
    files("PUT", "x?offset=0", b"first ")
    assert refused(files("PUT", "x?offset=6", b"damaged", Repr_Digest=sha256(b"first second"))) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert files("GET", "x").content == b"first "
    assert (
        files("PUT", "x?offset=6", b"second", Repr_Digest=sha256(b"first second")).http_status
        == 204
    )


@pytest.mark.parametrize(
    "query",
    [
        "append=true&offset=3",
        "offset=-1",
        "offset=x",
        "append=maybe",
        "unknown=1",
        "mode=0644&mode=0600",
    ],
)
def test_query_that_makes_no_sense_is_400_and_names_the_field(files: Files, query: str) -> None:
    answer = files("PUT", f"x?{query}", b"x")
    assert refused(answer) == (400, "INVALID_ARGUMENT")
    assert (
        answer.json()["details"]["field"] == re.split("[=&]", query)[2 if "&offset" in query else 0]
    )
    assert files.names() == []


# --- the tree as user code sees the tree


def test_paths_of_the_tree_are_those_of_user_code(
    files: Files, run: Run, base: str, folder: str
) -> None:
    files.tree("PUT", f"{folder}/relative", b"1")
    files.tree("PUT", f"{base}/{folder}/absolute", b"2")
    assert run.out(f"cat {folder}/relative {folder}/absolute") == "12"
    assert files.tree("GET", "/etc/passwd").content.decode() == run.out("cat /etc/passwd")
    # as deep as the base dir
    assert files.tree("GET", f"{folder}/../../../../../../../etc/passwd").http_status in (200, 404)
    listing = files.tree("GET", f"{base}/{folder}").json()
    assert (listing["path"], [entry["name"] for entry in listing["entries"]]) == (
        f"{base}/{folder}",
        ["absolute", "relative"],
    )
    assert files.tree("DELETE", f"{base}/{folder}/absolute").http_status == 204
    assert files.names() == ["relative"]
    assert refused(files.target.request("GET", "/v1/fs/file")) == (400, "INVALID_ARGUMENT")


def test_links_of_the_tree_lead_anywhere(files: Files, run: Run, folder: str) -> None:
    run.out(f"ln -s /etc {folder}/etc")
    assert files.tree("GET", f"{folder}/etc/passwd").http_status == 200
    assert refused(files("GET", "etc/passwd")) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/root/etc/passwd",
        "/proc/self/fd/0",
        "/proc",
        "/sys",
        "/sys/kernel",
        "/dev/stdin",
        "/dev/fd/0",
        "{folder}/proc/self/environ",
        "{folder}/environ",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_files_of_the_kernel_are_refused(
    files: Files, run: Run, folder: str, path: str, method: str
) -> None:
    if method == "DELETE" and path.startswith("/dev"):
        return  # a link of the machine, and root may remove the link
    run.out(f"ln -s /proc {folder}/proc; ln -s /proc/self/environ {folder}/environ")
    answer = files.tree(method, path.format(folder=folder), b"x" if method == "PUT" else b"")
    if method == "DELETE" and path == "{folder}/environ":
        return  # a link itself, or nothing: nobody follows the link
    # Where /dev has no links there is nothing to refuse.
    assert answer.http_status == 403 or path.startswith("/dev/")


def test_device_is_no_file(files: Files) -> None:
    for path in ("/dev/zero", "/dev/null"):
        assert refused(files.tree("GET", path))[0] in (400, 403, 404)
        assert refused(files.tree("PUT", path, b"x"))[0] in (400, 403)


def test_state_dir_is_out_of_reach_by_every_route(
    files: Files, target: Target, run: Run, folder: str
) -> None:
    if target.state_dir is None:
        pytest.skip("the state dir of the daemon is not known")
    run.out(f"ln -s {target.state_dir} {folder}/state")
    for path in (
        target.state_dir,
        f"{target.state_dir}/bin",
        f"{folder}/state",
        f"{target.state_dir}/../{target.state_dir.rsplit('/', 1)[1]}/x",
    ):
        for method in ("GET", "PUT"):
            assert refused(files.tree(method, path, b"x" if method == "PUT" else b"")) == (
                403,
                "PERMISSION_DENIED",
            )
    assert refused(files.tree("DELETE", target.state_dir, query="&recursive=true")) == (
        403,
        "PERMISSION_DENIED",
    )


def test_root_of_the_tree_cannot_be_deleted(files: Files) -> None:
    answer = files.tree("DELETE", "/", query="&recursive=true")
    assert refused(answer) == (409, "CONFLICT")
    assert "recursive" not in answer.json()["message"], "it was said, and does not help"


# --- odd names, odd files


ODD_NAMES: list[Any] = [
    "new\nline",
    "tab\t",
    "ünï",
    "日本",
    '"quoted"',
    "it's",
    "100%25.txt",
    "%2F",
    "a b",
    "-rf",
    "*",
    "\\",
    "~",
    "x" * 255,
    "\x01\x7f",
    ":",
    "?a=b",
    "#",
]


def test_odd_names_go_there_and_back(files: Files, run: Run, folder: str) -> None:
    for name in ODD_NAMES:
        assert files("PUT", quote(name, safe=""), name.encode()).http_status == 204, name
    for name in ODD_NAMES:
        assert files("GET", quote(name, safe="")).content == name.encode()
    assert files.names() == sorted(ODD_NAMES, key=str.encode)
    assert int(run.python(f"import os; print(len(os.listdir({folder!r})))").stdout) == len(
        ODD_NAMES
    )
    for name in ODD_NAMES:
        assert files("DELETE", quote(name, safe="")).http_status == 204
    assert files.names() == []


def test_name_that_is_no_text_is_listed_with_the_way_to_ask_for_it(
    files: Files, run: Run, folder: str
) -> None:
    assert run.python(f"open({folder!r}.encode() + b'/\\xff\\xfe', 'w').write('x')").exit_code == 0
    (entry,) = files("GET", "").json()["entries"]
    assert (entry["name"], entry["name_percent_encoded"]) == ("\ufffd\ufffd", "%FF%FE")
    assert files("GET", entry["name_percent_encoded"]).content == b"x"


def test_name_that_no_file_can_have_is_400(files: Files) -> None:
    assert refused(files("PUT", "x" * 256, b"x")) == (400, "INVALID_ARGUMENT")
    assert refused(files("PUT", "/".join(["x" * 200] * 21), b"x")) == (400, "INVALID_ARGUMENT")


def test_special_files_block_nothing(files: Files, run: Run, folder: str) -> None:
    made = run.python(
        f"import os, socket; os.chdir({folder!r}); os.mkfifo('fifo'); "
        "socket.socket(socket.AF_UNIX).bind('socket')"
    )
    assert made.exit_code == 0, made.stderr
    for name in ("fifo", "socket"):
        began = time.monotonic()
        assert files("HEAD", name).http_status == 200
        assert refused(files("GET", name)) == (400, "INVALID_ARGUMENT")
        for query in ("", "?append=true", "?offset=0"):
            assert refused(files("PUT", name + query, b"x")) == (400, "INVALID_ARGUMENT")
        assert time.monotonic() - began < patience(30)
    assert [(entry["name"], entry["type"]) for entry in files("GET", "").json()["entries"]] == [
        ("fifo", "file"),
        ("socket", "file"),
    ]
    assert files("DELETE", "fifo").http_status == 204


def test_directory_without_permission_is_403(files: Files, run: Run, folder: str) -> None:
    if run.out("id -u").strip() == "0":
        pytest.skip("modes mean nothing to root")
    run.out(
        f"cd {folder}; mkdir closed readable; touch closed/x readable/x; "
        "chmod 000 closed; chmod 500 readable"
    )
    for method, path in (
        ("GET", "closed"),
        ("GET", "closed/x"),
        ("PUT", "closed/y"),
        ("PUT", "readable/y"),
        ("DELETE", "readable/x"),
        ("DELETE", "closed?recursive=true"),
    ):
        assert refused(files(method, path, b"x" if method == "PUT" else b"")) == (
            403,
            "PERMISSION_DENIED",
        ), (method, path)
    assert files("GET", "readable/x").http_status == 200


def test_listing_of_ten_thousand_names_is_whole(files: Files, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; seq -f '%08.0f-{'n' * 91}' 10000 | xargs touch")
    names = files.names()
    assert len(names) == 10_000
    assert sum(map(len, names)) == 1_000_000
    assert names == sorted(names)
