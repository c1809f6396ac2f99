"""Interrupts, questions to the user, and questions about an idle session."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from execd.kernel import frames
from tests.proc.conftest import living, new_token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel import harness
    from tests.kernel.harness import WorkerProcess


def interrupted(worker: WorkerProcess, code: str, **options: bool) -> harness.Cell:
    """Run a cell, interrupt the cell after the first output, and wait for the end."""
    worker.start(code, **options)
    wait_until(worker.output_so_far)
    worker.interrupt()
    if not worker.answers_within(2.0):
        # CPython runs signal handlers between instructions: a signal just before a system call
        # waits for the end of the call.
        worker.interrupt()
    return worker.finish()


@pytest.mark.parametrize(
    "code",
    [
        "print('on')\nwhile True: pass",
        "import time\nprint('on')\ntime.sleep(1000)",
        "import asyncio\nprint('on')\nawait asyncio.sleep(1000)",
        "import asyncio\nawait asyncio.sleep(0)\nprint('on')\nwhile True: pass",
        "import asyncio\n"
        "async def spin():\n"
        "    print('on')\n"
        "    while True: pass\n"
        "await asyncio.gather(spin(), asyncio.sleep(1000))",
        "import asyncio\n"
        "async def f():\n"
        "    print('on')\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(f())",
        "!echo on; sleep 1000",
        "!echo on; sleep 1000; echo not reached",
        "%%bash\necho on\nsleep 1000; echo not reached",
        "import subprocess\nprint('on')\nsubprocess.run(['sleep', '1000'])",
        "import os\nos.system('echo on; sleep 1000')",
        "import threading\nprint('on')\nthreading.Event().wait()",
        "import queue\nprint('on')\nqueue.Queue().get()",
        "import re\n"
        "print('on')\n"
        "re.match(r'(a?){25}a{25}', 'a' * 25) and 0 or __import__('time').sleep(1000)",
    ],
)
def test_an_interrupt_ends_the_cell_as_ctrl_c_would(worker: WorkerProcess, code: str) -> None:
    worker.run("kept = 1")
    cell = interrupted(worker, code)
    assert cell.done["status"] == "error"
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"
    assert "execd/kernel" not in "\n".join(cell.error["traceback"])
    assert code[0] not in "!%" or "subprocess" not in "\n".join(cell.error["traceback"])
    assert cell.stdout == "on\n"
    assert worker.run("kept + 1").text == "2"
    assert worker.run("import asyncio\nawait asyncio.sleep(0.01)\n3").text == "3"


def test_an_interrupt_ends_the_programs_of_the_cell(worker: WorkerProcess) -> None:
    token = new_token()
    code = f"!(trap '' INT; echo on; sleep {token}) | (cat; sleep {token})"
    cell = interrupted(worker, code)
    assert cell.error is not None
    # Search by command line, anywhere: a program with an ended parent is not below the worker any
    # more.
    wait_until(lambda: not living(token), 20)


def test_an_interrupt_may_be_caught(worker: WorkerProcess) -> None:
    cell = interrupted(
        worker,
        "import time\n"
        "try:\n"
        "    print('on')\n"
        "    time.sleep(1000)\n"
        "except KeyboardInterrupt:\n"
        "    print('caught')\n"
        "'fine'",
    )
    assert cell.text == "'fine'"
    cell = interrupted(
        worker,
        "import asyncio\n"
        "try:\n"
        "    asyncio.get_running_loop().call_later(0.01, print, 'on')\n"
        "    await asyncio.sleep(1000)\n"
        "except asyncio.CancelledError:\n"
        "    print('caught')\n"
        "'fine'",
    )
    assert cell.text == "'fine'"


def test_a_task_that_swallows_its_cancellation_is_interrupted_the_second_time(
    worker: WorkerProcess,
) -> None:
    worker.start(
        "import asyncio\nsay = asyncio.get_running_loop().call_later\nsay(0.01, print, 'on')\n"
        "while True:\n"
        "    try:\n"
        "        await asyncio.sleep(1000)\n"
        "    except asyncio.CancelledError:\n"
        "        say(0.01, print, 'again')"
    )
    wait_until(lambda: worker.output_so_far() == "on\n")
    worker.interrupt()
    wait_until(lambda: worker.output_so_far() == "on\nagain\n")
    worker.interrupt()
    cell = worker.finish()
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"
    assert worker.run("1 + 1").text == "2"


def test_an_interrupt_between_cells_does_nothing(worker: WorkerProcess) -> None:
    worker.run("1")
    for _ in range(20):
        worker.interrupt()
    assert worker.run("1 + 1").text == "2"
    for n in range(50):
        worker.interrupt()
        assert worker.run("1 + 1").done["execution_count"] in (n + 3, n + 2)


def test_interrupts_at_any_moment_leave_a_worker_that_answers(worker: WorkerProcess) -> None:
    """Interrupts before the cell's code, in the code, in a display, after the code."""
    for step in range(60):
        worker.start("for _ in range(40): display(_)\nprint('x')")
        time.sleep(step * 0.0003)  # a different moment in each round
        worker.interrupt()
        cell = worker.finish()
        if cell.done["status"] == "error":
            assert cell.error is not None
            assert cell.error["name"] == "KeyboardInterrupt"
    assert worker.run("1 + 1").text == "2"


