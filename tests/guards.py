"""Guards around every test: a test must end everything the test made. Fixtures that several folders
share."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import inspect
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import profiles, subreaper
from tests.gvisor import is_gvisor
from tests.layer_rules import PURE, PURE_OF_WINGS
from tests.patience import patience
from tests.recording import pytest_collectreport as pytest_collectreport
from tests.recording import pytest_runtest_logreport as pytest_runtest_logreport
from tests.recording import pytest_sessionfinish as pytest_sessionfinish
from tests.recording import pytest_sessionstart as pytest_sessionstart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

profiles.load()

REPOSITORY = Path(__file__).parents[1]

# nohup ignores SIGHUP, and a script's background job SIGINT and SIGQUIT. Children inherit that, and
# the programs of tests are to end as anywhere else. A handler is no inheritance: what runs here
# survives a hang-up as before, and each program begins with the default.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        _default = signal.default_int_handler if _number == signal.SIGINT else lambda *_: None
        signal.signal(_number, _default)
PURE_MODULES = [module.split(".") for module in PURE]
QUICK = {
    *(f"{'/'.join([*folders, f'test_{name}'])}.py" for *folders, name in PURE_MODULES),
    *(
        f"wings/{wing}/tests/test_{name}.py"
        for wing in PURE_OF_WINGS
        for name in PURE_OF_WINGS[wing]
    ),
    "docs/test_generate.py",
    "test_docs.py",
    "test_layers.py",
    "test_operating.py",
}
"""Tests of pure modules, and of rules of the repository: a developer runs them at every step. No
other file has a test that is marked ``quick``."""

LONG = {
    "browser/test_docs_page.py",
    "client/cli/test_running.py",
    "conformance/test_disk_limit.py",
    "conformance/test_executions_restart.py",
    "conformance/test_hostile_cells.py",
    "conformance/test_large.py",
    "conformance/test_output.py",
    "conformance/test_pollutions.py",
    "conformance/test_session_limits.py",
    "conformance/test_sessions.py",
    "difference/test_difference.py",
    "engine/files/test_service.py",
    "engine/test_reset_faults.py",
    "engine/sessions/test_manager.py",
    "model/test_model.py",
    "mutants/test_fork_server.py",
    "sdk/test_sdk.py",
    "test_examples.py",
    "test_server.py",
    "test_server_idle.py",
    "warden/test_adopt.py",
}
"""Few tests that take long, or many that take minutes. The processes of a run begin with these
files, because a long file that begins last leaves the other processes idle."""

THIRD_PARTY = {
    "browser",
    "client/adapters",
    "client/mcp_server",
    "client/test_pyright.py",
    "client/test_target.py",
    "difference",
    "image/test_sbom.py",
    "image/test_tree_bill.py",
    "openapi",
    "readers",
    "sdk",
    "wings/e2b/tests/sdk",
    "wings/opensandbox/tests/sdk",
}
"""Folders and files whose tests all need packages or programs beyond the extra `test`."""

LEAK_DEADLINE_SECONDS = 20.0
"""An end in a thread or in the kernel may take a moment; a leak stays."""


HANG_SECONDS, RENEWAL_SECONDS = 540.0, 30.0
"""A test that hangs for 510 to 540 s shows the stacks of all threads. Below the timeout, and above
honest tests: CPython reads the stacks of running threads without a lock, and may crash at that."""


class StacksOfAHang:
    """For hangs in C, which the timeout's signal does not reach.

    pytest's own watchdog (faulthandler_timeout) starts and ends a thread for each test, which takes
    longer than most tests. This watchdog begins anew with a test each RENEWAL_SECONDS.
    """

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # the capture of output replaces the original
        self._renew_at = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + RENEWAL_SECONDS
            faulthandler.dump_traceback_later(HANG_SECONDS, file=self._stderr)

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(StacksOfAHang())


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor that listdir itself had open
    return found


def _descendants() -> list[psutil.Process]:
    """psutil reads the parent of each process of the machine, twice a test. Linux keeps lists of
    children, but not every kernel shows the lists (CONFIG_PROC_CHILDREN)."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return psutil.Process().children(recursive=True)
    found, todo = [], [os.getpid()]
    while todo:
        folder = f"/proc/{todo.pop()}/task"
        try:
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/children") as listed:
                    todo += (pids := [int(pid) for pid in listed.read().split()])
                for pid in pids:
                    with contextlib.suppress(psutil.NoSuchProcess):  # its neighbours are there
                        found.append(psutil.Process(pid))
        except OSError:
            continue  # ended meanwhile
    return found


