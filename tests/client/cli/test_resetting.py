"""``execctl checkpoint``, ``changes``, ``diff``, ``restore`` and ``reset``."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.client.cli.conftest import EXECCTL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]

OUTCOME = {
    "clean": True,
    "episode": "state.1",
    "verified_by": "content",
    "ended": {},
    "files": {},
    "differences": {"items": [], "total": 0},
    "steps": [],
}
UNCLEAN = {
    "items": [
        {"kind": "process", "pid": 7, "message": "still lives"},
        {"kind": "file", "path": "/etc/hosts", "message": "modified"},
    ],
    "total": 2,
}


@pytest.fixture
def project(execctl: Run) -> Iterator[str]:
    """A directory, and a checkpoint of the same name."""
    name = execctl("run", "--", "mktemp", "-d", "project-XXXXXX").stdout.strip()
    execctl("run", "--", "sh", "-c", f"seq 9 > {name}/numbers")
    assert execctl("checkpoint", name, "--root", name).stdout == f"{name}\n"
    yield name
    assert execctl("checkpoint", name, "--delete").returncode == 0


def test_changes_and_diff_show_the_work(execctl: Run, project: str, tmp_path: Path) -> None:
    assert execctl("changes", project).stdout == ""
    execctl("run", "--", "sh", "-c", f"cd {project}; sed -i s/5/five/ numbers; echo x > new")
    lines = execctl("changes", project).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["created", "modified"]
    found = json.loads(execctl("changes", project, "--json").stdout)
    assert [each["was_size_bytes"] for each in found] == [None, 18]
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in range(1, 10)))
    patch = execctl("diff", project).stdout
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    assert "five" in (tmp_path / "numbers").read_text()
    assert execctl("diff", project, "--path", f"{project}/new").stdout.count("diff --git") == 1


def test_restore_makes_the_files_as_they_were(execctl: Run, project: str) -> None:
    execctl("run", "--", "sh", "-c", f"cd {project}; rm numbers; touch new")
    assert execctl("restore", project).stdout.endswith(" restored, 1 removed\n")
    assert execctl("changes", project).stdout == ""


def test_checkpoints_are_listed(execctl: Run, project: str) -> None:
    assert project in execctl("checkpoint", "--list").stdout
    found = json.loads(execctl("checkpoint", "--list", "--json").stdout)
    assert project in [each["id"] for each in found]
    refused = execctl("changes", "never-made")
    assert refused.returncode == 125
    assert "never-made" in refused.stderr


async def reset(
    aiohttp_server: Any, outcome: dict[str, Any], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """What ``execctl reset`` says of this outcome, and the requests."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.headers.get("Idempotency-Key"), await request.json()))
        return web.json_response(outcome, headers={"X-Execd-Episode": outcome["episode"]})

    app = web.Application()
    app.router.add_post("/v1/reset", answer)
    server = await aiohttp_server(app)
    command = [EXECCTL, "--url", str(server.make_url("")), "reset", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    return done, asked


async def test_clean_reset_is_exit_code_0(aiohttp_server: Any) -> None:
    done, asked = await reset(aiohttp_server, OUTCOME, "task", "--verify", "content")
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean, episode state.1\n", "")
    ((key, body),) = asked
    assert len(key) == 32
    assert body == {"checkpoint": "task", "verify": "content"}


async def test_reset_that_is_not_clean_is_exit_code_3(aiohttp_server: Any) -> None:
    outcome = {**OUTCOME, "clean": False, "differences": UNCLEAN}
    done, asked = await reset(aiohttp_server, outcome, "--keep-records")
    assert (done.returncode, done.stdout) == (3, "NOT clean, episode state.1\n")
    assert done.stderr.splitlines() == [
        "execctl: process 7: still lives",
        "execctl: file /etc/hosts: modified",
    ]
    assert asked[0][1] == {"keep_records": True}
    done, _ = await reset(aiohttp_server, outcome, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["differences"]["total"] == 2
