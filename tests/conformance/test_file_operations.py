"""/v1/fs: file operations besides reading and writing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Run
    from .target import Answer, Target

    Post = Callable[..., Answer]


@pytest.fixture
def post(target: Target) -> Post:
    def send(operation: str, **fields: Any) -> Answer:
        return target.request(
            "POST",
            f"/v1/fs/{operation}",
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"},
        )

    return send


def stat(target: Target, path: str, more: str = "") -> Any:
    return target.request("GET", f"/v1/fs/stat?path={quote(path)}{more}").json()


def code(answer: Answer) -> tuple[int, str]:
    return answer.http_status, answer.json()["code"]


def tree(run: Run, folder: str) -> list[str]:
    return run.out(
        f"cd {folder}; find . -mindepth 1 -printf '%P %y %m %l\\n' | LC_ALL=C sort"
    ).splitlines()


# --- stat


def test_stat_describes_what_is_there_and_links_themselves_on_request(
    target: Target, run: Run, folder: str
) -> None:
    run.out(
        f"cd {folder}; printf 123 > file; chmod 640 file; touch -d @1700000000 file; "
        "ln -s file link; ln -s none dangling; mkfifo fifo"
    )
    base = run.out("pwd -P").strip()
    file = stat(target, f"{folder}/file")
    assert {
        name: file[name] for name in ("path", "type", "size", "mode", "modified_at", "links")
    } == {
        "path": f"{base}/{folder}/file",
        "type": "file",
        "size": 3,
        "mode": "0640",
        "modified_at": "2023-11-14T22:13:20Z",
        "links": 1,
    }
    assert (file["uid"], file["gid"]) == (int(run.out("id -u")), int(run.out("id -g")))
    assert file["etag"] == target.request("GET", f"/v1/files/{folder}/file").headers["ETag"]
    assert stat(target, f"{folder}/link")["path"] == file["path"]
    link = stat(target, f"{folder}/link", "&follow=false")
    assert (link["type"], link["target"], link["path"]) == (
        "symlink",
        "file",
        f"{base}/{folder}/link",
    )
    assert stat(target, f"{folder}/dangling")["code"] == "NOT_FOUND"
    assert stat(target, f"{folder}/dangling", "&follow=false")["target"] == "none"
    assert stat(target, f"{folder}/fifo")["type"] == "fifo"
    assert stat(target, folder)["type"] == "directory"
    assert target.request("HEAD", f"/v1/fs/stat?path={folder}/none").http_status == 404


# --- mkdir


def test_directories_are_made_with_their_parents(
    target: Target, post: Post, run: Run, folder: str
) -> None:
    answer = post("mkdir", path=f"{folder}/a/b", mode="0700")
    assert (answer.http_status, answer.json()["type"], answer.json()["mode"]) == (
        200,
        "directory",
        "0700",
    )
    assert tree(run, folder) == ["a d 755 ", "a/b d 700 "]
    assert post("mkdir", path=f"{folder}/a/b").http_status == 200
    assert code(post("mkdir", path=f"{folder}/a/b", parents=False)) == (409, "CONFLICT")
    assert code(post("mkdir", path=f"{folder}/x/y", parents=False)) == (404, "NOT_FOUND")
    run.out(f"touch {folder}/file")
    assert code(post("mkdir", path=f"{folder}/file")) == (409, "CONFLICT")
    assert code(post("mkdir", path=f"{folder}/file/below")) == (400, "INVALID_ARGUMENT")


# --- move


def test_move_gives_another_name_and_replaces_on_request_only(
    post: Post, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; printf 1 > a; printf 2 > b; ln -s a link")
    answer = post("move", src=f"{folder}/a", dest=f"{folder}/new/parent/c")
    assert (answer.http_status, answer.json()["type"], answer.json()["size"]) == (200, "file", 1)
    assert code(post("move", src=f"{folder}/b", dest=f"{folder}/new/parent/c")) == (409, "CONFLICT")
    assert run.out(f"cat {folder}/new/parent/c") == "1"
    assert (
        post("move", src=f"{folder}/b", dest=f"{folder}/new/parent/c", overwrite=True).http_status
        == 200
    )
    assert run.out(f"cat {folder}/new/parent/c") == "2"
    assert post("move", src=f"{folder}/link", dest=f"{folder}/moved").json()["target"] == "a"
    assert post("move", src=f"{folder}/new", dest=f"{folder}/dir").json()["type"] == "directory"
    assert tree(run, folder) == [
        "dir d 755 ",
        "dir/parent d 755 ",
        "dir/parent/c f 644 ",
        "moved l 777 a",
    ]


def test_move_that_cannot_be_is_refused_and_moves_nothing(
    post: Post, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; mkdir -p a/b full; touch file full/x")
    for src, dest, expected in (
        ("none", "x", (404, "NOT_FOUND")),
        ("a", "a/b/c", (400, "INVALID_ARGUMENT")),
        ("a", "a", (409, "CONFLICT")),
        ("a", "full", (409, "CONFLICT")),
        ("file", "full/x/y", (400, "INVALID_ARGUMENT")),
        ("file", "full", (400, "INVALID_ARGUMENT")),
        ("a", "file", (400, "INVALID_ARGUMENT")),
    ):
        answer = post("move", src=f"{folder}/{src}", dest=f"{folder}/{dest}", overwrite=True)
        assert code(answer) == expected, (src, dest)
        if expected[0] == 400:
            assert f"{folder}/{dest}'" in answer.json()["message"], "the one to blame is named"
    assert code(post("move", src="/", dest=f"{folder}/x")) in (
        (403, "PERMISSION_DENIED"),
        (400, "INVALID_ARGUMENT"),
    )
    assert code(post("move", src="/proc/self", dest=f"{folder}/x")) == (403, "PERMISSION_DENIED")
    assert tree(run, folder) == [
        "a d 755 ",
        "a/b d 755 ",
        "file f 644 ",
        "full d 755 ",
        "full/x f 644 ",
    ]


# --- copy


def test_copy_of_a_file_is_whole_and_has_its_mode(post: Post, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; seq 500000 | head -c 3000000 > a; chmod 751 a; ln -s a link")
    answer = post("copy", src=f"{folder}/link", dest=f"{folder}/sub/b")
    assert answer.json()["copied"] == {
        "files": 1,
        "directories": 0,
        "links": 0,
        "bytes": 3_000_000,
        "skipped": 0,
    }
    assert answer.json()["mode"] == "0751"
    run.out(f"cmp {folder}/a {folder}/sub/b; printf x > {folder}/a")
    assert code(post("copy", src=f"{folder}/a", dest=f"{folder}/sub/b")) == (409, "CONFLICT")
    assert code(post("copy", src=f"{folder}/a", dest=f"{folder}/link", overwrite=True)) == (
        409,
        "CONFLICT",
    )
    assert (
        post("copy", src=f"{folder}/a", dest=f"{folder}/sub/b", overwrite=True).http_status == 200
    )
    assert run.out(f"cat {folder}/sub/b; ls -A {folder}/sub") == "xb\n"


def test_copy_of_a_directory_has_all_but_special_files(post: Post, run: Run, folder: str) -> None:
    run.out(
        f"cd {folder}; mkdir -p a/b/empty; printf 1 > a/x; printf 22 > a/b/y; chmod 600 a/b/y; "
        "chmod 700 a/b; ln -s /etc a/out; ln -s x a/in; mkfifo a/fifo"
    )
    answer = post("copy", src=f"{folder}/a", dest=f"{folder}/c")
    assert answer.json()["copied"] == {
        "files": 2,
        "directories": 3,
        "links": 2,
        "bytes": 3,
        "skipped": 1,
    }
    assert tree(run, f"{folder}/c") == [
        "b d 700 ",
        "b/empty d 755 ",
        "b/y f 600 ",
        "in l 777 x",
        "out l 777 /etc",
        "x f 644 ",
    ]
    assert code(post("copy", src=f"{folder}/a", dest=f"{folder}/c")) == (409, "CONFLICT")
    run.out(f"printf new > {folder}/a/x; touch {folder}/c/own")
    assert post("copy", src=f"{folder}/a", dest=f"{folder}/c", overwrite=True).http_status == 200
    assert run.out(f"cat {folder}/c/x; ls {folder}/c/own") == f"new{folder}/c/own\n"
    assert code(post("copy", src=f"{folder}/a", dest=f"{folder}/a/b/d")) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert code(post("copy", src=f"{folder}/a/fifo", dest=f"{folder}/d")) == (
        400,
        "INVALID_ARGUMENT",
    )


# --- chmod


def test_chmod_sets_the_bits_of_what_a_link_leads_to(post: Post, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; touch file; ln -s file link; mkdir dir")
    assert post("chmod", path=f"{folder}/link", mode="0751").json()["mode"] == "0751"
    assert post("chmod", path=f"{folder}/dir", mode="1777").json()["mode"] == "1777"
    assert tree(run, folder) == ["dir d 1777 ", "file f 751 ", "link l 777 file"]
    assert code(post("chmod", path=f"{folder}/none", mode="0644")) == (404, "NOT_FOUND")
    for mode in ("8", "0999", "rwx", "07777"):
        assert code(post("chmod", path=f"{folder}/file", mode=mode)) == (400, "INVALID_ARGUMENT")


# --- search


def found(answer: Answer, folder: str) -> list[str]:
    assert answer.json()["path"].endswith(f"/{folder}")
    return [item["path"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", [".hidden", "a", "b.txt", "link"]),
        ("*.txt", ["b.txt"]),
        ("**/*.txt", ["a/c.txt", "a/d/e.txt", "b.txt"]),
        ("a/**", ["a/c.txt", "a/d", "a/d/e.txt", "a/d/f"]),
        ("**/d/*", ["a/d/e.txt", "a/d/f"]),
        ("a/*/[ef]*", ["a/d/e.txt", "a/d/f"]),
        ("?.txt", ["b.txt"]),
        ("**", [".hidden", "a", "a/c.txt", "a/d", "a/d/e.txt", "a/d/f", "b.txt", "link"]),
        ("none/**", []),
    ],
)
def test_search_finds_what_the_pattern_says(
    post: Post, run: Run, folder: str, glob: str, expected: list[str]
) -> None:
    run.out(
        f"cd {folder}; mkdir -p a/d; touch a/c.txt a/d/e.txt a/d/f b.txt .hidden; ln -s /etc link"
    )
    answer = post("search", path=folder, glob=glob)
    assert found(answer, folder) == expected
    assert answer.json()["truncated"] is None
    assert answer.json()["scanned"] == {0: 4, 1: 6, 2: 8}.get(
        glob.count("/") if "**" not in glob else 2
    )


def test_search_says_when_it_was_cut_short(post: Post, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; mkdir d; touch $(seq 20); ln -s d l")
    answer = post("search", path=folder, glob="*", limit=5)
    assert (len(answer.json()["items"]), answer.json()["truncated"]) == (5, {"by": "limit"})
    assert found(post("search", path=folder, glob="*", type="directory"), folder) == ["d"]
    assert found(post("search", path=folder, glob="*", type=["directory", "symlink"]), folder) == [
        "d",
        "l",
    ]
    assert post("search", path=folder, glob="*", type="file", limit=20).json()["truncated"] is None


def test_search_of_the_whole_tree_passes_over_the_kernels_files(post: Post, target: Target) -> None:
    answer = post("search", path="/", glob="*/self/environ")
    assert (answer.http_status, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize("glob", ["", "/etc/*", "../*", "a/../*"])
def test_pattern_that_leaves_the_directory_is_400(post: Post, folder: str, glob: str) -> None:
    assert code(post("search", path=folder, glob=glob)) == (400, "INVALID_ARGUMENT")
    assert code(post("search", path=f"{folder}/none", glob="*")) == (404, "NOT_FOUND")


@pytest.mark.parametrize("operation", ["mkdir", "move", "copy", "chmod", "search"])
def test_field_that_is_unknown_or_missing_is_named(post: Post, operation: str) -> None:
    answer = post(operation, colour="red")
    assert (*code(answer), answer.json()["details"]["field"]) == (400, "INVALID_ARGUMENT", "colour")
    assert post(operation).http_status == 400


def test_deep_tree_is_copied_searched_and_deleted(
    post: Post, target: Target, run: Run, folder: str
) -> None:
    made = run.python(
        f"import os; os.chdir({folder!r}); os.mkdir('deep'); os.chdir('deep')\n"
        "for _ in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)\n"
        "open('end', 'w')"
    )
    assert made.exit_code == 0, made.stderr
    assert post("search", path=f"{folder}/deep", glob="**/end").json()["scanned"] == 3001
    # Deeper than any program could open by a path; the upper half is then copied.
    assert code(post("copy", src=f"{folder}/deep", dest=f"{folder}/copy")) == (
        400,
        "INVALID_ARGUMENT",
    )
    half = "/".join(["deep", *["d" * 50] * 50])
    run.python(
        f"import os; os.chdir({folder!r}); os.chdir({half!r}); "
        "os.rename('d' * 50, '../' * 51 + 'rest')"
    )
    assert (
        post("copy", src=f"{folder}/deep", dest=f"{folder}/half").json()["copied"]["directories"]
        == 51
    )
    for name in ("deep", "copy", "half", "rest"):
        assert (
            target.request("DELETE", f"/v1/files/{folder}/{name}?recursive=true").http_status == 204
        )