def children() -> dict[int, str]:
    found = {}
    for process in _descendants():
        try:
            found[process.pid] = f"{process.status()} {process.name()} of {process.ppid()}"
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
    processes = [
        f"process {pid}: {what}"
        for pid, what in children().items()
        if pid not in before[1] and not _has_ancestor(pid, before[1])
    ]
    return descriptors + processes


def _has_ancestor(pid: int, pids: Collection[int]) -> bool:
    """Whether the process belongs to one of ``pids``: a daemon held by a wider fixture replaces
    workers at any time."""
    try:
        return any(parent.pid in pids for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return False


def _name(path: Path) -> str:
    """A test's file or folder below ``tests``; of a wing, below the repository."""
    return str(path.relative_to(REPOSITORY)).removeprefix("tests/")


def _is_third_party(path: Path) -> bool:
    name = _name(path)
    return any(name == part or name.startswith(f"{part}/") for part in THIRD_PARTY)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run imports no file that has no test for the run. The file may need packages that are not
    there, and the import of all tests takes a third of the CPU of the quick run."""
    name, expression = _name(collection_path), config.option.markexpr
    if expression == "quick":
        is_wanted = name in (".", "tests") or any(
            quick == name or quick.startswith(f"{name}/") for quick in QUICK
        )
        return None if is_wanted else True
    is_folder = collection_path.is_dir()
    text = b"" if is_folder else collection_path.read_bytes()
    is_wanted = True
    if expression.startswith("not third_party"):
        is_wanted = not _is_third_party(collection_path)
    elif expression.startswith("third_party"):
        is_wanted = is_folder or _is_third_party(collection_path) or b"mark.third_party" in text
    if expression.endswith("and (alone or timed)"):
        is_wanted &= is_folder or b"mark.alone" in text or b"mark.timed" in text
    return None if is_wanted else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without Python's garbage collector. The modules and the tests live as long as the run, and
    full collections of half a million objects take a quarter of the CPU of this step, and a
    twentieth of the CPU of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_root = os.geteuid() == 0
    for item in items:
        if _is_third_party(item.path):
            item.add_marker(pytest.mark.third_party)
        elif item.get_closest_marker("third_party"):
            pass  # needs more than the quick run installs
        elif _name(item.path) in QUICK:
            item.add_marker(pytest.mark.quick)
        differs = item.get_closest_marker("linux_only")
        if differs and is_gvisor():
            item.add_marker(pytest.mark.skip(reason=f"not so in gVisor: {differs.args[0]}"))
        if not is_root and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="about a root daemon, and this user is not"))
        if is_root and item.get_closest_marker("not_root"):
            item.add_marker(pytest.mark.skip(reason="about a daemon that is not root"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        _order_files(items)


def _order_files(items: list[pytest.Item]) -> None:
    """The long files first, then the files with the most tests: the processes of a run take file
    after file in this order."""
    n_tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[bool, int, Path]:
        return _name(item.path) not in LONG, -n_tests[item.path], item.path

    items.sort(key=place)


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No new descriptors, processes or zombies after a test. Wider fixtures start before the first
    look, so the guard ignores their resources."""
    for name, definitions in request.node._fixtureinfo.name2fixturedefs.items():
        if definitions[-1].scope != "function":
            request.getfixturevalue(name)
    # The list of children may omit some while others end (proc_tid_children(5)): two looks.
    before = _descriptors(), children() | children()
    with subreaper.restored():
        yield
    began = time.monotonic()
    while leaked := _leaked(before):
        if patience.is_over(time.monotonic() - began, LEAK_DEADLINE_SECONDS):
            pytest.fail("left behind:\n  " + "\n  ".join(leaked))
        subreaper.reap_orphans()
        time.sleep(0.01)  # between looks of a bounded wait


@contextlib.asynccontextmanager
async def no_new_task() -> AsyncIterator[None]:
    """The block ends with the tasks from its beginning."""
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


@pytest.fixture
async def guarded_loop() -> AsyncIterator[None]:
    """The loop of the test ends with the tasks from its beginning."""
    async with no_new_task():
        yield


@pytest.fixture(autouse=True)
def no_task_is_left(request: pytest.FixtureRequest) -> None:
    """Each test's loop ends with the tasks from its beginning. A test without anything async gets
    no loop: a loop takes longer than most tests."""
    fixtures = [each[-1] for each in request.node._fixtureinfo.name2fixturedefs.values()]
    own = (fixture.func for fixture in fixtures if fixture.scope == "function")
    functions = (request.function, *own)
    if any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in functions
    ):
        request.getfixturevalue("guarded_loop")
