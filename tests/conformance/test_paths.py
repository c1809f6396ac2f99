"""How a path in a URL becomes a file: decoding, slashes, and the border of the base dir."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .conftest import Run
    from .target import Target

    Upload = Callable[[str, bytes], httpx.Response]

DENIED = {"message": "Access denied"}


@pytest.mark.parametrize(
    "spelling",
    [
        "{folder}/sub/file",
        "{folder}%2Fsub%2Ffile",
        "{folder}%2fsub/file",
        "/{folder}/sub/file",
        "//{folder}/sub/file",
        "%2F{folder}/sub/file",
        "{folder}//sub///file",
        "./{folder}/./sub/file",
        "{folder}/none/../sub/file",
        "{folder}/sub/../sub/file",
        "%2E%2F{folder}/sub/file",
        "{folder}/%73ub/file",
    ],
)
def test_one_file_has_many_spellings(
    target: Target, upload: Upload, folder: str, spelling: str
) -> None:
    upload(f"{folder}/sub/file", b"found")
    path = spelling.format(folder=folder)
    answer = target.request("GET", f"/download/{path}")
    assert (answer.http_status, answer.content) == (200, b"found")
    assert target.request("GET", f"/exists/{path}").json()["exists"] is True


@pytest.mark.parametrize(
    "name",
    [
        "100%.txt",
        "100%25.txt",
        "per%20cent",
        "%2F",
        "plus+plus",
        "a b",
        "#",
        "?",
        "&=",
        "'",
        '"',
        "é",
        "日本",
        "\\",
        "~",
        "*",
    ],
)
def test_path_is_decoded_exactly_once(
    target: Target, client: httpx.Client, upload: Upload, run: Run, folder: str, name: str
) -> None:
    program = (
        f"import base64; open({folder!r} + '/' + "
        f"base64.b64decode({_base64(name)!r}).decode(), 'w').write('x')"
    )
    assert run.python(program).exit_code == 0
    path = quote(f"{folder}/{name}", safe="")
    assert target.request("GET", f"/download/{path}").content == b"x"
    assert target.request("GET", f"/exists/{path}").json() == {
        "path": f"{folder}/{name}",
        "exists": True,
    }
    assert [entry["name"] for entry in client.get(f"/list/{folder}").json()] == [name]


def _base64(text: str) -> str:
    from base64 import b64encode

    return b64encode(text.encode()).decode()


@pytest.mark.parametrize("route", ["download", "list", "exists"])
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../",
        "../../etc/passwd",
        "%2E%2E/etc/passwd",
        "%2e%2e%2fetc%2fpasswd",
        "..%2F..%2Fetc",
        "{folder}/../../etc",
        "/../etc/passwd",
        "%2F..%2Fetc",
        "{folder}/out/passwd",
        "{folder}/out",
    ],
)
def test_path_that_leaves_the_base_dir_is_refused(
    target: Target, run: Run, folder: str, route: str, path: str
) -> None:
    run.out(f"ln -s /etc {folder}/out")
    answer = target.request("GET", f"/{route}/{path.format(folder=folder)}")
    assert (answer.http_status, answer.json()) == (403, DENIED)


@pytest.mark.parametrize("route", ["download", "list", "exists"])
def test_nul_in_a_path_is_refused(target: Target, route: str) -> None:
    answer = target.request("GET", f"/{route}/a%00b")
    assert (answer.http_status, answer.json()) == (403, DENIED)


def test_sibling_with_the_base_dir_s_name_as_a_prefix_is_outside(target: Target, run: Run) -> None:
    sibling = run.out("basename $(pwd -P)").strip() + "-sibling"
    answer = target.request("GET", f"/exists/../{sibling}")
    assert (answer.http_status, answer.json()) == (403, DENIED)


def test_path_that_leaves_and_comes_back_is_inside(
    target: Target, upload: Upload, run: Run, folder: str
) -> None:
    upload(f"{folder}/x", b"1")
    name = run.out("basename $(pwd -P)").strip()
    assert target.request("GET", f"/download/../{name}/{folder}/x").content == b"1"


@pytest.mark.parametrize("path", ["n" * 300, "/".join(["n" * 200] * 25)])
def test_name_that_is_too_long_does_not_exist(target: Target, path: str) -> None:
    assert target.request("GET", f"/download/{path}").http_status == 404
    assert target.request("GET", f"/list/{path}").http_status == 404
    assert target.request("GET", f"/exists/{path}").json()["exists"] is False


@pytest.mark.parametrize("path", ["%FF%FE", "%C3%28", "%ED%A0%80"])
def test_path_that_is_no_utf_8_is_not_a_server_fault(target: Target, path: str) -> None:
    for route in ("download", "list", "exists"):
        assert target.request("GET", f"/{route}/{path}").http_status < 500


@pytest.mark.parametrize("path", ["%", "%2", "%zz", "a%"])
def test_percent_that_encodes_nothing_is_not_a_server_fault(target: Target, path: str) -> None:
    for route in ("download", "list", "exists"):
        assert target.request("GET", f"/{route}/{path}").http_status < 500


def test_file_with_a_newline_in_its_name_is_served(target: Target, run: Run, folder: str) -> None:
    run.python(f"open('{folder}/a\\nb', 'w').write('x')")
    assert target.request("GET", f"/download/{folder}/a%0Ab").content == b"x"


def test_absolute_path_under_the_base_dir_means_itself(
    target: Target, upload: Upload, run: Run, folder: str
) -> None:
    base = run.out("pwd -P").strip()
    assert upload(f"{base}/{folder}/x", b"1").status_code == 200
    assert run.out(f"cat {folder}/x") == "1"
    for spelling in (f"{base}/{folder}/x", quote(f"{base}/{folder}/x", safe="")):
        assert target.request("GET", f"/download/{spelling}").content == b"1"
        assert target.request("GET", f"/exists/{spelling}").json()["exists"] is True


def test_absolute_path_outside_the_base_dir_is_re_rooted(
    target: Target, upload: Upload, run: Run
) -> None:
    assert target.request("GET", "/exists//etc/passwd").json()["exists"] is False
    assert upload("/etc/re-rooted", b"1").status_code == 200
    assert run.out("cat etc/re-rooted; rm -r etc") == "1"


def test_file_that_the_old_reading_of_an_absolute_path_finds_wins(
    target: Target, run: Run, folder: str
) -> None:
    base = run.out("pwd -P").strip()
    run.out(f"mkdir -p .{base}/{folder}; printf nested > .{base}/{folder}/x")
    try:
        assert target.request("GET", f"/download/{base}/{folder}/x").content == b"nested"
        run.out(f"printf plain > {folder}/x")
        assert target.request("GET", f"/download/{base}/{folder}/x").content == b"plain"
    finally:
        run.out(f"rm -r ./{base.split('/')[1]}")


def test_link_is_judged_where_it_lands_however_often_it_is_swapped(
    target: Target, run: Run, folder: str, marker: str
) -> None:
    """The race that breaks check-then-open: a link points inside at the check and outside at the
    open."""
    run.out(f"printf inside > {folder}/file; ln -s file {folder}/link")
    swap = (
        f"import os, itertools\n"
        f"for n in itertools.count():\n"
        f"    os.symlink(('file', '/etc/passwd')[n % 2], '{folder}/next'); "
        f"os.rename('{folder}/next', '{folder}/link')"
    )
    run(f'timeout 20 python3 -c "{swap}" {marker} > /dev/null 2>&1 &')
    outcomes = set()
    for _ in range(300):
        answer = target.request("GET", f"/download/{folder}/link")
        assert (answer.http_status, answer.content) in (
            (200, b"inside"),
            (403, b'{"message":"Access denied"}'),
        ), answer
        outcomes.add(answer.http_status)
    assert outcomes == {200, 403}
