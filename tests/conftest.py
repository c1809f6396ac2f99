"""Guards around every test: a test must end everything the test made. Fixtures that several folders
share."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

from tests import subreaper

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# No deadline for an example: a busy machine may hold any of them up. Where this user may not write
# to the work tree hypothesis keeps no examples.
settings.register_profile("execd", deadline=None)
settings.register_profile("execd-read-only", deadline=None, database=None)
settings.load_profile("execd" if os.access(".", os.W_OK) else "execd-read-only")

LEAK_DEADLINE_SECONDS = 5.0
"""An end in a thread or in the kernel may take a moment; a leak stays."""


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor that listdir itself had open
    return found


def _children() -> dict[int, str]:
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid] = process.status()
            found[process.pid] += f" {' '.join(process.cmdline())[:200]}"
        except psutil.ZombieProcess:
            continue  # has no command line, and is a leak all the same
        except psutil.NoSuchProcess:
            found.pop(process.pid, None)
    return found


def _leaked(before: tuple[dict[int, str], dict[int, str]]) -> list[str]:
    descriptors = [
        f"descriptor {fd} -> {where}" for fd, where in _descriptors().items() if fd not in before[0]
    ]
    children = [
        f"process {pid}: {what}"
        for pid, what in _children().items()
        if pid not in before[1] and not _has_ancestor(pid, before[1])
    ]
    return descriptors + children


def _has_ancestor(pid: int, pids: Collection[int]) -> bool:
    """Whether the process belongs to one of ``pids``: a daemon held by a wider fixture replaces
    workers at any time."""
    try:
        return any(parent.pid in pids for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No new descriptors, processes or zombies after a test. Wider fixtures start before the first
    look, so the guard ignores their resources."""
    for name, definitions in request.node._fixtureinfo.name2fixturedefs.items():
        if definitions[-1].scope != "function":
            request.getfixturevalue(name)
    before = _descriptors(), _children()
    with subreaper.restored():
        yield
    deadline = time.monotonic() + LEAK_DEADLINE_SECONDS
    while leaked := _leaked(before):
        if time.monotonic() > deadline:
            pytest.fail("left behind:\n  " + "\n  ".join(leaked))
        time.sleep(0.01)  # between looks of a bounded wait


@pytest.fixture(autouse=True)
async def no_task_is_left() -> object:
    """Each test's loop ends with the tasks from its beginning."""
    before = asyncio.all_tasks()
    yield
    current = asyncio.current_task()
    left = {
        task for task in asyncio.all_tasks() - before if task is not current and not task.done()
    }
    for _ in range(100):  # a cancelled task needs turns of the loop to end
        if not left:
            break
        await asyncio.sleep(0)
        left = {task for task in left if not task.done()}
    assert not left, f"tasks left running: {left}"
