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

HONEST_OR_DEAD = {
    "closes all descriptors": "import os; os.closerange(0, 100_000)",
    "closes 0 to 2": "import os; os.closerange(0, 3)",
    "closes sys.stdout": "import sys; sys.stdout.close(); sys.stderr.close()",
    "closes all but the standard ones": "import os; os.closerange(3, 100_000)",
    "closes the low ones": "import os; os.closerange(0, 256)",
    "puts a file on every number": (
        "import os\n"
        "fd = os.open('/dev/null', os.O_RDWR)\n"
        "for n in range(0, 5000):\n"
        "    try: os.dup2(fd, n)\n"
        "    except OSError: pass"
    ),
    "puts a socket on every number": (
        "import os, socket\n"
        "a, b = socket.socketpair()\n"
        "for n in range(3, 5000):\n"
        "    try: os.dup2(a.fileno(), n)\n"
        "    except OSError: pass"
    ),
    "dups stdout to a file": "import os, tempfile; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
    "dups stdout onto stderr": "import os; os.dup2(1, 2)",
    "swaps stdout and stderr": "import os; k = os.dup(1); os.dup2(2, 1); os.dup2(k, 2)",
    "replaces sys.stdout": "import sys, io; sys.stdout = io.StringIO(); sys.stderr = None",
    "deletes sys.stdout": "import sys; del sys.stdout, sys.stderr, sys.__stdout__",
    "stdout that raises": (
        "import sys\n"
        "class Bad:\n"
        "    def write(self, *_): raise ValueError\n"
        "    def flush(self): raise SystemExit\n"
        "sys.stdout = sys.stderr = Bad()"
    ),
    "stdout that is detached": "import sys; sys.stdout.detach()",
    "makes stdout non-blocking": (
        "import os, fcntl; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK); print('x' * 1_000_000)"
    ),
    "replaces the display hook": "import sys; sys.displayhook = lambda *_: None",
    "replaces excepthook": "import sys; sys.excepthook = None; 1 / 0",
    "replaces run_cell": "get_ipython().run_cell = lambda *a, **k: None",
    "replaces run_cell of the class": "type(get_ipython()).run_cell = lambda *a, **k: 'mine'",
    "replaces the display publisher": "get_ipython().display_pub.publish = None",
    "replaces showtraceback": "type(get_ipython()).showtraceback = lambda *a, **k: 1 / 0\n1 / 0",
    "a traceback handler that raises": (
        "get_ipython().set_custom_exc((Exception,), lambda *a: 1 / 0)\n1 / 0"
    ),
    "an event that raises": "get_ipython().events.register('post_run_cell', lambda *a: 1 / 0)",
    "hooks that exit": (
        "import sys\n"
        "for name in ('pre_execute', 'pre_run_cell', 'post_execute', 'post_run_cell'):\n"
        "    get_ipython().events.register(name, lambda *a: sys.exit(3))"
    ),
    "an input transformer that raises": (
        "get_ipython().input_transformers_cleanup.append(lambda lines: 1 / 0)"
    ),
    "an ast transformer that raises": (
        "class T:\n"
        "    def visit(self, node): raise ValueError\n"
        "get_ipython().ast_transformers.append(T())"
    ),
    "clears the namespace": "get_ipython().user_ns.clear()",
    "resets": "%reset -f",
    "deletes builtins": "import builtins; del builtins.print, builtins.len, builtins.isinstance",
    "deletes modules": "import sys; sys.modules.clear()",
    "deletes os": "import os, sys; del os.getpid, sys.modules['os']",
    "replaces getpid": "import os; os.getpid = lambda: 1",
    "replaces json": "import json; json.dumps = json.JSONEncoder.encode = None",
    "replaces the socket module": (
        "import socket; socket.socket.send = socket.socket.recvmsg = None"
    ),
    "takes the frame apart": (
        "import sys\nf = sys._getframe()\nwhile f: f.f_locals.clear() if 0 else None; f = f.f_back"
    ),
    "finds the worker and breaks it": (
        "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Worker': o._pid = -1"
    ),
    "finds the channel and closes it": (
        "import gc, socket\nfor o in gc.get_objects():\n    if type(o) is socket.socket: o.close()"
    ),
    "endless recursion": "def f(): f()\nf()",
    "recursion in repr": "class R:\n    def __repr__(self): return repr(self)\nR()",
    "recursion in C": "import sys; sys.setrecursionlimit(50_000)\ndef f(n): return f(n + 1)\nf(0)",
    "a deeply nested list": "x = []\nfor _ in range(100_000): x = [x]\nx",
    "a base exception": "class Own(BaseException): pass\nraise Own",
    "generator exit": "raise GeneratorExit",
    "a keyboard interrupt of its own": "raise KeyboardInterrupt",
    "stop iteration": "raise StopIteration",
    "an exception without a class name": "raise type('', (Exception,), {})()",
    "an exception whose class lies": (
        "class M(type):\n"
        "    @property\n"
        "    def __name__(cls): raise ValueError\n"
        "class E(Exception, metaclass=M): pass\n"
        "raise E"
    ),
    "a traceback loop": (
        "a, b = ValueError(1), ValueError(2)\n"
        "a.__context__, b.__context__ = b, a\n"
        "a.__cause__ = b\n"
        "raise a"
    ),
    "a mime type that is no text": "display({1: object(), 'text/plain': 5, None: b'x'}, raw=True)",
    "a bundle that raises": (
        "class D(dict):\n    def items(self): raise ValueError\ndisplay(D(a=1), raw=True)"
    ),
    "a name that lies": (
        "class S(str):\n"
        "    def __str__(self): raise ValueError\n"
        "display({S('text/plain'): S('x')}, raw=True)"
    ),
    "signals ignored": (
        "import signal\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass"
    ),
    "signal handlers that raise": (
        "import signal, os\n"
        "def h(*_): raise RuntimeError\n"
        "for n in (10, 12, 14, 15): signal.signal(n, h)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "for _ in range(10**6): pass"
    ),
    "all signals blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "terminates itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "kills its group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "kills all of its session but itself": (
        "import os, signal; signal.signal(15, signal.SIG_IGN); os.killpg(0, 15)"
    ),
    "aborts": "import os; os.abort()",
    "exits": "import os; os._exit(0)",
    "execs": "import os; os.execv('/bin/true', ['true'])",
    "closes its stdin": "import os; os.close(0)",
    "a thread that spins": (
        "import threading\n"
        "def spin():\n"
        "    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()"
    ),
    "a thread that prints for ever": (
        "import threading, time\n"
        "def go():\n"
        "    while True: print(end=''); time.sleep(0.001)\n"
        "threading.Thread(target=go, daemon=True).start()"
    ),
    "a thread that raises into the main one": (
        "import threading, ctypes\n"
        "main = threading.main_thread().ident\n"
        "ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), "
        "ctypes.py_object(SystemError))"
    ),
    "a thread that displays between cells": (
        "import threading, time\n"
        "from IPython.display import display as d\n"
        "def go():\n"
        "    while True: d(1); time.sleep(0.001)\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "time.sleep(0.05)"
    ),
    "atexit": "import atexit; atexit.register(lambda: print('late'))",
    "a tracer": "import sys\ndef t(*a): return t\nsys.settrace(t); sys.setprofile(lambda *a: None)",
    "a tracer that raises": "import sys\ndef t(*a): raise ValueError\nsys.settrace(t)",
    "no garbage collection": "import gc; gc.disable(); gc.unfreeze(); gc.collect()",
    "a closed event loop": (
        "import asyncio\n"
        "await asyncio.sleep(0)\n"
        "asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)"
    ),
    "stops the loop it runs in": (
        "import asyncio\nasyncio.get_running_loop().stop()\nawait asyncio.sleep(0)"
    ),
    "warnings are errors": "import warnings; warnings.simplefilter('error')",
    "a low descriptor limit": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "no processes": "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    "a working directory that is gone": (
        "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)"
    ),
    "an environment that is gone": "import os; os.environ.clear(); os.environ = None",
    "a huge allocation": "x = bytearray(1 << 50)",
    "locale and encoding": "import locale, sys; sys.stdout.reconfigure(encoding='utf-16')",
    "a path hook that raises": (
        "import sys\n"
        "class F:\n"
        "    def find_spec(self, *a): raise RuntimeError\n"
        "sys.meta_path.insert(0, F())"
    ),
    "an import hook that is not there": "import sys; sys.meta_path.clear(); sys.path = None",
}


