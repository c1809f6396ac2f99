"""Checkpoints for the event loop: the table, the budget, restarts, cancelled callers."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.checkpoints import START, Checkpoints
from execd.engine.executions.submission import Submission
from execd.errors import Conflict, ExecdError, InvalidArgument, NoSpace, NotFound, Unavailable
from execd.files.checkpoints.shelf import Shelf
from tests.engine.conftest import running, sh, shell_command
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from execd.engine.engine import Engine

MIB = 1 << 20


def base_of(engine: Engine) -> Path:
    return Path(engine.config.base_dir)


def contents(engine: Engine) -> list[str]:
    return sorted(os.listdir(Path(engine.config.state_dir) / "checkpoints/content"))


async def test_a_checkpoint_is_made_listed_compared_restored_and_deleted(engine: Engine) -> None:
    base, checkpoints = base_of(engine), engine.checkpoints
    (base / "file").write_text("old")
    made = await checkpoints.create("one", ["."])
    assert made.id == "one"
    assert [(root.path, root.n_files, root.n_bytes) for root in made.roots] == [(str(base), 1, 3)]
    assert checkpoints.list() == [made] == [checkpoints.get("one")]
    (base / "file").write_text("newer")
    [change] = await checkpoints.changes("one")
    assert (change.kind, change.path, change.full_path) == ("modified", b"file", str(base / "file"))
    assert change.old is not None
    assert change.new is not None
    for fd, text in (
        (checkpoints.open_old("one", change.old), b"old"),
        (checkpoints.open_new(change.root, change.new), b"newer"),
    ):
        with open(fd, "rb") as file:
            assert file.read() == text
    (base / "file").write_text("newest")
    with pytest.raises(Conflict, match="changed meanwhile"):
        checkpoints.open_new(change.root, change.new)
    assert (await checkpoints.verify("one")).n_differences == 1
    done = await checkpoints.restore("one")
    assert (done.restored, done.removed, done.troubles) == (1, 0, [])
    assert (await checkpoints.verify("one")).n_differences == 0
    await checkpoints.delete("one")
    assert contents(engine) == []
    with pytest.raises(NotFound):
        await checkpoints.restore("one")


async def test_an_id_is_taken_once_and_start_is_never_removed(engine: Engine) -> None:
    checkpoints = engine.checkpoints
    await checkpoints.create(START, ["."])
    for act in (checkpoints.create(START, ["."]), checkpoints.delete(START)):
        with pytest.raises(Conflict):
            await act
    with pytest.raises(InvalidArgument, match=r"^id: "):
        await checkpoints.create("../x", ["."])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/proc", r"roots\[1\]: '/proc' is of the kernel"),
        ("/sys/kernel", r"roots\[1\]: '/sys/kernel' is of the kernel"),
        ("/dev", r"roots\[1\]: '/dev' is a directory of devices"),
        ("/", r"roots\[1\]: '/' (is of|holds)"),
        ("{state}", r"roots\[1\]: .* is of the kernel, of execd"),
        ("{above}", r"roots\[1\]: .* holds the files of execd"),
        ("file", r"roots\[1\]: 'file' is not a directory"),
        ("a\0b", r"roots\[1\]: "),
    ],
)
async def test_a_root_that_no_checkpoint_may_have_is_refused(
    engine: Engine, path: str, message: str
) -> None:
    (base_of(engine) / "file").write_text("x")
    state = engine.config.state_dir
    path = path.format(state=state, above=os.path.dirname(state))
    with pytest.raises(InvalidArgument, match=message) as refusal:
        await engine.checkpoints.create("x", [".", path])
    assert refusal.value.details == {"field": "roots[1]"}
    with pytest.raises(NotFound, match=r"^watched\[0\]: "):
        await engine.checkpoints.create("x", ["."], ["/no/such"])
    assert engine.checkpoints.list() == []


async def test_a_checkpoint_past_the_bound_is_refused_with_the_size_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, checkpoint_bytes=MIB) as engine:
        base = base_of(engine)
        (base / "small").write_bytes(b"s" * 10_000)
        await engine.checkpoints.create("small", ["."])
        used_bytes, before = engine._parts.store.used_bytes, contents(engine)
        assert used_bytes >= 10_000
        (base / "large").write_bytes(os.urandom(2 * MIB))
        with pytest.raises(NoSpace, match="--checkpoint-bytes") as refusal:
            await engine.checkpoints.create("large", ["."])
        assert 2 * MIB <= refusal.value.details["needed_bytes"] < 3 * MIB
        assert refusal.value.details["available_bytes"] < MIB
        assert contents(engine) == before
        assert engine._parts.store.used_bytes == used_bytes
        await engine.checkpoints.delete("small")
        assert engine._parts.store.used_bytes == 0


async def test_a_content_is_kept_once_and_as_long_as_a_checkpoint_needs_it(engine: Engine) -> None:
    base, checkpoints = base_of(engine), engine.checkpoints
    for name in ("a", "b"):
        (base / name).write_text("same")
    (base / "c").write_text("other")
    await checkpoints.create("one", ["."])
    assert len(contents(engine)) == 2
    (base / "c").unlink()
    await checkpoints.create("two", ["."])
    assert len(contents(engine)) == 2
    await checkpoints.delete("one")
    assert len(contents(engine)) == 1
    (base / "a").unlink()
    assert (await checkpoints.restore("two")).restored == 2, "the file, the time of the root"
    assert (base / "a").read_text() == "same"


async def test_a_restarted_daemon_has_the_checkpoints_and_drops_what_was_half_made(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        (base_of(engine) / "file").write_text("old")
        made = await engine.checkpoints.create("kept", ["."])
        await engine.checkpoints.create("damaged", ["."])
        used_bytes = engine._parts.store.used_bytes
    shelf = tmp_path / "state/checkpoints"
    (shelf / "content/+half").write_text("half")
    (shelf / "content" / ("ab" * 32)).write_text("of nobody")
    (shelf / "+manifest").write_text("half")
    damaged = (shelf / "damaged.manifest").read_bytes()
    (shelf / "damaged.manifest").write_bytes(damaged[:-1] + b"\xff")
    async with running(tmp_path) as engine:
        assert engine.checkpoints.list() == [made]
        assert "+half" not in contents(engine)
        assert sorted(os.listdir(shelf)) == ["content", "damaged.manifest", "kept.manifest"]
        for act in (
            engine.checkpoints.restore("damaged"),
            engine.checkpoints.create("damaged", ["."]),
        ):
            with pytest.raises(
                Conflict, match=r"'damaged' cannot be read: .*; delete the checkpoint"
            ):
                await act
        await engine.checkpoints.delete("damaged")
        assert len(contents(engine)) == 1
        assert sorted(os.listdir(shelf)) == ["content", "kept.manifest"]
        assert 0 < engine._parts.store.used_bytes < used_bytes
        (base_of(engine) / "file").write_text("new")
        await engine.checkpoints.restore("kept")
        assert (base_of(engine) / "file").read_text() == "old"


async def test_a_cancelled_checkpoint_leaves_nothing(engine: Engine) -> None:
    base, checkpoints = base_of(engine), engine.checkpoints
    for number in range(500):
        (base / f"{number}").write_bytes(os.urandom(20_000))
    making = asyncio.ensure_future(checkpoints.create("x", ["."]))
    await wait_until_async(lambda: checkpoints.threads._long.locked())
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    # The next operation waits for the end of the cancelled one.
    (base / "empty").mkdir()
    await checkpoints.create("y", ["empty"])
    assert [each.id for each in checkpoints.list()] == ["y"]
    assert contents(engine) == []


async def test_watched_directories_are_compared_and_not_kept(
    engine: Engine, tmp_path: Path
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "file").write_text("old")
    made = await engine.checkpoints.create("x", ["."], [str(watched)])
    assert [(root.path, root.n_files) for root in made.watched] == [(str(watched), 1)]
    assert contents(engine) == []
    (watched / "temporary").write_text("x")
    (watched / "temporary").unlink()
    assert (await engine.checkpoints.verify("x")).n_differences == 0
    (watched / "file").write_text("new")
    assert (await engine.checkpoints.restore("x")).restored == 0
    [difference] = (await engine.checkpoints.verify("x")).differences
    assert (difference.path, difference.message) == (str(watched / "file"), "modified")


async def test_excluded_paths_are_neither_compared_nor_restored(engine: Engine) -> None:
    base = base_of(engine)
    (base / "a/node_modules/x").mkdir(parents=True)
    await engine.checkpoints.create("x", ["."], exclude=["**/node_modules", "*.log"])
    (base / "a/node_modules/x/y").write_text("x")
    (base / "b.log").write_text("x")
    os.utime(base, ns=(1, 1))
    assert [change.path for change in await engine.checkpoints.changes("x")] == []
    await engine.checkpoints.restore("x")
    assert (base / "a/node_modules/x/y").exists()
    assert (base / "b.log").exists()
    with pytest.raises(InvalidArgument, match=r"^exclude\[1\]: "):
        await engine.checkpoints.create("y", ["."], exclude=["a", "/b"])


async def test_changes_below_a_path(engine: Engine) -> None:
    base = base_of(engine)
    (base / "a").mkdir()
    await engine.checkpoints.create("x", ["."])
    (base / "a/new").write_text("x")
    (base / "ab").write_text("x")
    for path in ("a", str(base / "a"), "./a/"):
        changes = await engine.checkpoints.changes("x", path)
        assert [change.path for change in changes] == [b"a/new"]
    with pytest.raises(InvalidArgument, match=r"^path: "):
        await engine.checkpoints.changes("x", "/usr")


async def test_a_file_that_cannot_be_kept_refuses_the_checkpoint(engine: Engine) -> None:
    base = base_of(engine)
    os.mkfifo(base / "fifo")
    await engine.checkpoints.create("fifo", ["."])
    (base / "deep").mkdir()
    (base / ("deep" + "/d" * 600)).mkdir(parents=True)
    with pytest.raises(Conflict, match=r"512 directories.*exclude"):
        await engine.checkpoints.create("x", ["."])


async def test_no_command_runs_before_the_checkpoint_of_the_start(tmp_path: Path) -> None:
    async with running(tmp_path, checkpoint_at_start=(str(tmp_path / "base"),)) as engine:
        assert engine.obstacle is not None
        assert engine.obstacle.cause == "checkpoint"
        with pytest.raises(Unavailable):
            engine.submit(Submission(shell_command("true")))
        await engine.make_start_checkpoint()
        assert engine.obstacle is None
        made = engine.checkpoints.get(START)
        (base_of(engine) / "pollution").write_text("x")
    async with running(tmp_path, checkpoint_at_start=(str(tmp_path / "base"),)) as engine:
        await engine.make_start_checkpoint()
        assert engine.checkpoints.get(START) == made
        assert (await engine.checkpoints.verify(START)).n_differences > 0


async def test_a_damaged_checkpoint_of_the_start_is_never_made_anew(tmp_path: Path) -> None:
    at_start = (str(tmp_path / "base"),)
    async with running(tmp_path, checkpoint_at_start=at_start) as engine:
        (base_of(engine) / "file").write_text("kept")
        await engine.make_start_checkpoint()
        kept = contents(engine)
    manifest = tmp_path / "state/checkpoints/start.manifest"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-1])
    async with running(tmp_path, checkpoint_at_start=at_start) as engine:
        with pytest.raises(Conflict, match=r"'start' cannot be read: .* or use a new --state-dir"):
            await engine.make_start_checkpoint()
        with pytest.raises(Conflict):
            await engine.checkpoints.delete(START)
        assert engine.obstacle is not None, "no user code runs"
    manifest.write_bytes(whole)
    async with running(tmp_path, checkpoint_at_start=at_start) as engine:
        await engine.make_start_checkpoint()
        assert contents(engine) == kept
        (base_of(engine) / "file").unlink()
        await engine.checkpoints.restore(START)
        assert (base_of(engine) / "file").read_text() == "kept"


async def test_a_lack_of_descriptors_is_no_damage(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.checkpoints.create("x", ["."])

    def lacking(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "load", lacking)
        with pytest.raises(Unavailable, match="Too many open files"):
            await engine.checkpoints.restore("x")
    assert (await engine.checkpoints.restore("x")).troubles == []


@pytest.mark.root
async def test_another_user_has_no_right_that_its_programs_lack(tmp_path: Path) -> None:
    # pytest's own folders are closed to a second user
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        base = Path(folder, "base")
        base.mkdir()
        os.chown(base, 1234, 5678)
        settings = {"base_dir": str(base), "state_dir": f"{folder}/state", "run_as": "1234:5678"}
        async with running(tmp_path, python="/usr/bin/python3", **settings) as engine:
            await sh(engine, "mkdir d; for i in $(seq 100); do echo $i > d/$i; done; mkdir e")
            checkpoints = engine.checkpoints
            await checkpoints.create("x", ["."])
            await sh(engine, "rm -r d; mkdir f; echo x > f/x; chmod 0 e f; chmod 0 .")
            assert (await checkpoints.restore("x")).troubles == []
            verified = await checkpoints.verify("x")
            assert (verified.n_differences, verified.differences) == (0, [])
            assert (base / "d/7").read_text() == "7\n"
            assert (base / "d/7").stat().st_uid == 1234
            Path(folder, "secret").mkdir(mode=0o700)
            Path(folder, "secret/file").write_text("of root")
            with pytest.raises(ExecdError):
                await checkpoints.create("y", [f"{folder}/secret"])
            os.chown(base / "d/8", 0, 0)
            os.chmod(base / "d/8", 0o600)
            with pytest.raises(Conflict, match=r"d/8': Permission denied; leave"):
                await checkpoints.create("y", ["."])
            await checkpoints.create("y", [], ["."])
            assert (await checkpoints.verify("y")).n_differences == 0
            (base / "d/8").write_text("other")
            assert (await checkpoints.verify("y")).n_differences == 1


def test_a_closed_service_refuses(tmp_path: Path) -> None:
    async def close_and_ask() -> None:
        async with running(tmp_path) as engine:
            checkpoints: Checkpoints = engine.checkpoints
            checkpoints.close()
            with pytest.raises(Unavailable):
                await checkpoints.create("x", ["."])
            asked: Any = checkpoints.list()
            assert asked == []

    asyncio.run(close_and_ask())


async def test_a_reset_ends_the_operations_of_callers_that_wait(engine: Engine) -> None:
    base, checkpoints = base_of(engine), engine.checkpoints
    await checkpoints.create("x", ["."])
    (base / "hole").touch()
    os.truncate(base / "hole", 15 << 40)
    waiting = [asyncio.ensure_future(checkpoints.changes("x")) for _ in range(3)]
    await wait_until_async(checkpoints.threads._long.locked)
    checkpoints.stop_others()
    done = await asyncio.wait_for(checkpoints.restore("x"), 20)
    assert (done.removed, done.troubles) == (1, [])
    for each in waiting:
        with pytest.raises(Conflict, match="given up"):
            await each


async def test_a_caller_that_leaves_ends_its_operation(engine: Engine) -> None:
    base, checkpoints = base_of(engine), engine.checkpoints
    await checkpoints.create("x", ["."])
    (base / "hole").touch()
    os.truncate(base / "hole", 15 << 40)
    waiting = asyncio.ensure_future(checkpoints.changes("x"))
    await wait_until_async(checkpoints.threads._long.locked)
    waiting.cancel()
    done = await asyncio.wait_for(checkpoints.restore("x"), 20)
    assert (done.removed, done.troubles) == (1, [])
