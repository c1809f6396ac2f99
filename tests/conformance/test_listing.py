"""GET /list and GET /exists."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from .conftest import Run
    from .target import Target


def test_list_tells_name_size_type_and_time(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(
        f"printf 12345 > {folder}/file; mkdir {folder}/sub; touch -d @1700000000.5 {folder}/file"
    )
    response = client.get(f"/list/{folder}")
    assert response.status_code == 200
    directory, file = sorted(response.json(), key=lambda entry: entry["type"])
    assert file == {"name": "file", "size": 5, "type": "file", "mod_time": 1700000000.5}
    assert (directory["name"], directory["type"]) == ("sub", "directory")
    assert type(directory["size"]) is int
    assert type(directory["mod_time"]) is float
    assert abs(directory["mod_time"] - time.time()) < 3600


def test_times_are_always_floats(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(f"touch -d @1700000000 {folder}/whole")
    (entry,) = client.get(f"/list/{folder}").json()
    assert type(entry["mod_time"]) is float


def test_list_is_sorted_and_shows_hidden_files(client: httpx.Client, run: Run, folder: str) -> None:
    wanted = [".hidden", "B", "a", "b10", "b9", "z", "ä"]
    run.out(f"cd {folder}; touch z b9 ä b10 a B .hidden")
    assert [entry["name"] for entry in client.get(f"/list/{folder}").json()] == wanted


def test_empty_directory_is_an_empty_list(client: httpx.Client, folder: str) -> None:
    response = client.get(f"/list/{folder}")
    assert (response.status_code, response.json()) == (200, [])


def test_list_of_ten_thousand_names_is_whole(client: httpx.Client, run: Run, folder: str) -> None:
    run.out(f"cd {folder}; seq 10000 | xargs touch")
    assert len(client.get(f"/list/{folder}").json()) == 10_000


@pytest.mark.parametrize("path", ["none", "none/none", "file", "file/below"])
def test_what_is_no_directory_is_404_with_the_known_text(
    client: httpx.Client, run: Run, folder: str, path: str
) -> None:
    run.out(f"touch {folder}/file")
    response = client.get(f"/list/{folder}/{path}")
    assert response.status_code == 404
    assert response.json() == {"message": "Path is not a directory"}


def test_link_without_a_target_does_not_spoil_the_list(
    client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; touch a z; ln -s none dangling; ln -s loop loop; mkfifo fifo")
    response = client.get(f"/list/{folder}")
    assert response.status_code == 200
    entries = {entry["name"]: entry["type"] for entry in response.json()}
    assert {"a", "z", "fifo"} <= set(entries)
    assert set(entries.values()) <= {"file", "directory"}


def test_size_of_a_link_s_target_outside_is_not_told(
    client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(f"ln -s /etc/passwd {folder}/out; ln -s /etc {folder}/dir")
    size = int(run.out("stat -c %s /etc/passwd"))
    for entry in client.get(f"/list/{folder}").json():
        assert entry["size"] != size


def test_link_inside_is_shown_as_what_it_leads_to(
    client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(f"cd {folder}; printf 123 > file; mkdir sub; ln -s file f; ln -s sub s")
    entries = {
        entry["name"]: (entry["type"], entry["size"])
        for entry in client.get(f"/list/{folder}").json()
    }
    assert entries["f"] == ("file", 3)
    assert entries["s"][0] == "directory"


def test_names_of_any_bytes_make_valid_json(client: httpx.Client, run: Run, folder: str) -> None:
    program = (
        "import os, sys\n"
        "for name in (b'new\\nline', b'quo\"te', b'back\\\\slash', b'tab\\t', b'\\xff\\xfe', "
        "b'del\\x7f', b'ok'):\n"
        f"    open(os.path.join(b'{folder}', name), 'w').close()"
    )
    assert run.python(program).exit_code == 0
    response = client.get(f"/list/{folder}")
    assert response.status_code == 200
    response.content.decode("utf-8", "strict")
    names = {entry["name"] for entry in response.json()}
    assert {"new\nline", 'quo"te', "back\\slash", "tab\t", "del\x7f", "ok"} <= names
    assert len(names) >= 6


@pytest.mark.parametrize(
    ("path", "exists"),
    [
        ("file", True),
        ("sub", True),
        ("sub/", True),
        ("none", False),
        ("file/below", False),
        ("dangling", False),
    ],
)
def test_exists_tells_and_echoes_the_path(
    client: httpx.Client, run: Run, folder: str, path: str, exists: bool
) -> None:
    run.out(f"cd {folder}; touch file; mkdir sub; ln -s nowhere dangling")
    response = client.get(f"/exists/{folder}/{path}")
    assert response.status_code == 200
    assert response.json() == {"path": f"{folder}/{path}", "exists": exists}


@pytest.mark.parametrize(
    ("path", "echoed"), [("/exists/", ""), ("/exists/.", "."), ("/exists", "")]
)
def test_base_dir_exists_and_its_spelling_is_echoed(target: Target, path: str, echoed: str) -> None:
    assert target.request("GET", path).json() == {"path": echoed, "exists": True}


def test_head_is_answered_wherever_get_is(client: httpx.Client, folder: str) -> None:
    for path in (f"/list/{folder}", f"/exists/{folder}"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("application/json")
    assert client.head("/list/none").status_code == 404
