"""``filesystem.Filesystem``: files as envd describes and changes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from execd_e2b import envd_filesystem, watchers
from tests.api.conftest import wait_until
from wings.e2b.tests.conftest import E2B, Box

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.api.conftest import Wire

WATCH = "filesystem.Filesystem/WatchDir"


@pytest.fixture
def tree(box: Box) -> Path:
    """A directory with a file, a directory, and links."""
    top = box.wire.base_dir / "tree"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "file").write_text("hello")
    (top / "file").chmod(0o640)
    (top / "sub" / "below").touch()
    os.symlink("file", top / "link")
    os.symlink("sub", top / "to sub")
    os.symlink("nowhere", top / "dangling")
    os.symlink("loop", top / "loop")
    return top


async def stat(box: Box, path: object) -> Any:
    http_status, reply = await box.filesystem("Stat", {"path": str(path)})
    assert http_status == 200, reply
    return reply["entry"]


async def test_entry_has_the_fields_of_envd(box: Box, tree: Path) -> None:
    entry = await stat(box, tree / "file")
    assert entry.pop("modifiedTime").endswith("Z")
    owner = (tree / "file").owner()
    assert entry == {
        "name": "file",
        "type": "FILE_TYPE_FILE",
        "path": f"{tree}/file",
        "size": "5",
        "mode": 0o640,
        "permissions": "-rw-r-----",
        "owner": owner,
        "group": (tree / "file").group(),
    }


@pytest.mark.parametrize(
    ("name", "kind", "permissions", "target"),
    [
        ("link", "FILE_TYPE_FILE", "Lrwxrwxrwx", "file"),
        ("to sub", "FILE_TYPE_DIRECTORY", "Lrwxrwxrwx", "sub"),
        ("dangling", "FILE_TYPE_SYMLINK", "Lrwxrwxrwx", "nowhere"),
        ("loop", "FILE_TYPE_SYMLINK", "Lrwxrwxrwx", "loop"),
    ],
)
async def test_link_has_the_type_of_its_end(
    box: Box, tree: Path, name: str, kind: str, permissions: str, target: str
) -> None:
    entry = await stat(box, tree / name)
    assert (entry["type"], entry["permissions"], entry["isSymlink"]) == (kind, permissions, True)
    assert entry["symlinkTarget"] == f"{tree}/{target}"


async def test_paths_begin_at_the_home(box: Box, tree: Path) -> None:
    for path in ("tree/file", "~/tree/file", f"{tree}/sub/../file", f"//{tree}//file"):
        assert (await stat(box, path))["path"] == f"{tree}/file"
    for path in ("", "~", "."):
        assert (await stat(box, path))["path"] == str(box.wire.base_dir)
    assert (await stat(box, "/"))["name"] == "/"
    http_status, refusal = await box.filesystem("Stat", {"path": "~bob/x"})
    assert (http_status, refusal["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize(
    ("depth", "names"),
    [
        (0, ["dangling", "file", "link", "loop", "sub", "to sub"]),
        (2, ["dangling", "file", "link", "loop", "sub", "sub/below", "sub/deep", "to sub"]),
    ],
)
async def test_listing_goes_as_deep_as_asked_and_follows_no_link(
    box: Box, tree: Path, depth: int, names: list[str]
) -> None:
    _, reply = await box.filesystem("ListDir", {"path": str(tree), "depth": depth})
    assert [entry["path"].removeprefix(f"{tree}/") for entry in reply["entries"]] == names


async def test_listing_of_a_link_keeps_the_name_that_was_asked_for(box: Box, tree: Path) -> None:
    _, reply = await box.filesystem("ListDir", {"path": f"{tree}/to sub"})
    assert [e["path"] for e in reply["entries"]] == [f"{tree}/to sub/below", f"{tree}/to sub/deep"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("file", "invalid_argument"),
        ("nothing", "not_found"),
        ("dangling", "not_found"),
        ("loop", "failed_precondition"),
    ],
)
async def test_listing_of_what_is_no_directory_is_refused(
    box: Box, tree: Path, name: str, code: str
) -> None:
    _, refusal = await box.filesystem("ListDir", {"path": f"{tree}/{name}"})
    assert refusal["code"] == code


async def test_listing_with_too_many_entries_is_refused(
    box: Box, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envd_filesystem, "MAX_ENTRIES", 6)
    message = {"path": str(tree), "depth": 1}
    assert (await box.filesystem("ListDir", message))[0] == 200
    http_status, refusal = await box.filesystem("ListDir", message | {"depth": 2})
    assert (http_status, refusal["code"]) == (429, "resource_exhausted")


async def test_directory_is_made_once(box: Box, tree: Path) -> None:
    message = {"path": f"{tree}/made/deep"}
    _, reply = await box.filesystem("MakeDir", message)
    assert (reply["entry"]["type"], reply["entry"]["name"]) == ("FILE_TYPE_DIRECTORY", "deep")
    http_status, refusal = await box.filesystem("MakeDir", message)
    assert (http_status, refusal["code"]) == (409, "already_exists")
    for path in (f"{tree}/file", f"{tree}/file/below"):
        _, refusal = await box.filesystem("MakeDir", {"path": path})
        assert refusal["code"] == "invalid_argument"


async def test_move_makes_parents_and_replaces(box: Box, tree: Path) -> None:
    (tree / "other").write_text("old")
    for target in ("new/parent/file", "other"):
        (tree / "file").write_text("hello")
        message = {"source": f"{tree}/file", "destination": f"{tree}/{target}"}
        _, reply = await box.filesystem("Move", message)
        assert reply["entry"]["path"] == f"{tree}/{target}"
        assert (tree / target).read_text() == "hello"
    http_status, refusal = await box.filesystem("Move", message)
    assert (http_status, refusal["code"]) == (404, "not_found")


@pytest.mark.parametrize("message", [{"source": "x"}, {"destination": "x"}, {}])
async def test_move_needs_both_names(box: Box, message: Any) -> None:
    http_status, refusal = await box.filesystem("Move", message)
    assert (http_status, refusal["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize("path", ["", "/"])
async def test_removal_of_everything_is_refused(box: Box, tree: Path, path: str) -> None:
    _, refusal = await box.filesystem("Remove", {"path": path})
    assert refusal["code"] == "failed_precondition"
    assert tree.exists()


async def poll(box: Box, watcher: Any) -> list[Any]:
    _, reply = await box.filesystem("GetWatcherEvents", watcher)
    return [[e["type"].removeprefix("EVENT_TYPE_"), e["name"]] for e in reply.get("events", [])]


async def test_polled_watcher_tells_each_change_once(box: Box, tree: Path) -> None:
    _, watcher = await box.filesystem("CreateWatcher", {"path": str(tree)})
    assert await poll(box, watcher) == []
    (tree / "new").write_text("x")
    (tree / "new").rename(tree / "newer")
    (tree / "newer").chmod(0o600)
    (tree / "newer").unlink()
    (tree / "sub" / "out of sight").touch()
    assert await poll(box, watcher) == [
        *(["CREATE", "new"], ["WRITE", "new"], ["RENAME", "new"], ["CREATE", "newer"]),
        *(["CHMOD", "newer"], ["REMOVE", "newer"]),
    ]
    assert await poll(box, watcher) == []
    assert await box.filesystem("RemoveWatcher", watcher) == (200, {})
    for name in ("RemoveWatcher", "GetWatcherEvents"):
        http_status, refusal = await box.filesystem(name, watcher)
        assert (http_status, refusal["code"]) == (404, "not_found")


async def test_entries_come_with_the_events_that_have_a_file(box: Box, tree: Path) -> None:
    _, watcher = await box.filesystem(
        "CreateWatcher", {"path": str(tree), "recursive": True, "includeEntry": True}
    )
    (tree / "sub" / "new").write_text("x")
    (tree / "file").unlink()
    _, reply = await box.filesystem("GetWatcherEvents", watcher)
    entries = {event["name"]: event.get("entry", {}).get("path") for event in reply["events"]}
    assert entries == {"sub/new": f"{tree}/sub/new", "file": None}
    await box.filesystem("RemoveWatcher", watcher)


async def test_upload_is_seen_as_created_and_written(box: Box, tree: Path) -> None:
    _, watcher = await box.filesystem("CreateWatcher", {"path": str(tree)})
    octets = {"Content-Type": "application/octet-stream"}
    await box.wire.request("POST", f"/files?path={tree}/up", b"x", octets)
    assert await poll(box, watcher) == [["CREATE", "up"], ["WRITE", "up"]]
    await box.filesystem("RemoveWatcher", watcher)


@pytest.mark.parametrize(("name", "code"), [("file", "invalid_argument"), ("no", "not_found")])
async def test_only_a_directory_is_watched(box: Box, tree: Path, name: str, code: str) -> None:
    _, refusal = await box.filesystem("CreateWatcher", {"path": f"{tree}/{name}"})
    assert refusal["code"] == code
    [refused] = await box.stream(WATCH, {"path": f"{tree}/{name}"})
    assert refused["error"]["code"] == code


async def test_stream_starts_tells_changes_and_keeps_alive(box: Box, tree: Path) -> None:
    async with box.following(WATCH, {"path": str(tree)}, {"Keepalive-Ping-Interval": "1"}) as said:
        assert await said.next() == {"start": {}}
        (tree / "new").mkdir()
        event = {"name": "new", "type": "EVENT_TYPE_CREATE"}
        assert await said.next() == {"filesystem": event}
        assert await said.next() == {"keepalive": {}}


async def test_stream_ends_with_its_directory(box: Box, tree: Path) -> None:
    async with box.following(WATCH, {"path": f"{tree}/sub/deep"}) as said:
        assert await said.next() == {"start": {}}
        (tree / "sub" / "deep").rmdir()
        assert await said.next() == {}


async def test_stream_ends_with_the_daemon_and_says_so(
    serve: Callable[..., Awaitable[Wire]],
) -> None:
    box = Box(await serve(dialect=E2B, has_own_engine=True))
    async with box.following(WATCH, {"path": str(box.wire.base_dir)}) as said:
        assert await said.next() == {"start": {}}
        await box.wire.engine.drain()
        assert (await said.next())["error"]["code"] == "unavailable"


async def test_left_stream_ends_its_watch(box: Box, tree: Path) -> None:
    watches = box.wire.engine.tree_files._watches
    async with box.following(WATCH, {"path": str(tree)}) as said:
        assert await said.next() == {"start": {}}
        assert watches._count == 1
    await wait_until(lambda: watches._count == 0, "the watch has ended")


async def test_watcher_that_nobody_polls_ends_when_another_is_made(
    box: Box, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, old = await box.filesystem("CreateWatcher", {"path": str(tree)})
    monkeypatch.setattr(watchers, "IDLE_SECONDS", -1.0)
    await box.filesystem("CreateWatcher", {"path": str(tree)})
    http_status, _ = await box.filesystem("GetWatcherEvents", old)
    assert http_status == 404
