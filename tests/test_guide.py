"""The blocks of docs/guide.md, docs/client.md and docs/reuse.md run, and print what their comments
say. The commands of docs/tutorial.md and docs/client.md run in one shell, and print what the page
shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conformance.target import TERMINATED, start

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parent.parent / "docs"
CLIENT = (DOCS / "client.md").read_text()
TUTORIAL = (DOCS / "tutorial.md").read_text()


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    daemon = start(tmp_path, f"--python={sys.executable}")  # has matplotlib
    yield daemon.url
    assert daemon.stop() == TERMINATED, daemon.log_text()
    assert daemon.log_errors() == []


@pytest.mark.third_party
@pytest.mark.parametrize(("page", "least"), [("guide.md", 10), ("client.md", 6), ("reuse.md", 4)])
def test_blocks_of_a_page_print_what_their_comments_say(
    url: str, page: str, least: int, tmp_path: Path
) -> None:
    # The page's files may be there already, and another user's.
    text = (DOCS / page).read_text().replace("/tmp/", f"{tmp_path}/")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > least
    names: dict[str, Any] = {}
    for block in blocks:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(block.replace("http://127.0.0.1:8888", url), names)
        said = re.findall(r"# -> (.*)$", block, re.MULTILINE)
        assert [line for line in shown.getvalue().splitlines() if line] == said, block
    names["sandbox"].close()


class Step(NamedTuple):
    """A command of the tutorial, and the lines below it."""

    command: str
    shown: str


def steps(page: str) -> list[Step]:
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            n_lines = 1 + sum(line.startswith("> ") for line in lines)
            command = "".join(line.removeprefix("> ") for line in lines[:n_lines])
            found.append(Step(command, "".join(lines[n_lines:])))
    return found


def fits(shown: str, printed: str) -> bool:
    """Whether a shell has printed the lines of the page; `…` stands for any text in a line."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed) is not None


def test_commands_of_execctl_print_what_the_page_shows(url: str, tmp_path: Path) -> None:
    # The page's file may be there already, and another user's.
    found = steps(CLIENT.replace("/tmp/", f"{tmp_path}/"))
    assert len(found) > 6
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in found:
        done = subprocess.run(
            ["bash", "-c", step.command],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "EXECD_URL": url, "PATH": programs},
            stdin=subprocess.DEVNULL,
        )
        assert (done.stdout, done.stderr) == (step.shown, ""), step.command


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_commands_of_the_tutorial_print_what_the_page_shows(url: str) -> None:
    found = steps(TUTORIAL)
    assert len(found) > 10
    mark = "\x1e"
    script = "".join(f"printf '{mark}'\n{step.command}" for step in found)
    script = script.replace("localhost:8888", url.removeprefix("http://"))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    for step, printed in zip(found, done.stdout.split(mark)[1:], strict=True):
        assert fits(step.shown, printed), f"{step.command}{printed}"


def test_text_is_left_out_within_a_line_only() -> None:
    assert fits("a…\n", "abc\n")
    assert not fits("a…\n", "a\nb\n")
    assert not fits("a.\n", "ab\n")
    assert steps("```console\n$ a \\\n> b\nc\n$ d\n```\n") == [
        Step("a \\\nb\n", "c\n"),
        Step("d\n", ""),
    ]
