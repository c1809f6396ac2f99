"""Branches of a live session."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kernel.harness import Ends, WorkerProcess
from tests.patience import patience
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    NewWorker = Callable[..., WorkerProcess]


class Branches:
    """Forks of workers, ended after the test."""

    def __init__(self, workers: list[WorkerProcess]) -> None:
        self._workers = workers
        self.warnings: list[str] = []

    def of(self, worker: WorkerProcess, count: int = 1) -> list[WorkerProcess]:
        new, self.warnings = worker.fork(count)
        self._workers.extend(new)
        return new


@pytest.fixture
def branches(workers: list[WorkerProcess]) -> Branches:
    return Branches(workers)


def test_a_branch_has_all_that_was_and_goes_its_own_way(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(f"import os, math\nx = [1]\nos.chdir({str(tmp_path)!r})\nos.environ['OWN'] = '1'\nx")
    [branch] = branches.of(worker)
    assert branches.warnings == []
    assert (
        branch.run("x.append(2); x, math.pi > 3, Out[1] is x, In[-1][:1]").text
        == "([1, 2], True, True, 'x')"
    )
    assert branch.run("os.getcwd()").text == repr(str(tmp_path))
    assert branch.run("os.environ['OWN']").text == "'1'"
    assert worker.run("x").text == "[1]"
    worker.run("x.append(3)")
    assert branch.run("x").text == "[1, 2]"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_branch_answers_though_its_original_has_closed_a_standard_descriptor(
    worker: WorkerProcess, branches: Branches, number: int
) -> None:
    """The kernel gives the lowest free number to the first descriptor received by the branch."""
    worker.run(f"import os; x = 1; os.close({number})")
    [branch] = branches.of(worker)
    assert branch.run("x").text == "1"


def test_a_branch_gets_at_most_the_limits_of_its_original(
    new_worker: NewWorker, branches: Branches
) -> None:
    core = resource.RLIMIT_CORE
    worker = new_worker(limits=[[core, 1000, 1000]])
    [branch] = branches.of(worker)
    assert branch.configure(cwd="", env={}, limits=[[core, 2000, 2000]])["type"] == "configured"
    assert branch.run(f"import resource\nresource.getrlimit({core})").text == "(1000, 1000)"
    assert branch.configure(cwd="", env={}, limits=[[core, 500, 500]])["type"] == "configured"
    assert branch.run(f"resource.getrlimit({core})").text == "(500, 500)"


def test_a_branch_is_a_worker_like_any_other(worker: WorkerProcess, branches: Branches) -> None:
    worker.run("1")
    [branch] = branches.of(worker)
    assert branch.pid != worker.pid
    assert os.getsid(branch.pid) == branch.pid
    assert psutil.Process(branch.pid).ppid() == os.getpid()
    cell = branch.run("print('out')\n!echo program\n2")
    assert (cell.stdout, cell.text) == ("out\nprogram\n", "2")
    assert worker.output_so_far() == ""
    assert len(os.listdir(f"/proc/{branch.pid}/fd")) == len(os.listdir(f"/proc/{worker.pid}/fd"))
    ours = {
        os.readlink(f"/proc/{worker.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{worker.pid}/fd")
    } - {"/dev/null"}
    theirs = {
        os.readlink(f"/proc/{branch.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{branch.pid}/fd")
    } - {"/dev/null"}
    assert not ours & theirs
    worker.close()
    assert branch.run("1 + 1").text == "2"


def test_a_configuration_of_a_branch_keeps_its_namespace_and_path(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run("import sys\npath = list(sys.path)")
    [branch] = branches.of(worker)
    assert branch.run("sys.path == path").text == "True"


def test_a_configuration_of_a_branch_adds_to_its_environment_and_keeps_its_directory(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(f"import os\nos.environ.update(OWN='1')\nos.chdir({str(tmp_path)!r})")
    [branch] = branches.of(worker)
    assert branch.configure(cwd="", env={"EXECD_MARKER": "new"})["type"] == "configured"
    assert (
        branch.run("[os.environ.get(name) for name in ('OWN', 'EXECD_MARKER', 'EXECD_TEST')]").text
        == "['1', 'new', '1']"
    )
    assert branch.run("os.getcwd()").text == repr(str(tmp_path))
    assert worker.run("os.environ.get('EXECD_MARKER')").text is None


@pytest.mark.third_party
def test_branches_draw_different_numbers(worker: WorkerProcess, branches: Branches) -> None:
    worker.run(
        "import random, numpy as np\n"
        "random.seed(1); np.random.seed(1)\n"
        "own, rng, old, fixed = random.Random(1), np.random.default_rng(1), "
        "np.random.RandomState(1), random.SystemRandom()"
    )
    some = branches.of(worker, 3)
    drawn = [
        one.run("random.random(), np.random.rand(), own.random(), rng.random(), old.rand()").text
        for one in (worker, *some)
    ]
    values = [text.strip("()").split(", ") for text in drawn if text is not None]
    assert all(len(set(column)) == 4 for column in zip(*values, strict=True))
    assert branches.warnings == ["random generators start anew in the branches: old, own, rng"]


SEEDED = (
    "import random, numpy as np\n"
    "random.seed(1); np.random.seed(1)\n"
    "own, rng, fixed = random.Random(1), np.random.default_rng(1), random.SystemRandom()"
)
DRAWN = "random.random(), np.random.rand(), own.random(), rng.random()"


def numbers(text: str | None) -> list[str]:
    assert text is not None
    return text.strip("()").replace("\n", "").split(", ")


@pytest.mark.third_party
def test_a_restored_session_draws_other_numbers(new_worker: NewWorker) -> None:
    drawn = []
    for _ in range(2):  # two restores of one checkpoint
        worker = new_worker()
        worker.run(SEEDED)
        worker.peer.send("reseed")
        drawn.append(numbers(worker.run(DRAWN).text))
    assert len(drawn[0]) == 4
    assert all(one != other for one, other in zip(*drawn, strict=True))


def test_a_cell_that_waits_for_input_draws_other_numbers_after_a_restore(
    worker: WorkerProcess,
) -> None:
    worker.run(SEEDED)
    seeded = worker.run("random.seed(1); random.random()").text
    worker.run("random.seed(1)")
    cell = worker.start("_ = input(); random.random()", allow_input=True)
    worker.peer.expect("input_request")
    worker.peer.send("reseed")
    worker.peer.send("input", id=cell, text="go on")
    found = worker.finish().text
    assert found is not None
    assert found != seeded


def test_a_broken_generator_costs_a_restored_session_nothing(worker: WorkerProcess) -> None:
    worker.run(
        "import random\n"
        "class Broken(random.Random):\n"
        "    def seed(self, *_):\n"
        "        if hasattr(self, 'made'): raise ValueError('no seed for me')\n"
        "broken = Broken(); broken.made = True; state = 1"
    )
    worker.peer.send("reseed")
    assert worker.run("state").text == "1"


@pytest.mark.third_party
def test_workers_of_one_zygote_draw_different_numbers(
    worker: WorkerProcess, new_worker: NewWorker
) -> None:
    other = new_worker()
    draw = "import random, uuid, numpy\nrandom.random(), numpy.random.rand()"
    assert worker.run(draw).text != other.run(draw).text


def test_threads_sockets_and_tasks_are_reported(worker: WorkerProcess, branches: Branches) -> None:
    worker.run(
        "import threading, socket, asyncio, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), name='helper', daemon=True).start()\n"
        "pair = socket.socketpair()"
    )
    worker.run(
        "async def later(): await asyncio.sleep(1000)\n"
        "task = asyncio.get_running_loop().create_task(later())\n"
        "await asyncio.sleep(0)"
    )
    [branch] = branches.of(worker)
    threads, sockets, tasks = branches.warnings
    assert "1 thread" in threads
    assert "helper" in threads
    assert "2 open socket" in sockets
    assert "1 asyncio task" in tasks
    assert branch.run("threading.active_count()").text == "1"
    assert branch.run("await asyncio.sleep(0.01)\n'awaits'").text == "'awaits'"
    assert worker.run("await asyncio.sleep(0.01)\n'awaits'").text == "'awaits'"
    assert worker.run("task.done()").text == "False"
    branches.of(branch)  # the branch keeps the original's loop, unused
    assert [warning for warning in branches.warnings if "socket" in warning] == [sockets]


def test_loops_of_a_branch_and_its_original_do_not_wake_each_other(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run("import asyncio\nawait asyncio.sleep(0)")
    [branch] = branches.of(worker)
    code = (
        "import os\n"
        "r, w = os.pipe()\n"
        "loop = asyncio.get_running_loop()\n"
        "got = loop.create_future()\n"
        "loop.add_reader(r, lambda: got.done() or got.set_result(1))\n"
        "os.write(w, b'x')\n"
        "await asyncio.wait_for(got, 5)\n"
        "loop.remove_reader(r)\n"
        "await asyncio.to_thread(lambda: 5)"
    )
    assert branch.run(code).text == "5"
    assert worker.run(code).text == "5"
    assert branch.run("import gc\ngc.collect()\nawait asyncio.sleep(0.01)\n6").text == "6"
    assert worker.run("await asyncio.to_thread(lambda: 7)").text == "7"


def test_script_magics_work_in_a_branch(worker: WorkerProcess, branches: Branches) -> None:
    worker.run("%%bash --out caught\necho first")
    [branch] = branches.of(worker)
    assert branch.run("%%bash\necho second").stdout == "second\n"
    branch.run("%%bash --out caught\necho third")
    assert branch.run("caught").text == "'third\\n'"


def test_a_branch_can_be_interrupted_and_asked(worker: WorkerProcess, branches: Branches) -> None:
    [branch] = branches.of(worker)
    branch.start("print('on')\nwhile True: pass")
    wait_until(branch.output_so_far)
    branch.interrupt()
    cell = branch.finish()
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"
    number = branch.start("input()", allow_input=True)
    branch.peer.expect("input_request")
    branch.peer.send("input", id=number, text="yes")
    assert branch.finish().text == "'yes'"


def test_a_tree_of_depth_four_and_width_three_is_explored(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run("path = []")
    level = [worker]
    for _ in range(3):
        below = []
        for one in level:
            for number, branch in enumerate(branches.of(one, 3)):
                branch.run(f"path.append({number})")
                below.append(branch)
        level = below
    paths = {one.run("tuple(path)").text for one in level}
    assert len(paths) == 27
    assert worker.run("path").text == "[]"


def test_open_files_and_user_hooks_survive_a_branch(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(
        "import os\n"
        "forked = []\n"
        "os.register_at_fork(after_in_child=lambda: forked.append(os.getpid()))\n"
        "get_ipython().events.register('post_execute', lambda: None)"
    )
    [branch] = branches.of(worker)
    assert branch.run("forked[-1] == os.getpid()").text == "True"


def test_a_fork_whose_descriptors_did_not_come_is_an_error(worker: WorkerProcess) -> None:
    answer = worker.request("fork", count=1)
    assert "4 descriptors" in answer["error"]
    assert worker.run("1 + 1").text == "2"


def test_a_fork_that_the_kernel_refuses_is_an_error(new_worker: NewWorker) -> None:
    """With a second thread, because a process with one thread need not use os.fork."""
    worker = new_worker()
    worker.run(
        "import os, threading\n"
        "def refused(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork, fork = refused, os.fork\n"
        "end = threading.Event()\n"
        "threading.Thread(target=end.wait).start()"
    )
    ends = Ends()
    worker.peer.send("fork", ends.sent, id=5, count=1)
    ends.close_sent()
    assert "temporarily unavailable" in worker.peer.expect("reply")["error"]
    with ends.greeting, ends.protocol:
        ends.greeting.settimeout(patience.seconds(5))
        assert ends.greeting.recv(1) == b"", "nobody is left who could greet"
    os.close(ends.stdout)
    os.close(ends.stderr)
    worker.run("os.fork = fork; end.set()")
    assert worker.run("1 + 1").text == "2"


def test_signal_handlers_of_the_session_are_the_branchs_too(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run("import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('handled'));")
    [branch] = branches.of(worker)
    assert branch.run("os.kill(os.getpid(), signal.SIGUSR1)").stdout == "handled\n"
    assert worker.run("os.kill(os.getpid(), signal.SIGUSR1)").stdout == "handled\n"


@pytest.mark.third_party
def test_figures_draw_in_a_branch(worker: WorkerProcess, branches: Branches) -> None:
    worker.run("import matplotlib.pyplot as plt\nplt.plot([1]);")
    [branch] = branches.of(worker)
    assert "image/png" in branch.run("plt.plot([2]);").of("display")[0]["data"]


def test_large_blocks_are_in_huge_pages_and_so_cheap_to_fork(
    worker: WorkerProcess, branches: Branches
) -> None:
    chosen = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    libc, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "another 0").partition(" ")
    if not chosen.exists() or "[never]" in chosen.read_text():
        pytest.skip("this kernel has no huge pages for us")
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("this C library does not ask for huge pages")
    worker.run(f"big = b'x' * {64 << 20}")
    [branch] = branches.of(worker)
    for process in (worker, branch):
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        assert int(rollup.split("AnonHugePages:")[1].split()[0]) >= 32 << 10


def test_programs_get_the_sessions_environment_and_not_the_zygotes(worker: WorkerProcess) -> None:
    cell = worker.run("import os\n!env\nos.environ.get('GLIBC_TUNABLES')")
    assert "GLIBC_TUNABLES" not in cell.stdout
    assert cell.text is None


def test_text_in_the_buffers_of_files_is_written_before_a_fork(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(
        f"import os\nos.chdir({str(tmp_path)!r})\n"
        "f, g = open('text', 'w'), open('bytes', 'r+b' if os.path.exists('bytes') else 'w+b')\n"
        "print('header', file=f)\ng.write(b'header');"
    )
    some = branches.of(worker, 2)
    [warning] = branches.warnings
    assert warning.startswith("2 open file(s) are shared with the original")
    assert str(tmp_path / "text") in warning
    for one in (*some, worker):
        one.run("f.close(); g.close()")
    assert (tmp_path / "text").read_text() == "header\n"
    assert (tmp_path / "bytes").read_bytes() == b"header"


def test_files_that_are_read_and_closed_files_are_no_loss(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    (tmp_path / "read").write_text("x")
    worker.run(
        f"f = open({str(tmp_path / 'read')!r})\nwith open({str(tmp_path / 'w')!r}, 'w'): pass"
    )
    branches.of(worker)
    assert branches.warnings == []


def test_objects_that_lie_about_their_class_do_not_disturb_a_fork(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(
        "class Liar:\n    @property\n    def __class__(self): raise SystemExit('caught')\n"
        f"liar, f = Liar(), open({str(tmp_path / 'w')!r}, 'w')"
    )
    [branch] = branches.of(worker)
    assert branch.run("type(liar).__name__").text == "'Liar'"


def test_transactions_folders_and_pipes_are_reported(
    worker: WorkerProcess, branches: Branches, tmp_path: Path
) -> None:
    worker.run(
        "import os, sqlite3, tempfile\n"
        f"base = sqlite3.connect({str(tmp_path / 'base')!r})\n"
        "base.execute('create table t (x)')\nbase.commit()\n"
        f"folder = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})"
    )
    branches.of(worker)
    files, folders = branches.warnings
    assert "1 open file" in files
    assert "temporary directories" in folders
    assert str(tmp_path) in folders
    worker.run("base.execute('insert into t values (1)')\npipe = os.pipe()")
    branches.of(worker)
    assert "2 open end(s) of pipes" in branches.warnings[0]
    assert any("1 open transaction(s) of sqlite3" in text for text in branches.warnings)


def test_threads_of_libraries_are_reported_by_name(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run(
        "import ctypes, time\n"
        "libc, thread = ctypes.CDLL(None), ctypes.c_ulong()\n"
        "def start(name):\n"
        "    libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)\n"
        "    libc.pthread_setname_np(thread, name)\n"
        "start(b'pool-0'); start(b'pool-1')"
    )
    branches.of(worker)
    [warning] = branches.warnings
    assert warning.startswith("2 native thread(s) run in the original only")
    assert warning.endswith("of pool")


def test_threads_that_have_ended_are_not_reported(
    worker: WorkerProcess, branches: Branches
) -> None:
    worker.run(
        "import threading\n"
        "for _ in range(20):\n"
        "    threads = [threading.Thread(target=int) for _ in range(8)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()"
    )
    branches.of(worker)
    assert branches.warnings == []


def test_a_branch_of_a_session_with_openmp_computes(
    worker: WorkerProcess, branches: Branches
) -> None:
    """Without the end of the team's threads before the fork, the branch waits for them for ever."""
    use = "gomp.GOMP_parallel(libc.free, None, 4, 0)"  # free(NULL) in each thread of a team
    worker.run(
        "import ctypes\nlibc, gomp = ctypes.CDLL(None), ctypes.CDLL('libgomp.so.1')\n"
        f"def use(): {use}\nuse()"
    )
    [branch] = branches.of(worker)
    assert branches.warnings == []
    assert branch.run("use(); 'used'").text == "'used'"
    assert worker.run("use(); 'used'").text == "'used'"
