"""Harmful cells: the next cell is correct, or the worker is dead."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.engine.sessions.cell_run import MAX_RICH_EVENTS
from execd.kernel import frames, mime_bundles
from tests.kernel.harness import Gone, WorkerProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    NewWorker = Callable[..., WorkerProcess]


def test_a_fork_that_both_go_on_from_speaks_once(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0: print('child')\n"
        "else: os.waitpid(pid, 0); print('parent')\n"
        "'both'"
    )
    assert [frame["type"] for frame in cell.frames] == ["result", "done"]
    assert cell.stdout == "'both'\nchild\nparent\n" or cell.stdout == "child\n'both'\nparent\n"
    assert worker.run("6 * 7").text == "42"


def test_a_fork_through_c_speaks_once_too(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import ctypes, os\n"
        "pid = ctypes.CDLL(None).fork()\n"
        "if pid: os.waitpid(pid, 0)\n"
        "display('shown')\n"
        "'both'"
    )
    assert [frame["type"] for frame in cell.frames] == ["display", "result", "done"]
    assert worker.run("6 * 7").text == "42"


def test_forks_that_stay_cannot_speak_for_the_worker(worker: WorkerProcess, tmp_path: Path) -> None:
    """Forks close the protocol's descriptor, so the daemon sees the end of the worker even while
    forks live on."""
    worker.run("import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(1000)")
    worker.start("os._exit(0)")
    with pytest.raises(Gone):
        worker.finish()


def test_an_error_in_a_forked_child_goes_to_stderr(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0: 1 / 0\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert cell.text == "1"
    assert "ZeroDivisionError" in cell.stderr
    assert len(cell.frames) == 2


def test_multiprocessing_works_and_its_processes_do_not_have_our_descriptors(
    worker: WorkerProcess,
) -> None:
    code = (
        "import multiprocessing, os\n"
        "def f(n): return n * n, [os.readlink(f'/proc/self/fd/{fd}') for fd in "
        "os.listdir('/proc/self/fd') if int(fd) > 200]\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: "
        "results = pool.map(f, range(3))\n"
        "results"
    )
    assert worker.run(code).text == "[(0, []), (1, []), (4, [])]"
    spawned = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', "
        "'import os; print([fd for fd in os.listdir(\"/proc/self/fd\") if int(fd) > 3])'], "
        "close_fds=False, capture_output=True, text=True).stdout"
    )
    assert worker.run(spawned).text == repr("[]\n")


def test_an_interrupt_in_a_fork_of_the_cell_is_the_usual_one(worker: WorkerProcess) -> None:
    code = (
        "import os, signal, time\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        print('on')\n"
        "        while True: time.sleep(0.01)\n"
        "    except KeyboardInterrupt: os._exit(9)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    worker.start(code)
    wait_until(worker.output_so_far)
    [child] = psutil.Process(worker.pid).children()
    os.kill(child.pid, signal.SIGINT)
    assert worker.finish().stdout == "on\n9\n"


def test_stray_bytes_on_the_protocol_end_in_a_frame_or_a_refusal(worker: WorkerProcess) -> None:
    worker.start(
        "import os\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    if int(fd) > 2:\n"
        "        try: os.write(int(fd), b'\\xff' * 64)\n"
        "        except OSError: pass"
    )
    with pytest.raises((frames.FrameError, Gone)):
        worker.finish()


def test_frames_of_the_cells_own_making_are_only_its_own(worker: WorkerProcess) -> None:
    """User code may forge the result of the running cell. The decoder accepts only frames."""
    forged = frames.encode(
        {"type": "done", "id": 1, "status": "success", "execution_count": 9, "exit": None}
    )
    worker.start(
        "import os, socket\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    fd = int(fd)\n"
        f"    if fd > 2 and os.path.realpath(f'/proc/self/fd/{{fd}}').find('socket') > 0:\n"
        f"        os.write(fd, {forged!r})"
    )
    assert worker.peer.receive()["execution_count"] == 9
    assert worker.peer.receive()["execution_count"] == 1


def test_a_cell_that_makes_its_descriptors_non_blocking_does_not_cut_the_next_ones_output(
    worker: WorkerProcess,
) -> None:
    """Some programs make their output non-blocking and leave the flag set."""
    worker.run(
        "import os\n"
        "for fd in map(int, os.listdir('/proc/self/fd')):\n"
        "    try: os.set_blocking(fd, False)\n"
        "    except OSError: pass"
    )
    cell = worker.run("display('y' * 1_000_000)\nprint('x' * 10_000_000)")
    assert cell.error is None
    assert len(cell.stdout) == 10_000_001
    assert len(cell.of("display")) == 1


@pytest.mark.parametrize("fault", ["def __str__(self): 1 / 0", "def __str__(self): return 5"])
def test_an_error_that_cannot_say_what_it_is_keeps_its_name(
    worker: WorkerProcess, fault: str
) -> None:
    cell = worker.run(f"class Own(Exception):\n    {fault}\nraise Own")
    assert cell.error is not None
    assert cell.error["name"] == "Own"
    assert "raise Own" in "\n".join(cell.error["traceback"])
    assert cell.done["execution_count"] == 1


def test_errors_that_are_each_others_cause_are_shown_once(worker: WorkerProcess) -> None:
    cell = worker.run(
        "a, b = ValueError('a'), KeyError('b')\n"
        "a.__context__, b.__context__ = b, a\n"
        "a.__cause__ = b\n"
        "raise a"
    )
    assert cell.error is not None
    assert (cell.error["name"], cell.error["value"]) == ("ValueError", "a")
    assert "KeyError" in "\n".join(cell.error["traceback"])


def test_a_cell_that_deletes_every_name_it_sees_leaves_results_to_the_next(
    worker: WorkerProcess,
) -> None:
    worker.run("for name in list(globals()):\n    if name != 'name': del globals()[name]")
    assert worker.run("6 * 7").text == "42"
    assert worker.run("_ + 1").text == "43"


def test_an_exit_code_of_any_kind_is_one(worker: WorkerProcess) -> None:
    done = worker.run(
        "class Lies(int):\n"
        "    def __and__(self, other): return 10 ** 100\n"
        "raise SystemExit(Lies(259))"
    ).done
    assert done["exit"] == {"code": 3}
    assert worker.run("raise SystemExit(-1)").done["exit"] == {"code": 255}
    assert worker.run("raise SystemExit(1 << 400)").done["exit"] == {"code": 255}


def test_more_displays_and_clearings_than_a_cell_may_send_are_left_out(
    worker: WorkerProcess,
) -> None:
    """The daemon ends a worker for a flood of frames; a loop with a display in each step is no
    flood."""
    code = (
        "from IPython.display import clear_output\n"
        f"for n in range({mime_bundles.CELL_EVENTS}):\n"
        "    clear_output(wait=True); display(n)\n"
        "'end'"
    )
    cell = worker.run(code)
    assert len(cell.frames) < MAX_RICH_EVENTS
    assert (
        cell.of("display")[-1]["data"]["text/plain"]
        == f"[{mime_bundles.CELL_EVENTS // 2} more displays omitted]"
    )
    assert cell.text == "'end'"


def test_endless_output_ends_with_the_interrupt(worker: WorkerProcess) -> None:
    worker.start("while True: print('x' * 1000)")
    wait_until(lambda: len(worker.output_so_far()) > 100_000)
    worker.interrupt()
    cell = worker.finish()
    assert cell.error is not None
    assert worker.run("6 * 7").text == "42"


def test_a_worker_that_kills_all_it_sees_dies_alone(
    worker: WorkerProcess, new_worker: NewWorker
) -> None:
    """Signal only the cell's own group: a test runs without namespaces."""
    other = new_worker()
    worker.start("import os, signal; os.killpg(os.getpgid(0), signal.SIGKILL)")
    with pytest.raises(Gone):
        worker.finish()
    assert worker.wait() == -signal.SIGKILL
    assert other.run("6 * 7").text == "42"


def test_a_fault_of_ours_ends_the_worker_with_its_own_code(worker: WorkerProcess) -> None:
    worker.run("type(get_ipython()).run = None")
    worker.start("1")
    assert "TypeError" in worker.peer.expect("failed")["message"]
    assert worker.wait() == 70
