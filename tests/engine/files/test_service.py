from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any, Literal

import pytest

from execd.engine.files import threads, transfers
from execd.engine.files.service import MAX_LARGE_LISTINGS, MAX_LARGE_ZIPS, Files
from execd.errors import (
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from execd.files.listing import MAX_PIECE
from execd.files.root import Root
from execd.proc.spawn import Identity
from tests.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from execd.files.listing import Entry


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base"
    path.mkdir()
    return path


@pytest.fixture
def files(base: Path) -> Iterator[Files]:
    before = len(os.listdir("/proc/self/fd"))
    files = Files(str(base), max_upload_bytes=100 << 20)
    yield files
    files.close()
    files._threads._executor.shutdown(wait=True)  # the disk of a test does not hang
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors leaked"


async def wait_until(fact: Callable[[], bool]) -> None:
    """Turn the loop until ``fact`` holds. Threads make the fact true, and get the processor
    meanwhile."""
    began = time.monotonic()
    while not fact():
        patience.check(began, 20, fact)
        await asyncio.get_running_loop().run_in_executor(None, os.sched_yield)


async def list_all(files: Files, path: str) -> list[Entry]:
    found: list[Entry] = []

    def keep(entries: list[Entry]) -> bytes:
        found.extend(entries)
        return b""

    async with await files.open_listing(path) as listing:
        while await listing.read(keep) is not None:
            pass
    return found


@contextlib.contextmanager
def hung_disk(files: Files) -> Iterator[None]:
    """Holds every thread of the executor, as a hung disk would."""
    over = threading.Event()
    try:
        for _ in range(threads.MAX_THREADS):
            files._threads._executor.submit(over.wait)
        yield
    finally:
        over.set()


async def begin(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start ``call`` and let the call run up to the first wait."""
    task = asyncio.ensure_future(call)
    for _ in range(3):
        await asyncio.get_running_loop().run_in_executor(None, int)
    return task


async def put(files: Files, path: str, data: bytes) -> None:
    async with await files.create(path) as upload:
        await upload.write(data)
        await upload.commit()


async def test_a_removed_base_dir_is_made_again(files: Files, base: Path) -> None:
    base.rmdir()
    await files.ensure_base_dir()
    assert base.is_dir()
    base.rmdir()
    await put(files, "x", b"x")
    assert (base / "x").read_bytes() == b"x"


async def test_large_files_pass_through_in_constant_memory(files: Files, base: Path) -> None:
    chunk = random.Random(1).randbytes(256 * 1024)
    tracemalloc.start()
    try:
        async with await files.create("big") as upload:
            for _ in range(256):
                await upload.write(chunk)
            await upload.commit()
        offset = 0
        async with await files.open("big") as file:
            while data := await file.read(offset, len(chunk)):
                assert data == chunk
                offset += len(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert offset == 64 << 20
    assert peak_bytes < 4 << 20


async def test_of_two_uploads_to_one_name_the_last_commit_wins_whole(
    files: Files, base: Path
) -> None:
    async with await files.create("x") as first, await files.create("x") as second:
        await second.write(b"second")
        await first.write(b"first, and longer")
        await second.commit()
        assert (base / "x").read_bytes() == b"second"
        await first.commit()
    assert (base / "x").read_bytes() == b"first, and longer"
    assert os.listdir(base) == ["x"]


async def test_a_hung_disk_holds_no_thread_of_others_and_not_the_loop(files: Files) -> None:
    with hung_disk(files):
        waiting = await begin(files.exists("x"))
        assert await asyncio.to_thread(lambda: 42) == 42
        assert not waiting.done()
    assert await waiting is False


async def test_cancelled_opens_and_creates_leave_no_descriptor_and_no_temporary(
    files: Files, base: Path
) -> None:
    (base / "x").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    with hung_disk(files):
        for task in await begin(files.open("x")), await begin(files.create("y")):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    # When later calls are over, all calls running alone are over too.
    await asyncio.gather(*(files.exists("x") for _ in range(2 * threads.MAX_THREADS)))
    await wait_until(
        lambda: os.listdir(base) == ["x"] and len(os.listdir("/proc/self/fd")) <= before
    )


async def test_an_upload_cancelled_in_a_write_ends_only_when_the_write_has(
    files: Files, base: Path
) -> None:
    (base / "x").write_bytes(b"old")
    in_write = asyncio.Event()
    upload = await files.create("x")

    async def client() -> None:
        async with upload:
            in_write.set()
            await upload.write(b"new")

    # A hung write. A thread in a system call would hold the same lock.
    with upload._lock:
        task = asyncio.ensure_future(client())
        await in_write.wait()
        task.cancel()
        await begin(asyncio.wait_for(in_write.wait(), 1))
        assert not task.done()
        assert len(os.listdir(base)) == 2
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(base) == ["x"]
    assert (base / "x").read_bytes() == b"old"


async def test_an_upload_whose_end_is_cancelled_too_is_ended_all_the_same(
    files: Files, base: Path
) -> None:
    async def client() -> None:
        async with await files.create("x"):
            created.set()
            await asyncio.Event().wait()

    created = asyncio.Event()
    task = asyncio.ensure_future(client())
    await created.wait()
    with hung_disk(files):
        for _ in range(2):
            task.cancel()
            await begin(asyncio.wait_for(created.wait(), 1))
        assert task.cancelled()
        assert len(os.listdir(base)) == 1
    await wait_until(lambda: os.listdir(base) == [])


async def test_listings_of_a_huge_directory_take_bounded_memory(files: Files, base: Path) -> None:
    """Eight listings of 25,000 names at once. Four listings built whole would exceed the bound."""
    for number in range(25_000):
        os.close(os.open(base / f"{number:06}", os.O_CREAT | os.O_WRONLY))
    counts: list[int] = []

    async def count() -> None:
        n_entries = 0

        def add(entries: list[Entry]) -> bytes:
            nonlocal n_entries
            n_entries += len(entries)
            return b""

        async with await files.open_listing("") as listing:
            while await listing.read(add) is not None:
                pass
        counts.append(n_entries)

    tracemalloc.start()
    try:
        await asyncio.gather(*(count() for _ in range(8)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts == [25_000] * 8
    assert peak < 12 << 20


async def test_a_large_listing_waits_for_a_place_and_then_is_refused(
    files: Files, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MAX_PIECE + 1):
        os.close(os.open(base / f"{number:06}", os.O_CREAT | os.O_WRONLY))
    monkeypatch.setattr(transfers, "PLACE_WAIT_SECONDS", 0.05)
    async with contextlib.AsyncExitStack() as places:
        for _ in range(MAX_LARGE_LISTINGS):
            await places.enter_async_context(await files.open_listing(""))
        with pytest.raises(ResourceExhausted):
            await list_all(files, "")
    assert len(await list_all(files, "")) == MAX_PIECE + 1


async def test_large_zips_share_a_few_places_and_the_next_is_refused(
    files: Files, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (base / f"{number}").write_bytes(random.Random(number).randbytes(100_000))
    monkeypatch.setattr(transfers, "PLACE_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(transfers, "LARGE_ZIP_ENTRIES", 1)
    monkeypatch.setattr(transfers, "LARGE_ZIP_BYTES", 500)

    async def unpack(path: str, content: bytes) -> None:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("x", content)
        async with await files.unpack(path, "zip") as upload:
            await upload.write(archive.getvalue())
            await upload.commit()

    async def read_all(kind: Literal["tar", "zip"]) -> None:
        async with await files.pack("", kind) as download:
            while await download.read():
                pass

    async with contextlib.AsyncExitStack() as places:
        for _ in range(MAX_LARGE_ZIPS):
            download = await places.enter_async_context(await files.pack("", "zip"))
            while not download._has_place:
                assert await download.read(), "the end before a place was taken"
        with pytest.raises(ResourceExhausted):
            await read_all("zip")
        with pytest.raises(ResourceExhausted):
            await unpack("large", b"." * 500)
        await unpack("small", b".")
        await read_all("tar")
    await unpack("large", b"." * 500)
    assert (base / "large" / "x").read_bytes() == b"." * 500
    assert (base / "small" / "x").read_bytes() == b"."


async def test_after_close_calls_are_refused_and_open_files_still_end(base: Path) -> None:
    (base / "x").write_bytes(b"x")
    files = Files(str(base))
    before = len(os.listdir("/proc/self/fd"))
    async with await files.open("x") as file, await files.create("y") as upload:
        await upload.write(b"half")
        files.close()
        with pytest.raises(Unavailable):
            await file.read(0, 1)
        with pytest.raises(Unavailable):
            await upload.commit()
        with pytest.raises(Unavailable):
            await list_all(files, "")
    assert os.listdir(base) == ["x"]
    assert len(os.listdir("/proc/self/fd")) <= before
    files._threads._executor.shutdown(wait=True)


# Swaps by rename alone, so the slot is hardly ever missing.
SWAP = """
import os, sys
os.chdir(sys.argv[1])
os.symlink(sys.argv[2], "link")
print(flush=True)
while True:
    os.rename("slot", "directory"); os.rename("link", "slot")
    os.rename("slot", "link"); os.rename("directory", "slot")
"""


async def test_downloads_and_listings_at_once_never_show_what_a_flipping_link_leads_to(
    files: Files, base: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"outside")
    (base / "slot").mkdir()
    (base / "slot/f").write_bytes(b"in")
    outcomes: set[str] = set()
    both = {"seen", "PERMISSION_DENIED"}
    deadline = time.monotonic() + 20

    async def look() -> None:
        n_looks = 0
        # A swapper that gets no CPU shows one of the two only.
        while n_looks < 200 or not (outcomes >= both or time.monotonic() > deadline):
            n_looks += 1
            try:
                async with await files.open("slot/f") as file:
                    assert await file.read(0, 100) == b"in"
                for entry in await list_all(files, "slot"):
                    assert (entry.name, entry.size_bytes) == ("f", 2)
                outcomes.add("seen")
            except (NotFound, PermissionDenied) as error:
                outcomes.add(error.code)

    with subprocess.Popen(
        [sys.executable, "-c", SWAP, str(base), str(outside)], stdout=subprocess.PIPE
    ) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            await asyncio.gather(*(look() for _ in range(5)))
        finally:
            swapper.kill()
    assert outcomes >= both


async def test_long_operations_leave_threads_for_the_others(files: Files, base: Path) -> None:
    over = threading.Event()
    begun: list[int] = []

    def wait(_: Callable[[], bool]) -> None:
        begun.append(1)
        over.wait(20)

    tasks = [
        asyncio.ensure_future(files._threads.run_long(wait)) for _ in range(3 * threads.MAX_THREADS)
    ]
    try:
        await wait_until(lambda: len(begun) == threads.MAX_LONG)
        assert await files.exists(".")
        assert len(begun) == threads.MAX_LONG
    finally:
        over.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("wait_seconds", "expected"), [(60.0, threads.MAX_COPYING), (0.01, threads.MAX_THREADS)]
)
async def test_downloads_copy_in_turns_and_wait_for_a_hung_disk_only_a_moment(
    files: Files, monkeypatch: pytest.MonkeyPatch, wait_seconds: float, expected: int
) -> None:
    monkeypatch.setattr(threads, "COPY_WAIT_SECONDS", wait_seconds)
    over = threading.Event()
    begun: list[int] = []

    def copy() -> None:
        begun.append(1)
        over.wait(20)

    tasks = [
        asyncio.ensure_future(files._threads.run_copying(copy)) for _ in range(threads.MAX_THREADS)
    ]
    try:
        await wait_until(lambda: len(begun) == expected)
        if expected < threads.MAX_THREADS:
            assert await files.exists(".")
        assert len(begun) == expected
    finally:
        over.set()
        await asyncio.gather(*tasks)
    assert len(begun) == threads.MAX_THREADS


async def test_long_operations_of_callers_that_left_leave_threads_for_the_others_too(
    files: Files,
) -> None:
    over = threading.Event()
    begun: list[int] = []

    def wait(_: Callable[[], bool]) -> None:
        begun.append(1)
        over.wait(20)

    try:
        for _ in range(3):
            tasks = [
                asyncio.ensure_future(files._threads.run_long(wait))
                for _ in range(threads.MAX_LONG)
            ]
            await wait_until(lambda: len(begun) == threads.MAX_LONG)
            assert await files.exists(".")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert len(begun) == threads.MAX_LONG, "those that waited for a place have gone without one"
    finally:
        over.set()
    await files._threads.run_long(wait)
    assert len(begun) == threads.MAX_LONG + 1


async def test_long_operation_learns_that_its_caller_is_gone(files: Files) -> None:
    seen: list[bool] = []
    begun, ended = threading.Event(), threading.Event()

    def work(is_stopped: Callable[[], bool]) -> None:
        begun.set()
        deadline = time.monotonic() + 20
        while not is_stopped() and time.monotonic() < deadline:
            os.sched_yield()
        seen.append(is_stopped())
        ended.set()

    task = asyncio.ensure_future(files._threads.run_long(work))
    await wait_until(begun.is_set)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await wait_until(ended.is_set)
    assert seen == [True]


@pytest.mark.root
async def test_what_is_made_for_another_user_is_that_users() -> None:
    # pytest's own folders are closed to a second user
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        base = os.path.join(folder, "base")
        os.mkdir(base)
        os.chown(base, 1234, 5678)
        files = Files(base, identity=Identity(1234, 5678, ()))
        try:
            async with await files.create("made/by/upload") as upload:
                await upload.write(b"x")
                await upload.commit()
            async with await files.extend("made/by/append", offset=0) as upload:
                await upload.write(b"x")
                await upload.commit()
            await files.make_directory("made/by/mkdir", mode=0o700)
            await files.copy("made", "copy")
            async with (
                await files.pack("made", "zip") as packed,
                await files.unpack("un/packed", "zip") as unpacked,
            ):
                while data := await packed.read():
                    await unpacked.write(data)
                await unpacked.commit()
            async with await files.watch("made", recursive=True) as watching:
                assert (watching.n_directories, watching.is_complete) == (3, True)
        finally:
            files.close()
            files._threads._executor.shutdown(wait=True)
        made = [
            os.path.join(top, name)
            for top, directories, names in os.walk(base)
            for name in directories + names
        ]
        assert len(made) == 5 + 5 + 6
        assert {(os.lstat(path).st_uid, os.lstat(path).st_gid) for path in made} == {(1234, 5678)}


@pytest.mark.root
async def test_another_user_may_do_no_more_than_the_kernel_lets_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        os.mkdir(os.path.join(folder, "base"))
        os.mkdir(os.path.join(folder, "roots"), 0o755)
        with open(
            os.path.join(folder, "roots/secret"),
            "w",
            opener=lambda path, flags: os.open(path, flags, 0o600),
        ) as secret:
            secret.write("x")
        files = Files(os.path.join(folder, "base"), identity=Identity(1234, 5678, ()))
        tree = files.with_root(Root.whole_tree(os.path.join(folder, "base")))
        path = os.path.join(folder, "roots/secret")
        try:
            assert (await tree.describe(path)).uid == 0
            for refused in (
                tree.open(path),
                tree.create(path),
                tree.extend(path),
                tree.remove(path),
                tree.change_mode(path, 0o777),
                tree.move(path, path + "2"),
                tree.copy(path, os.path.join(folder, "base/copy")),
                tree.make_directory(os.path.join(folder, "roots/d")),
                files.create("x"),
            ):
                with pytest.raises(PermissionDenied):
                    await refused
        finally:
            files.close()
            files._threads._executor.shutdown(wait=True)
        assert os.listdir(os.path.join(folder, "base")) == []
        assert os.listdir(os.path.join(folder, "roots")) == ["secret"]


async def test_a_thread_that_cannot_act_as_the_user_does_nothing(base: Path) -> None:
    nobody = Identity(2**32 - 2, 2**32 - 2, tuple(range(1 << 17)))  # more groups than there can be
    files = Files(str(base), identity=nobody)
    try:
        with pytest.raises(Unavailable):
            await files.make_directory("d")
    finally:
        files.close()
    assert os.listdir(base) == []


@pytest.mark.parametrize(("settings", "n_syncs"), [({}, 0), ({"syncs_uploads": True}, 2)])
async def test_an_upload_waits_for_the_disk_only_where_it_must(
    base: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, bool], n_syncs: int
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files = Files(str(base), **settings)
    for begin in (files.create, files.extend):
        async with await begin("x") as upload:
            await upload.commit()
    files.close()
    files._threads._executor.shutdown(wait=True)
    assert len(synced) == n_syncs
