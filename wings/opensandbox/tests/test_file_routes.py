"""Files and directories."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from wings.opensandbox.tests.conftest import OpenSandbox

ODD_NAMES = ["a b", "é😀", "a$b", "new\nline", "a%2Fb", "+&=?#", "'\"\\"]


def query(*paths: str, **more: Any) -> str:
    from urllib.parse import quote

    pairs = [f"path={quote(path, safe='')}" for path in paths]
    pairs += [f"{name}={quote(str(value), safe='')}" for name, value in more.items()]
    return "?" + "&".join(pairs)


async def test_facts_of_files_are_by_the_paths_of_the_request(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("hello")
    (tmp_path / "f").chmod(0o640)
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("f")
    os.mkfifo(tmp_path / "p")
    paths = [f"{tmp_path}/{name}" for name in "fdlp"]
    found = await opensandbox.get("/files/info" + query(*paths))
    assert list(found) == paths
    assert [one["type"] for one in found.values()] == ["file", "directory", "symlink", "other"]
    one = found[paths[0]]
    assert (one["path"], one["size"], one["mode"]) == (paths[0], 5, 640)
    assert one["owner"] == (tmp_path / "f").owner()
    assert one["group"] == (tmp_path / "f").group()
    assert one["modified_at"].endswith("Z")
    assert one["created_at"] >= one["modified_at"]


async def test_facts_of_a_file_whose_name_is_not_utf_8(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    (tmp_path / os.fsdecode(b"bad\xff")).write_text("x")
    found = await opensandbox.get(f"/files/info?path={tmp_path}/bad%FF")
    assert list(found) == [f"{tmp_path}/bad\ufffd"]
    assert found[f"{tmp_path}/bad\ufffd"]["size"] == 1
    answer = await opensandbox.request("GET", f"/files/download?path={tmp_path}/bad%FF")
    assert (answer.http_status, answer.body) == (200, b"x")


async def test_no_path_is_no_fact_and_one_missing_file_is_404(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    assert await opensandbox.get("/files/info") == {}
    path = "/files/info" + query(str(tmp_path), f"{tmp_path}/no")
    assert (await opensandbox.refused("GET", path))[:2] == (404, "FILE_NOT_FOUND")


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_are_found_moved_and_deleted(
    opensandbox: OpenSandbox, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("x")
    [listed] = await opensandbox.get("/directories/list" + query(str(tmp_path)))
    assert listed["path"] == f"{tmp_path}/{name}"
    await opensandbox.post("/files/mv", [{"src": listed["path"], "dest": f"{tmp_path}/d/{name}"}])
    assert (tmp_path / "d" / name).read_text() == "x"
    answer = await opensandbox.request("DELETE", "/files" + query(f"{tmp_path}/d/{name}"))
    assert answer.http_status == 200
    assert not (tmp_path / "d" / name).exists()


async def test_missing_files_are_deleted_and_directories_are_not(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "d").mkdir()
    paths = query(f"{tmp_path}/no", f"{tmp_path}/broken")
    assert (await opensandbox.request("DELETE", "/files" + paths)).http_status == 200
    assert not (tmp_path / "broken").is_symlink()
    refusal = await opensandbox.refused("DELETE", "/files" + query(f"{tmp_path}/d"))
    assert refusal[0] == 400
    assert "DELETE /directories" in refusal[2]


async def test_permissions_are_octal_digits_and_zero_keeps_them(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.touch()
    await opensandbox.post("/files/permissions", {str(path): {"mode": 751}})
    assert path.stat().st_mode & 0o777 == 0o751
    await opensandbox.post("/files/permissions", {str(path): {"mode": 0}})
    assert path.stat().st_mode & 0o777 == 0o751
    refusal = await opensandbox.refused("POST", "/files/permissions", {str(path): {"mode": 689}})
    assert refusal[0] == 400
    assert "octal" in refusal[2]


async def test_owner_and_group_are_names_or_numbers(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.touch()
    uid, gid = opensandbox.engine.owner
    await opensandbox.post(
        "/files/permissions", {str(path): {"owner": path.owner(), "group": str(gid)}}
    )
    assert (path.stat().st_uid, path.stat().st_gid) == (uid, gid)
    body = {str(path): {"owner": "no-such-user"}}
    refusal = await opensandbox.refused("POST", "/files/permissions", body)
    assert refusal[0] == 400
    assert "no-such-user" in refusal[2]


async def test_move_of_a_missing_file_is_404_and_onto_a_file_409(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    missing = [{"src": f"{tmp_path}/no", "dest": f"{tmp_path}/x"}]
    assert (await opensandbox.refused("POST", "/files/mv", missing))[:2] == (404, "FILE_NOT_FOUND")
    taken = [{"src": f"{tmp_path}/a", "dest": f"{tmp_path}/b"}]
    http_status, code, message = await opensandbox.refused("POST", "/files/mv", taken)
    assert (http_status, code) == (409, "RUNTIME_ERROR")
    assert "delete it, or name another dest" in message


async def test_replacement_is_counted_on_request(opensandbox: OpenSandbox, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("aXbXc")
    path.chmod(0o600)
    body = {str(path): {"old": "X", "new": "é"}}
    assert await opensandbox.post("/files/replace?verbose=true", body) == {
        str(path): {"replacedCount": 2}
    }
    assert path.read_text() == "aébéc"
    assert path.stat().st_mode & 0o777 == 0o600
    assert await opensandbox.post("/files/replace?verbose=false", body) is None
    empty = {str(path): {"old": "", "new": "x"}}
    assert (await opensandbox.refused("POST", "/files/replace", empty))[0] == 400


async def test_search_compares_names_and_finds_files_only(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    for name in ("a.py", "sub/b.py", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "d.py").mkdir()

    async def found(pattern: str | None) -> list[str]:
        more = {} if pattern is None else {"pattern": pattern}
        answer = await opensandbox.get("/files/search" + query(str(tmp_path), **more))
        return [one["path"].removeprefix(f"{tmp_path}/") for one in answer]

    assert await found("*.py") == ["a.py", "sub/b.py"]
    assert await found("*.{py,txt}") == ["a.py", "sub/b.py", "sub/c.txt"]
    assert await found("sub/*") == ["sub/b.py", "sub/c.txt"]
    assert await found(None) == ["a.py", "sub/b.py", "sub/c.txt"]
    assert (await opensandbox.refused("GET", "/files/search" + query(f"{tmp_path}/no")))[0] == 404


async def test_listing_goes_to_a_depth_and_follows_no_link(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "z").symlink_to("a")

    async def found(**more: Any) -> list[str]:
        answer = await opensandbox.get("/directories/list" + query(str(tmp_path), **more))
        return [one["path"].removeprefix(f"{tmp_path}/") for one in answer]

    assert await found() == ["a", "z"]
    assert await found(depth=2) == ["a", "a/b", "z"]
    assert await found(depth=0) == []
    for path, depth in ((f"{tmp_path}/z", "1"), (str(tmp_path), "x")):
        wrong = "/directories/list" + query(path, depth=depth)
        assert (await opensandbox.refused("GET", wrong))[0] == 400


async def test_directories_are_made_with_their_mode_and_deleted_with_their_content(
    opensandbox: OpenSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "a/b"
    await opensandbox.post("/directories", {str(path): {"mode": 711}})
    assert path.stat().st_mode & 0o777 == 0o711
    await opensandbox.post("/directories", {str(path): {"mode": 755}})
    assert path.stat().st_mode & 0o777 == 0o711
    (path / "f").touch()
    paths = query(str(tmp_path / "a"), f"{tmp_path}/no")
    assert (await opensandbox.request("DELETE", "/directories" + paths)).http_status == 200
    await wait_until(lambda: not path.parent.exists(), "the directory is gone")


async def test_state_dir_is_not_served(opensandbox: OpenSandbox) -> None:
    path = f"{opensandbox.engine.config.state_dir}/journal"
    assert (await opensandbox.refused("GET", "/files/info" + query(path)))[0] in (403, 404)
