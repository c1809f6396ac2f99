"""POST /upload: names, every spelling of multipart, atomic writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .target import request_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .conftest import Run
    from .target import Target

    Upload = Callable[[str, bytes], httpx.Response]

BOUNDARY = "b0undary"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
END = f"\r\n--{BOUNDARY}--\r\n".encode()


def part(disposition: str, content: bytes = b"", more: str = "") -> bytes:
    return (
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n{more}\r\n".encode()
        + content
    )


def names(client: httpx.Client, folder: str) -> list[str]:
    return [entry["name"] for entry in client.get(f"/list/{folder}").json()]


def test_upload_says_what_was_written_and_the_file_is_there(
    upload: Upload, run: Run, folder: str
) -> None:
    response = upload(f"{folder}/a.txt", b"hello")
    assert response.status_code == 200
    assert response.json() == {"message": f"File '{folder}/a.txt' uploaded successfully."}
    assert run.out(f"cat {folder}/a.txt") == "hello"


def test_parents_are_made(upload: Upload, run: Run, folder: str) -> None:
    assert upload(f"{folder}/very/deep/down/x", b"1").status_code == 200
    assert run.out(f"cat {folder}/very/deep/down/x") == "1"


def test_empty_file_is_uploaded(upload: Upload, run: Run, folder: str) -> None:
    assert upload(f"{folder}/empty", b"").status_code == 200
    assert run.out(f"wc -c < {folder}/empty").strip() == "0"


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)),
        b"\r\n",
        b"--" + BOUNDARY.encode(),
        b"\r\n--" + BOUNDARY.encode() + b"x",
        b"\0" * 70000,
    ],
)
def test_every_byte_arrives(
    client: httpx.Client, target: Target, folder: str, content: bytes
) -> None:
    boundary = "0ther"
    body = (
        (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="file"; filename="{folder}/x"\r\n'
            "\r\n"
        ).encode()
        + content
        + f"\r\n--{boundary}--\r\n".encode()
    )
    answer = target.request(
        "POST", "/upload", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    )
    assert answer.http_status == 200
    assert client.get(f"/download/{folder}/x").content == content


@pytest.mark.parametrize(
    "name",
    [
        "with space.txt",
        "naïve 日本.txt",
        "it's",
        "a;b",
        "a=b&c",
        "100%.txt",
        "100%25.txt",
        "-n",
        ".hidden",
        "a\\b",
        "#?",
    ],
)
def test_name_is_kept_as_it_is(
    upload: Upload, client: httpx.Client, folder: str, name: str
) -> None:
    assert upload(f"{folder}/{name}", b"x").status_code == 200
    assert names(client, folder) == [name]


def test_quote_in_a_name_is_understood_in_both_spellings(
    client: httpx.Client, target: Target, folder: str
) -> None:
    """Browsers, urllib3 and httpx write a quote as %22; RFC 2616 as a backslash and a quote."""
    for spelling in (f"{folder}/say %22hi%22", f'{folder}/say \\"ho\\"'):
        body = part(f'name="file"; filename="{spelling}"', b"x") + END
        assert target.request("POST", "/upload", body, MULTIPART).http_status == 200
    assert names(client, folder) == ['say "hi"', 'say "ho"']


def test_encoded_name_of_rfc_5987_is_understood(
    client: httpx.Client, target: Target, folder: str
) -> None:
    body = part(f"name=\"file\"; filename*=UTF-8''{folder}/na%C3%AFve%20%22q%22.txt", b"x") + END
    assert target.request("POST", "/upload", body, MULTIPART).http_status == 200
    assert names(client, folder) == ['naïve "q".txt']


def test_other_fields_before_and_after_the_file_are_ignored(
    run: Run, target: Target, folder: str
) -> None:
    body = (
        part('name="a"', b"1\r\n")
        + part('name="b"; filename="decoy"', b"2\r\n")
        + part(f'name="file"; filename="{folder}/x"', b"right", "Content-Type: text/plain\r\n")
        + b"\r\n"
        + part('name="c"', b"3")
        + END
    )
    assert target.request("POST", "/upload", body, MULTIPART).http_status == 200
    assert run.out(f"cat {folder}/x; ls {folder}") == "rightx\n"
    assert run("ls decoy").exit_code != 0


def test_body_may_come_in_chunks_of_any_size(run: Run, target: Target, folder: str) -> None:
    body = part(f'name="file"; filename="{folder}/x"', b"0123456789" * 50) + END
    for size in (1, 3, 1000):
        with target.connect() as connection:
            head = request_bytes(
                "GET", "/upload", b"", MULTIPART | {"Transfer-Encoding": "chunked"}
            )
            connection.sendall(head.replace(b"GET", b"POST", 1))
            for at in range(0, len(body), size):
                piece = body[at : at + size]
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert run.out(f"cat {folder}/x; rm {folder}/x") == "0123456789" * 50


def test_upload_without_a_file_part_is_422(client: httpx.Client) -> None:
    for response in (
        client.post("/upload", data={"other": "x"}),
        client.post("/upload", files={"other": ("name", b"x")}),
        client.post("/upload", content=b"x", headers={"Content-Type": "application/octet-stream"}),
        client.post("/upload"),
    ):
        assert response.status_code == 422
        assert isinstance(response.json()["detail"], list)
        assert ["body", "file"] in [fault["loc"] for fault in response.json()["detail"]]


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", END, part('name="file"; filename="never"', b"cut")]
)
def test_broken_multipart_is_the_caller_s_fault(target: Target, run: Run, body: bytes) -> None:
    answer = target.request("POST", "/upload", body, MULTIPART)
    assert 400 <= answer.http_status < 500
    assert "detail" in answer.json() or "message" in answer.json()
    assert run("ls never").exit_code != 0


def test_upload_over_an_old_file_replaces_it_whole(upload: Upload, run: Run, folder: str) -> None:
    upload(f"{folder}/x", b"a much longer text than the next")
    upload(f"{folder}/x", b"short")
    assert run.out(f"cat {folder}/x; ls -A {folder}") == "shortx\n"


def test_upload_replaces_the_name_and_not_the_file_behind_an_open_descriptor(
    upload: Upload, run: Run, folder: str
) -> None:
    upload(f"{folder}/x", b"old")
    run.out(f"ln {folder}/x {folder}/same")
    upload(f"{folder}/x", b"new")
    assert run.out(f"cat {folder}/x {folder}/same") == "newold"


def test_upload_that_is_cut_leaves_the_old_file_and_nothing_else(
    client: httpx.Client, upload: Upload, target: Target, run: Run, folder: str
) -> None:
    upload(f"{folder}/x", b"old")
    whole = request_bytes(
        "POST",
        "/upload",
        part(f'name="file"; filename="{folder}/x"', b"n" * 3_000_000) + END,
        MULTIPART,
    )
    for length in (len(whole) // 2, len(whole) - 3):
        with target.connect() as connection:
            connection.sendall(whole[:length])
            # During the upload, readers see the old file.
            assert client.get(f"/download/{folder}/x").content == b"old"
        wait_until(lambda: run.out(f"ls -A {folder}") == "x\n", 5, "no temporary file is left")
        assert run.out(f"cat {folder}/x") == "old"


def test_uploads_to_one_name_at_once_leave_one_of_them_whole(
    target: Target, run: Run, folder: str
) -> None:
    bodies = [
        part(f'name="file"; filename="{folder}/x"', b"%d" % n * 500_000) + END for n in range(8)
    ]
    answers = target.request_at_once(
        [request_bytes("POST", "/upload", body, MULTIPART) for body in bodies]
    )
    assert {answer.http_status for answer in answers} == {200}
    assert run.out(f"fold -w1 {folder}/x | sort -u | wc -l; wc -c < {folder}/x").split() == [
        "1",
        "500000",
    ]
    assert run.out(f"ls -A {folder}") == "x\n"


@pytest.mark.parametrize(
    "name", ["", ".", "{folder}", "{folder}/", "{folder}/.", "{folder}/sub/.."]
)
def test_directory_as_a_target_is_the_caller_s_fault(
    upload: Upload, run: Run, folder: str, name: str
) -> None:
    response = upload(name.format(folder=folder), b"x")
    assert 400 <= response.status_code < 500, response.text
    assert run.out(f"ls -A {folder}") in ("", "sub\n")


def test_file_as_a_parent_is_the_caller_s_fault(upload: Upload, folder: str) -> None:
    upload(f"{folder}/x", b"1")
    response = upload(f"{folder}/x/y", b"2")
    assert 400 <= response.status_code < 500
    assert response.json()["message"].startswith("File upload failed")


def test_name_that_is_too_long_is_the_caller_s_fault(upload: Upload, folder: str) -> None:
    for name in ("n" * 300, "/".join(["n" * 200] * 30)):
        response = upload(f"{folder}/{name}", b"x")
        assert 400 <= response.status_code < 500
        assert response.json()["message"]


@pytest.mark.parametrize(
    "name", ["../escape", "a/../../escape", "/../escape", "{folder}/../../escape"]
)
def test_name_that_leaves_the_base_dir_is_refused(
    upload: Upload, run: Run, folder: str, name: str
) -> None:
    response = upload(name.format(folder=folder), b"x")
    assert response.status_code == 403
    assert response.json() == {"message": "Access denied"}
    assert run("ls ../escape").exit_code != 0


def test_link_that_leaves_the_base_dir_is_not_followed(
    upload: Upload, run: Run, folder: str
) -> None:
    # /dev/shm: in a pod without a /tmp nothing else outside the base dir can be written.
    outside = f"/dev/shm/{folder}"
    run.out(f"mkdir {outside}; ln -s {outside} {folder}/out; ln -s {outside}/file {folder}/link")
    response = upload(f"{folder}/out/file", b"x")
    assert response.status_code == 403
    assert response.json() == {"message": "Access denied"}
    response = upload(f"{folder}/link", b"x")
    assert response.status_code in (200, 403)  # replacing the link itself harms nobody
    assert run.out(f"ls -A {outside}; rm -r {outside}") == ""


def test_link_that_stays_inside_is_followed(upload: Upload, run: Run, folder: str) -> None:
    run.out(f"mkdir {folder}/real; ln -s real {folder}/link")
    assert upload(f"{folder}/link/x", b"1").status_code == 200
    assert run.out(f"cat {folder}/real/x") == "1"


def test_leading_slashes_mean_the_base_dir(upload: Upload, run: Run, folder: str) -> None:
    assert upload(f"///{folder}/x", b"1").status_code == 200
    assert run.out(f"cat {folder}/x") == "1"


def test_script_that_was_uploaded_over_a_running_one_does_not_disturb_it(
    upload: Upload, run: Run, folder: str
) -> None:
    upload(
        f"{folder}/a.sh",
        b"cp %b/new %b/a.sh.part && mv %b/a.sh.part %b/a.sh\necho first\n"
        % ((folder.encode(),) * 4),
    )
    upload(f"{folder}/new", b"echo second\n")
    assert run.out(f"sh {folder}/a.sh; sh {folder}/a.sh") == "first\nsecond\n"