@pytest.mark.parametrize("name", HONEST_OR_DEAD)
def test_a_hostile_cell_leaves_an_honest_next_one_or_a_dead_worker(
    worker: WorkerProcess, name: str
) -> None:
    worker.start(HONEST_OR_DEAD[name])
    try:
        worker.finish()
        cell = worker.run("import os\nos.write(1, b'honest\\n')\n6 * 7")
        worker.run("1")
        again = worker.run("6 * 7")
    except Gone:
        worker.wait()
        return
    if cell.done["status"] == "error":
        return  # the state is broken, and the worker says so
    assert "honest" in cell.stdout
    assert cell.text in ("42", None)
    assert again.text in ("42", None)


STILL_ALIVE = {
    name: HONEST_OR_DEAD[name]
    for name in (
        "closes 0 to 2",
        "closes sys.stdout",
        "closes the low ones",
        "dups stdout to a file",
        "dups stdout onto stderr",
        "swaps stdout and stderr",
        "replaces sys.stdout",
        "deletes sys.stdout",
        "stdout that raises",
        "stdout that is detached",
        "replaces excepthook",
        "a traceback handler that raises",
        "resets",
        "endless recursion",
        "recursion in repr",
        "a deeply nested list",
        "a base exception",
        "generator exit",
        "a keyboard interrupt of its own",
        "stop iteration",
        "an exception without a class name",
        "a traceback loop",
        "a mime type that is no text",
        "signals ignored",
        "all signals blocked",
        "closes its stdin",
        "a thread that spins",
        "atexit",
        "no garbage collection",
        "warnings are errors",
        "stops the loop it runs in",
        "a low descriptor limit",
        "a working directory that is gone",
        "a huge allocation",
        "a thread that displays between cells",
        "replaces the display hook",
    )
}


@pytest.mark.parametrize("name", STILL_ALIVE)
def test_what_a_cell_may_do_to_itself_does_not_reach_the_next(
    worker: WorkerProcess, name: str
) -> None:
    worker.run(STILL_ALIVE[name])
    cell = worker.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert cell.done["status"] == "success", cell
    assert (cell.stdout.replace("1\n", ""), cell.text) == ("out\n", "42")
    assert cell.stderr.endswith("err\n")


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
