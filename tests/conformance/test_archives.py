"""/v1/archive: directories down and up."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import random
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .conftest import Run
    from .target import Answer, Target

NO_HEADERS: Mapping[str, str] = {}
FORMATS = ("tar", "tar.gz", "zip")
any_format = pytest.mark.parametrize("kind", FORMATS)

MAKE_TREE = (
    "mkdir -p src/sub/empty src/$(printf 'x%.0s' $(seq 120))/$(printf 'y%.0s' $(seq 120)); "
    "printf hello > src/a; chmod 751 src/a; "
    "touch -d @1700000000 src/a; python3 -c 'import random, sys; "
    "sys.stdout.buffer.write(random.Random(1).randbytes(700000))' > src/sub/big; "
    "printf 1 > src/$(printf 'x%.0s' $(seq 120))/$(printf 'y%.0s' $(seq 120))/z; "
    "printf n > 'src/naïve 日本'; ln -s sub/big src/link; ln -s ../a src/sub/up; "
    "mkfifo src/fifo; : > src/none"
)


def packed(kind: str, *members: tuple[str, Any]) -> bytes:
    """An archive. A member is bytes, or a function that changes the member's TarInfo."""
    raw = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                info = zipfile.ZipInfo(name)
                if isinstance(content, tuple):
                    info.external_attr, content = content[0] << 16, content[1]
                archive.writestr(info, content)
        return raw.getvalue()
    with tarfile.open(fileobj=raw, mode="w:gz" if kind == "tar.gz" else "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for key, value in content.items():
                    setattr(info, key, value)
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def put(
    target: Target,
    path: str,
    body: bytes,
    kind: str = "tar",
    headers: Mapping[str, str] = NO_HEADERS,
) -> Answer:
    return target.request("PUT", f"/v1/archive/{path}?format={kind}", body, headers)


def code(answer: Answer) -> tuple[int, str]:
    return answer.http_status, answer.json()["code"]


def tree(run: Run, folder: str) -> str:
    return run.out(
        f"cd {folder}; find . -mindepth 1 ! -type p -printf '%P %y %m %l\\n' | LC_ALL=C sort; "
        "find . -type f | LC_ALL=C sort | xargs -d '\\n' cat | sha256sum"
    )


@any_format
def test_directory_goes_down_and_up_again_unchanged(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    run.out(
        f"cd {folder}; {MAKE_TREE}; mkdir src/sub/closed src/group src/sticky; "
        "chmod 555 src/sub/closed; chmod 2775 src/group; chmod 1777 src/sticky"
    )
    answer = target.request("GET", f"/v1/archive/{folder}/src?format={kind}")
    assert answer.http_status == 200
    assert answer.headers["Content-Disposition"] == f'attachment; filename="src.{kind}"'
    up = put(target, f"{folder}/new/place", answer.content, kind)
    assert (up.http_status, up.json()["files"], up.json()["links"]) == (200, 5, 2)
    assert up.json()["bytes"] == 700_000 + 5 + 1 + 1
    assert tree(run, f"{folder}/new/place") == tree(run, f"{folder}/src")
    if kind != "zip":
        assert run.out(f"stat -c %Y {folder}/new/place/a") == "1700000000\n"
    assert run.out(f"ls -A {folder} {folder}/new | wc -l").strip() == "6"  # no temporary


@any_format
def test_archive_is_one_that_other_programs_read(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    run.out(f"cd {folder}; {MAKE_TREE}; rm src/fifo")
    content = target.request("GET", f"/v1/archive/{folder}/src?format={kind}").content
    if kind == "zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            assert archive.read("a") == b"hello"
            assert "naïve 日本" in archive.namelist()
    else:
        target.request("PUT", f"/v1/files/{folder}/x.{kind}", content)
        run.out(f"cd {folder}; mkdir out; tar -C out -xf x.{kind}")
        assert tree(run, f"{folder}/out") == tree(run, f"{folder}/src")


@any_format
def test_archive_of_one_file_has_one_member(target: Target, folder: str, kind: str) -> None:
    target.request("PUT", f"/v1/files/{folder}/x", b"content")
    answer = target.request("GET", f"/v1/archive/{folder}/x?format={kind}")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="x.{kind}"'
    put(target, f"{folder}/out", answer.content, kind)
    assert target.request("GET", f"/v1/files/{folder}/out/x").content == b"content"
    assert code(target.request("GET", f"/v1/archive/{folder}/none?format={kind}")) == (
        404,
        "NOT_FOUND",
    )
    assert target.request("HEAD", f"/v1/archive/{folder}?format={kind}").http_status == 200


@any_format
def test_archive_is_merged_into_what_is_there(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    run.out(
        f"cd {folder}; mkdir -p d/sub; printf old > d/a; printf kept > d/b; printf old > d/sub/c"
    )
    assert (
        put(
            target,
            f"{folder}/d",
            packed(kind, ("a", b"new"), ("sub/c", b"new"), ("sub/d", b"new")),
            kind,
        ).http_status
        == 200
    )
    assert run.out(f"cd {folder}/d; cat a b sub/c sub/d; ls -A . sub | wc -l") == "newkeptnewnew8\n"


@any_format
def test_archive_that_stands_in_its_own_way_changes_nothing(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    run.out(f"cd {folder}; mkdir -p d/a; touch d/a/kept; printf old > d/b; ln -s /etc d/c")
    for members in (
        (("0", b"x"), ("a", b"x")),
        (("0", b"x"), ("b/x", b"x")),
        (("0", b"x"), ("c/x", b"x")),
    ):
        assert code(put(target, f"{folder}/d", packed(kind, *members), kind)) == (409, "CONFLICT")
    assert run.out(f"cd {folder}/d; ls -A . a; cat b") == ".:\na\nb\nc\n\na:\nkept\nold"
    assert code(put(target, f"{folder}/d/b", packed(kind, ("x", b"x")), kind)) == (
        400,
        "INVALID_ARGUMENT",
    )


UNSAFE = [
    ("/etc/execd-test", b"x"),
    ("../x", b"x"),
    ("a/../../x", b"x"),
    ("x" * 256, b"x"),
]
UNSAFE_IN_TAR: list[tuple[str, Any]] = [
    ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
    ("link", {"type": tarfile.SYMTYPE, "linkname": ".."}),
    ("a/link", {"type": tarfile.SYMTYPE, "linkname": "../../x"}),
    ("link", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
    ("link", {"type": tarfile.LNKTYPE, "linkname": "../x"}),
    ("link", {"type": tarfile.LNKTYPE, "linkname": "none"}),
    ("device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}),
    ("disk", {"type": tarfile.BLKTYPE, "devmajor": 8}),
    ("fifo", {"type": tarfile.FIFOTYPE}),
    ("odd", {"type": b"Z"}),
]


@any_format
@pytest.mark.parametrize("member", UNSAFE)
def test_name_in_an_archive_that_leads_out_is_refused_and_nothing_is_left(
    target: Target, run: Run, folder: str, kind: str, member: tuple[str, Any]
) -> None:
    assert code(put(target, f"{folder}/d", packed(kind, ("before", b"x"), member), kind)) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert run.out(f"ls -A {folder}; ls -d /etc/execd-test 2>/dev/null || true") == ""


@pytest.mark.parametrize("member", UNSAFE_IN_TAR)
def test_link_out_device_or_fifo_in_an_archive_is_refused_and_nothing_is_left(
    target: Target, run: Run, folder: str, member: tuple[str, Any]
) -> None:
    assert code(put(target, f"{folder}/d", packed("tar", ("before", b"x"), member))) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert run.out(f"ls -A {folder}") == ""


@pytest.mark.parametrize(
    ("mode", "content"), [(0o120777, "/etc"), (0o120777, "../x"), (0o020666, b""), (0o010666, b"")]
)
def test_the_same_in_a_zip(target: Target, run: Run, folder: str, mode: int, content: Any) -> None:
    assert code(put(target, f"{folder}/d", packed("zip", ("a", (mode, content))), "zip")) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert run.out(f"ls -A {folder}") == ""


def test_write_through_a_link_of_the_archive_is_refused(
    target: Target, run: Run, folder: str
) -> None:
    body = packed(
        "tar",
        ("dir/x", b"x"),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "dir"}),
        ("link/y", b"y"),
    )
    assert code(put(target, f"{folder}/d", body)) == (400, "INVALID_ARGUMENT")
    assert run.out(f"ls -A {folder}") == ""


def test_links_inside_an_archive_are_kept(target: Target, run: Run, folder: str) -> None:
    body = packed(
        "tar",
        ("dir/x", b"content"),
        ("dir/hard", {"type": tarfile.LNKTYPE, "linkname": "dir/x"}),
        ("soft", {"type": tarfile.SYMTYPE, "linkname": "./dir/../dir/x"}),
        ("./", {"type": tarfile.DIRTYPE, "mode": 0}),
        ("setuid", {"mode": 0o4755}),
    )
    assert put(target, folder, body).http_status == 200
    assert (
        run.out(f"cd {folder}; cat dir/hard soft; stat -c %h dir/x; stat -c %a setuid")
        == "contentcontent2\n755\n"
    )


@any_format
def test_archive_that_is_cut_or_damaged_leaves_nothing(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    content = random.Random(1).randbytes(200_000)
    whole = packed(kind, ("a", b"first"), ("b", content))
    damaged = bytearray(whole)
    damaged[300] ^= 0xFF  # a tar's first header, else compressed data
    for body in (
        whole[:100_000],
        whole[:700],
        b"",
        b"no archive" * 100,
        bytes(damaged) if kind != "tar" else bytes(damaged[:150]) + b"9" + bytes(damaged[151:]),
    ):
        assert code(put(target, f"{folder}/d", body, kind)) == (400, "INVALID_ARGUMENT")
    head = (
        f"PUT /v1/archive/{folder}/d?format={kind} HTTP/1.1\r\n"
        "Host: localhost\r\n"
        f"Content-Length: {len(whole)}\r\n"
        "\r\n"
    )
    with target.connect() as connection:
        connection.sendall(head.encode() + whole[:150_000])
    assert target.request("GET", "/healthz").http_status == 200
    assert (
        run.out(
            f'for i in $(seq 100); do [ -z "$(ls -A {folder})" ] && break; '
            f"sleep 0.05; done; ls -A {folder}"
        )
        == ""
    )


@any_format
def test_digest_of_an_archive_is_checked_before_anything_appears(
    target: Target, run: Run, folder: str, kind: str
) -> None:
    body = packed(kind, ("a", b"x"))
    right, wrong = (
        f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"
        for data in (body, b"other")
    )
    assert code(put(target, f"{folder}/d", body, kind, {"Repr-Digest": wrong})) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert code(
        put(target, f"{folder}/d", body, kind, {"Repr-Digest": right, "Content-Digest": wrong})
    ) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert run.out(f"ls -A {folder}") == ""
    assert put(target, f"{folder}/d", body, kind, {"Repr-Digest": right}).http_status == 200


@any_format
def test_archive_over_its_limits_is_413_and_leaves_nothing(
    own_daemon: Callable[..., Target], kind: str
) -> None:
    daemon = own_daemon("--max-unpacked-bytes=1000000", "--max-unpacked-entries=10")
    bombs = (
        packed(kind, ("zeros", bytes(1_000_001))),
        packed(kind, *((f"part-{n}", bytes(300_000)) for n in range(4))),
        packed(kind, *((str(n), b"") for n in range(11))),
    )
    for bomb in bombs:
        assert code(put(daemon, "d", bomb, kind)) == (413, "PAYLOAD_TOO_LARGE")
    assert daemon.request("GET", "/v1/files/").json()["entries"] == []
    assert (
        put(
            daemon, "d", packed(kind, *((str(n), bytes(100_000)) for n in range(10))), kind
        ).http_status
        == 200
    )


def test_bomb_of_nothing_but_zeros_is_stopped_early(own_daemon: Callable[..., Target]) -> None:
    daemon = own_daemon("--max-unpacked-bytes=1000000", "--max-unpacked-entries=10")
    # after the end mark of a tar, where nothing is written
    zeros = gzip.compress(bytes(1 << 20)) * 2000
    assert code(put(daemon, "d", zeros, "tar.gz")) == (413, "PAYLOAD_TOO_LARGE")


def test_archive_shows_its_format_where_none_is_given(target: Target, folder: str) -> None:
    for kind, name in (
        ("tar", "application/x-tar"),
        ("tar.gz", "application/gzip"),
        ("zip", "application/zip"),
    ):
        answer = target.request("PUT", f"/v1/archive/{folder}/d", packed(kind, (kind, b"x")))
        assert answer.http_status == 200
        assert target.request("GET", f"/v1/files/{folder}/d/{kind}").content == b"x"
        assert (
            target.request("GET", f"/v1/archive/{folder}/d?format={kind}").headers["Content-Type"]
            == name
        )


def test_archive_in_another_format_than_given_is_400_and_names_both(
    target: Target, folder: str
) -> None:
    assert code(put(target, f"{folder}/d", b"", "rar")) == (400, "INVALID_ARGUMENT")
    for given, real in (("tar", "tar.gz"), ("zip", "tar"), ("tar.gz", "zip"), ("tar", "zip")):
        answer = put(target, f"{folder}/d", packed(real, ("x", b"x")), given)
        assert code(answer) == (400, "INVALID_ARGUMENT")
        assert f"is a {real}, not a {given}" in answer.json()["message"]
        assert target.request("GET", f"/v1/files/{folder}/d").http_status == 404


def test_unreadable_file_ends_an_archive_unless_told_to_leave_it_out(
    target: Target, run: Run, folder: str
) -> None:
    if run.out("id -u").strip() == "0":
        pytest.skip("modes mean nothing to root")
    run.out(f"cd {folder}; touch a; chmod 000 a; printf x > b")
    assert code(target.request("GET", f"/v1/archive/{folder}")) == (403, "PERMISSION_DENIED")
    content = target.request("GET", f"/v1/archive/{folder}?skip_unreadable=true").content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["b"]


def test_archive_of_a_directory_outside_is_refused(target: Target, run: Run, folder: str) -> None:
    run.out(f"ln -s /etc {folder}/etc")
    for method in ("GET", "PUT"):
        assert (
            target.request(
                method,
                f"/v1/archive/{folder}/etc",
                packed("tar", ("x", b"x")) if method == "PUT" else b"",
            ).http_status
            == 403
        )
        assert target.request(method, "/v1/archive/..", b"").http_status == 403
