"""Checkpoints: what has changed, the work as a patch, and the way back."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from execd_client import AsyncExecd, Conflict, Execd, NotFound
from execd_client.calls import Patience
from execd_client.checkpointing import CHECKPOINTS, create
from execd_client.effects import Cut, Send
from execd_client.models import CheckpointReply
from tests.client.plays import Clock, play, reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

MADE = {
    "id": "task",
    "created_at": "2026-11-30T08:00:00Z",
    "roots": [],
    "watched": [],
    "exclude": [],
    "bytes": 0,
    "duration_seconds": 0.1,
}


@pytest.fixture
def project(sandbox: Execd) -> Iterator[str]:
    """A directory, and a checkpoint of the same name."""
    name = sandbox.run("mktemp -d project-XXXXXX").check().stdout.strip()
    sandbox.files.write(f"{name}/notes.txt", "one\ntwo\n")
    sandbox.files.write(f"{name}/.cache/x", "left out")
    sandbox.checkpoint(name, roots=[name], exclude=[".cache"])
    yield name
    sandbox.delete_checkpoint(name)
    sandbox.delete_checkpoint(name)


def test_changes_and_patch_have_the_work_of_a_command(
    sandbox: Execd, project: str, tmp_path: Path
) -> None:
    assert list(sandbox.changes(project)) == []
    assert sandbox.patch(project) == b""
    sandbox.run(
        "sed -i s/two/zwei/ notes.txt; echo x > new; echo y > .cache/x", cwd=project
    ).check()
    found = {(each.change, os.path.basename(each.path)) for each in sandbox.changes(project)}
    assert found == {("modified", "notes.txt"), ("created", "new")}
    assert [each.change for each in sandbox.changes(project, f"{project}/new")] == ["created"]
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=sandbox.patch(project), check=True)
    assert (tmp_path / "notes.txt").read_text() == "one\nzwei\n"
    assert (tmp_path / "new").read_text() == "x\n"
    assert b"notes" not in sandbox.patch(project, f"{project}/new")


def test_restore_makes_the_files_as_they_were(sandbox: Execd, project: str) -> None:
    sandbox.run("echo lost > notes.txt; echo x > new", cwd=project).check()
    done = sandbox.restore(project)
    assert (done.removed, done.failed) == (1, [])
    assert sandbox.files.read(f"{project}/notes.txt") == b"one\ntwo\n"
    assert not sandbox.files.exists(f"{project}/new")


def test_checkpoints_are_listed_and_their_ids_are_taken_once(sandbox: Execd, project: str) -> None:
    assert project in [each.id for each in sandbox.checkpoints()]
    with pytest.raises(Conflict):
        sandbox.checkpoint(project, roots=[project])
    with pytest.raises(NotFound):
        sandbox.changes("never-made")
    made = sandbox.checkpoint(roots=[project])
    sandbox.delete_checkpoint(made.id)


def test_more_changes_than_a_page_come_whole(sandbox: Execd, project: str) -> None:
    sandbox.run("seq 2500 | xargs touch", cwd=project).check()
    assert len(sandbox.changes(project)) == 2500


def test_async_client_has_the_same_calls(url: str, project: str) -> None:
    async def work() -> list[str]:
        async with AsyncExecd(url) as sandbox:
            await sandbox.run("rm notes.txt", cwd=project)
            assert (await sandbox.patch(project)).startswith(b"diff --git a/notes.txt b/notes.txt")
            return [each.change for each in await sandbox.changes(project)]

    assert asyncio.run(work()) == ["deleted"]


def test_checkpoint_whose_answer_was_lost_is_found_again() -> None:
    asked: list[str] = []

    def answer(effect: Any) -> Any:
        assert isinstance(effect, Send)
        asked.append(f"{effect.request.method} {effect.request.path}")
        match len(asked):
            case 1:
                return Cut("lost", was_sent=True)
            case 2:
                return reply(409, {"code": "CONFLICT", "message": "taken"})
        return reply(200, MADE)

    clock = Clock()
    made, _ = play(create({"id": "task"}, Patience(clock=clock)), clock, answer)
    assert isinstance(made, CheckpointReply)
    assert asked == [f"POST {CHECKPOINTS}", f"POST {CHECKPOINTS}", f"GET {CHECKPOINTS}/task"]