def test_a_cells_own_interrupt_handler_is_its_own_affair_until_the_next(
    worker: WorkerProcess,
) -> None:
    worker.run(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT});"
    )
    cell = interrupted(worker, "import time\nprint('on')\ntime.sleep(1000)")
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"


def test_an_interrupt_that_a_cell_has_blocked_does_not_hit_the_next(worker: WorkerProcess) -> None:
    worker.run(
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    assert worker.run("1 + 1").text == "2"


def test_an_alarm_left_over_raises_nothing_between_cells(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    fifo = tmp_path / "arrived"
    os.mkfifo(fifo)
    with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as arrived:
        worker.run(
            "import os, signal\n"
            "def late(*_): raise TimeoutError\n"
            "signal.signal(signal.SIGALRM, late)\n"
            f"signal.set_wakeup_fd(os.open({str(fifo)!r}, os.O_WRONLY | os.O_NONBLOCK))\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.01);"
        )
        # Each signal writes its number when it arrives: none is left for the next cell.
        assert arrived.read(1) == bytes([signal.SIGALRM])
        os.kill(worker.pid, signal.SIGALRM)
        assert arrived.read(1) == bytes([signal.SIGALRM])
        assert worker.run("signal.set_wakeup_fd(-1); 2").text == "2"
    cell = worker.run("signal.setitimer(signal.ITIMER_REAL, 0.01)\nimport time; time.sleep(10)")
    assert cell.error is not None
    assert cell.error["name"] == "TimeoutError", "while a cell runs its handlers do"


@pytest.mark.parametrize(
    "handler",
    ["raise_late", "Handler()", "Handler().__call__", "functools.partial(raise_late)", "once"],
)
@pytest.mark.parametrize("base", ["Exception", "BaseException"])
def test_alarms_at_any_moment_leave_a_worker_that_answers(
    worker: WorkerProcess, base: str, handler: str
) -> None:
    """Alarms in the code, after the code, between the cells, before the next cell's code."""
    worker.run(
        "import functools, signal\n"
        f"class Late({base}): pass\n"
        "def raise_late(*_): raise Late\n"
        "def once(number, frame):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "    raise Late\n"
        "class Handler:\n"
        "    def __call__(self, *_): raise Late\n"
        "    def __repr__(self): return ''"
    )
    moments = [0.00001 * step for step in range(1, 120)]
    count, names = worker.run("0").done["execution_count"], []
    for n, seconds in enumerate(moments):
        arm = f"signal.signal(signal.SIGALRM, {handler}); signal.setitimer(0, {seconds})"
        for cell in (worker.run(arm), worker.run(f"{n}")):
            if cell.done["status"] == "error":
                assert cell.error is not None
                names.append(cell.error["name"])
            assert cell.done["execution_count"] in (count, count + 1), "no number is left out"
            count = cell.done["execution_count"]
    worker.run("signal.setitimer(0, 0);")  # the last alarm may end this cell
    # An alarm in the middle of IPython's own lines can become an error of IPython's.
    assert names.count("Late") > len(names) / 2 > 0
    assert worker.run("1 + 1").text == "2"


def test_input_raises_at_once_without_somebody_to_ask(worker: WorkerProcess) -> None:
    for code in ("input('name? ')", "import getpass\ngetpass.getpass()", "breakpoint()"):
        error = worker.run(code).error
        assert error is not None
        assert error["name"] in ("StdinNotImplementedError", "BdbQuit")
    assert worker.run("import sys\nsys.stdin.read()").text == "''"
    assert worker.run("1 + 1").text == "2"


def test_input_is_asked_of_the_user(worker: WorkerProcess) -> None:
    number = worker.start("name = input('name? ')\nprint('hello', name)", allow_input=True)
    request = worker.peer.expect("input_request")
    assert request == {"type": "input_request", "id": number, "prompt": "name? ", "password": False}
    worker.peer.send("input", id=number, text="Ada")
    assert worker.finish().stdout == "hello Ada\n"
    number = worker.start("import getpass\ngetpass.getpass('secret: ')", allow_input=True)
    assert worker.peer.expect("input_request")["password"] is True
    worker.peer.send("input", id=number, text="s")
    assert worker.finish().text == "'s'"


def test_a_thread_of_a_cell_cannot_ask_and_is_told_why(worker: WorkerProcess) -> None:
    code = (
        "import threading\nthread = threading.Thread(target=input)\nthread.start()\nthread.join()"
    )
    cell = worker.run(code, allow_input=True)
    assert "only a cell itself can ask" in cell.stderr
    assert not cell.of("input_request")


def test_a_debugger_asks_like_input(worker: WorkerProcess) -> None:
    number = worker.start("x = 42\nbreakpoint()\n'after'", allow_input=True)
    for command in ("p x", "c"):
        worker.peer.expect("input_request")
        worker.peer.send("input", id=number, text=command)
    cell = worker.finish()
    assert "42" in cell.stdout
    assert cell.text == "'after'"


def test_what_was_printed_is_out_before_a_question(worker: WorkerProcess) -> None:
    number = worker.start("print('pick one: ', end='')\ninput()", allow_input=True)
    worker.peer.expect("input_request")
    wait_until(lambda: worker.output_so_far() == "pick one: ")
    worker.peer.send("input", id=number, text="1")
    worker.finish()


def test_a_question_can_be_interrupted_and_a_late_answer_is_ignored(worker: WorkerProcess) -> None:
    number = worker.start("input()", allow_input=True)
    worker.peer.expect("input_request")
    worker.interrupt()
    cell = worker.finish()
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"
    worker.peer.send("input", id=number, text="late")
    number = worker.start("input()", allow_input=True)
    worker.peer.expect("input_request")
    worker.peer.send("input", id=number - 1, text="wrong cell")
    worker.peer.send("input", id=number, text="right")
    assert worker.finish().text == "'right'"


def test_completion_looks_at_what_is_there(worker: WorkerProcess) -> None:
    worker.run("import os\nlonely_name = 1\nclass Thing:\n    some_attribute = 1\nthing = Thing()")
    answer = worker.request("complete", code="x = 1\nlonely_na", cursor=15)
    assert answer["matches"] == ["lonely_name"]
    assert (answer["cursor_start"], answer["cursor_end"]) == (6, 15)
    assert any(
        match.endswith("some_attribute")
        for match in worker.request("complete", code="thing.som", cursor=9)["matches"]
    )
    assert worker.request("complete", code="", cursor=100)["cursor_end"] == 0
    assert worker.request("complete", code="%timei", cursor=6)["matches"][0] == "%timeit"


@pytest.mark.third_party
def test_variables_are_listed_without_the_shells_own(worker: WorkerProcess) -> None:
    worker.run(
        "import numpy as np\n"
        "n = 5\n"
        "text = 'x' * 10_000\n"
        "array = np.zeros((3, 4))\n"
        "big = list(range(1_000_000))\n"
        "_hidden = 1"
    )
    worker.run("class Bad:\n    def __repr__(self): raise ValueError\nbad = Bad()")
    answer = worker.request("variables", limit=100)
    found = {variable["name"]: variable for variable in answer["variables"]}
    assert list(found) == ["np", "n", "text", "array", "big", "Bad", "bad"]
    assert answer["total"] == 7
    assert found["n"] == {"name": "n", "type": "int", "repr": "5"}
    assert found["array"]["shape"] == [3, 4]
    assert found["big"]["length"] == 1_000_000
    assert len(found["text"]["repr"]) < 1000
    assert "Bad" in found["bad"]["repr"]
    assert len(worker.request("variables", limit=2)["variables"]) == 2


@pytest.mark.parametrize(
    "definition",
    [
        "class Odd:\n    def __repr__(self): raise SystemExit(3)",
        "class Odd:\n    def __repr__(self): return 5",
        "class Odd:\n    @property\n    def __class__(self): raise ValueError",
        "class Odd(list):\n    def __len__(self): raise ValueError",
        "class Odd:\n    def __getattr__(self, name): raise SystemExit",
        "class Bad:\n"
        "    def __format__(self, how): raise ValueError\n"
        "class Odd: pass\n"
        "Odd.__module__ = Bad()",
        pytest.param(
            "import numpy\n"
            "class Odd(numpy.ndarray):\n"
            "    @property\n"
            "    def shape(self): raise ValueError\n"
            "    def __new__(cls): return numpy.zeros(3).view(cls)",
            marks=pytest.mark.third_party,
        ),
    ],
)
def test_a_variable_that_cannot_be_looked_at_hides_no_other(
    worker: WorkerProcess, definition: str
) -> None:
    worker.run(f"before = 1\n{definition}\nodd = Odd()\nafter = [2]")
    found = {
        variable["name"]: variable
        for variable in worker.request("variables", limit=100)["variables"]
    }
    assert found["before"]["repr"] == "1"
    assert found["after"] == {"name": "after", "type": "list", "repr": "[2]", "length": 1}
    assert found["odd"]["repr"]


def test_a_repr_that_does_not_end_can_be_interrupted(worker: WorkerProcess) -> None:
    worker.run(
        "x = 1\n"
        "class Slow:\n"
        "    def __repr__(self):\n"
        "        print('on')\n"
        "        while True: pass\n"
        "slow = Slow()\n"
        "y = [2]"
    )
    worker.peer.send("variables", id=9, limit=10)
    wait_until(worker.output_so_far)
    worker.interrupt()
    found = {variable["name"]: variable for variable in worker.peer.expect("reply")["variables"]}
    assert found["x"]["repr"] == "1"
    assert (found["slow"]["type"], found["y"]["type"]) == ("__main__.Slow", "list")
    assert "took too long" in found["slow"]["repr"]
    assert "took too long" in found["y"]["repr"]
    assert worker.run("1 + 1").text == "2"


def test_handlers_that_a_repr_sets_are_parked_like_those_of_a_cell(worker: WorkerProcess) -> None:
    worker.run(
        "import signal\n"
        "def late(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "class Odd:\n"
        "    def __repr__(self):\n"
        "        for number in (signal.SIGINT, signal.SIGUSR1): signal.signal(number, late)\n"
        "        return 'odd'\n"
        "odd = Odd()"
    )
    assert worker.request("variables", limit=100)["variables"][-1]["repr"] == "odd"
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGALRM):
        os.kill(worker.pid, number)
    assert worker.run("2").text == "2"
    cell = interrupted(worker, "import time\nprint('on')\ntime.sleep(1000)")
    assert cell.error is not None
    assert cell.error["name"] == "KeyboardInterrupt"
    handlers = "signal.getsignal(signal.SIGALRM) is signal.getsignal(signal.SIGUSR1) is late"
    assert worker.run(handlers).text == "True"


def test_an_interrupt_that_came_between_cells_ends_no_question(worker: WorkerProcess) -> None:
    worker.run("x = 1")
    worker.interrupt()
    assert worker.request("variables", limit=10)["total"] == 1


def test_garbage_from_the_daemon_ends_the_worker(worker: WorkerProcess) -> None:
    worker.peer.socket.sendall(b"\xff" * 8)
    assert "FrameError" in worker.peer.expect("failed")["message"]
    assert worker.wait() == 70


def test_a_cell_of_many_megabytes_arrives(worker: WorkerProcess) -> None:
    assert worker.run(f"len({'x' * 8_000_000!r})").text == "8000000"
    assert frames.FRAME_BYTES > 8_000_000


def test_directory_and_environment_stay_between_cells(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.run(f"import os; os.chdir({str(tmp_path)!r}); os.environ['OWN'] = '1'")
    assert worker.run("!pwd; echo $OWN").stdout == f"{tmp_path}\n1\n"
