"""Semantics of cells: IPython's, seen from outside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kernel import harness
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kernel.harness import WorkerProcess, Zygote

    NewWorker = Callable[..., WorkerProcess]


def test_last_expression_is_the_result(worker: WorkerProcess) -> None:
    cell = worker.run("x = 20\nx + 1")
    assert [frame["type"] for frame in cell.frames] == ["result", "done"]
    assert cell.frames[0]["data"] == {"text/plain": "21"}
    assert cell.done == {
        "type": "done",
        "id": 1,
        "status": "success",
        "execution_count": 1,
        "exit": None,
    }


def test_a_semicolon_or_none_gives_no_result(worker: WorkerProcess) -> None:
    assert worker.run("1;").text is None
    assert worker.run("1; # ;").text is None
    assert worker.run("1 # ;").text == "1"
    assert worker.run("'a;b'").text == "'a;b'"
    assert worker.run("None").text is None
    assert worker.run("").done["status"] == "success"


def test_variables_results_and_inputs_stay(worker: WorkerProcess) -> None:
    worker.run("x = 41")
    assert worker.run("x + 1").text == "42"
    assert worker.run("_, _2, Out[2], In[1]").text == "(42, 42, 42, 'x = 41')"


def test_execution_count_goes_up_with_each_cell_that_is_remembered(worker: WorkerProcess) -> None:
    assert [worker.run("1").done["execution_count"] for _ in range(3)] == [1, 2, 3]
    assert worker.run("1", store_history=False).done["execution_count"] == 4
    assert worker.run("1").done["execution_count"] == 4


def test_print_c_code_and_programs_are_captured_in_order(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import os, ctypes\n"
        "print('python')\n"
        "ctypes.CDLL(None).puts(b'c')\n"
        "ctypes.CDLL(None).fflush(None)\n"
        "os.system('echo program')\n"
        "os.write(1, b'raw\\n')\n"
        "print('error', file=__import__('sys').stderr);"
    )
    assert cell.stdout == "python\nc\nprogram\nraw\n"
    assert cell.stderr == "error\n"


def test_lines_of_c_code_come_while_the_cell_runs_and_in_their_place(worker: WorkerProcess) -> None:
    worker.start(
        "import ctypes, time\n"
        "print('python')\n"
        "ctypes.CDLL(None).puts(b'c')\n"
        "print('python again')\n"
        "time.sleep(60)"
    )
    wait_until(lambda: "again" in worker.output_so_far())
    assert worker.output_so_far() == "python\nc\npython again\n"
    worker.interrupt()
    worker.finish()


def test_what_c_and_python_have_buffered_is_out_when_the_cell_is_done(
    worker: WorkerProcess,
) -> None:
    cell = worker.run(
        "import ctypes\n"
        "ctypes.CDLL(None).printf(b'c without a newline')\n"
        "print('python too', end='')"
    )
    assert "c without a newline" in cell.stdout
    assert "python too" in cell.stdout


def test_strings_that_are_no_unicode_are_printed(worker: WorkerProcess) -> None:
    cell = worker.run("print('\\udcff'); '\\ud800'")
    assert cell.stdout == "\\udcff\n"
    assert cell.text == "'\\ud800'"


def test_an_error_has_a_name_a_value_and_a_traceback_with_the_users_lines(
    worker: WorkerProcess,
) -> None:
    cell = worker.run("def f():\n    return 1 / 0\n\nf()")
    assert cell.done["status"] == "error"
    error = cell.error
    assert error is not None
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(error["traceback"])
    assert "Cell In[1], line 4" in text
    assert "----> 2     return 1 / 0" in text
    assert "\x1b" not in text
    assert "execd" not in text
    assert "IPython" not in text


def test_lines_of_earlier_cells_are_shown_in_a_traceback(worker: WorkerProcess) -> None:
    worker.run("def f():\n    raise ValueError('deep')")
    error = worker.run("f()").error
    assert error is not None
    text = "\n".join(error["traceback"])
    assert "Cell In[1], line 2" in text
    assert "raise ValueError('deep')" in text


@pytest.mark.parametrize("code", ["x ==", "  x = 1\n y", "print 'x'", "def f(:\n", "'"])
def test_a_syntax_error_is_an_error_with_the_line(worker: WorkerProcess, code: str) -> None:
    error = worker.run(code).error
    assert error is not None
    assert error["name"] in ("SyntaxError", "IndentationError")
    assert "Cell In[1], line" in "\n".join(error["traceback"])


def test_causes_and_groups_are_shown(zygote: Zygote, worker: WorkerProcess) -> None:
    error = worker.run(
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('later') from e"
    ).error
    assert error is not None
    assert "ZeroDivisionError" in "\n".join(error["traceback"])
    if tuple(map(int, zygote.ready["python"].split("."))) < (3, 11):
        return
    error = worker.run(
        "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])"
    ).error
    assert error is not None
    assert error["name"] == "ExceptionGroup"
    text = "\n".join(error["traceback"])
    assert "ValueError: one" in text
    assert "IPython/" not in text


def test_a_deep_recursion_is_shown_by_its_ends(worker: WorkerProcess) -> None:
    error = worker.run(
        "import sys\nsys.setrecursionlimit(20_000)\ndef f(n): return f(n + 1)\nf(0)"
    ).error
    assert error is not None
    text = "\n".join(error["traceback"])
    assert error["name"] == "RecursionError"
    assert "Cell In[1], line 4" in text
    assert "frames in the middle of a traceback are left out" in text


def test_an_exception_that_cannot_be_printed_is_reported(worker: WorkerProcess) -> None:
    cell = worker.run(
        "class Mean(Exception):\n    def __str__(self): raise RuntimeError\nraise Mean"
    )
    # IPython 9 shows the error and then fails itself.
    assert cell.error is not None
    assert cell.error["name"] in ("Mean", "RuntimeError")
    assert "raise Mean" in cell.stderr + "\n".join(cell.error["traceback"])
    assert worker.run("1 + 1").text == "2"


def test_a_traceback_without_an_error_goes_to_stderr(worker: WorkerProcess) -> None:
    cell = worker.run("try:\n    1 / 0\nexcept Exception:\n    get_ipython().showtraceback()\n'on'")
    assert cell.done["status"] == "success"
    assert cell.text == "'on'"
    assert "ZeroDivisionError" in cell.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit(-1)", 255),
        ("import sys; sys.exit(True)", 1),
        ("import sys; sys.exit('failed')", 1),
        ("raise SystemExit([1])", 1),
        ("exit", 0),
        ("exit()", 0),
        ("quit(4)", 4),
        ("import asyncio, sys\nawait asyncio.sleep(0)\nsys.exit(5)", 5),
    ],
)
def test_system_exit_is_told_apart_and_the_session_lives_on(
    worker: WorkerProcess, code: str, expected: int
) -> None:
    worker.run("kept = 1")
    cell = worker.run(code)
    assert cell.done["exit"] == {"code": expected}
    assert cell.done["status"] == ("error" if expected else "success")
    assert (cell.error is None) == (expected == 0)
    assert "To exit" not in cell.stderr
    assert worker.run("kept").text == "1"


def test_the_reason_of_an_exit_is_printed(worker: WorkerProcess) -> None:
    cell = worker.run("raise SystemExit('disk is full')")
    assert cell.stderr == "disk is full\n"
    assert cell.error is not None
    assert cell.error["traceback"] == ["SystemExit: disk is full"]


def test_top_level_await_keeps_its_loop_between_cells(worker: WorkerProcess) -> None:
    assert worker.run("import asyncio\nawait asyncio.sleep(0)\n'slept'").text == "'slept'"
    worker.run(
        "async def later():\n"
        "    await asyncio.sleep(0.01)\n"
        "    return 'done'\n"
        "task = asyncio.create_task(later()) if False else None\n"
        "loop = asyncio.get_running_loop(); task = loop.create_task(later()); "
        "await asyncio.sleep(0)"
    )
    assert worker.run("await task").text == "'done'"
    assert (
        worker.run(
            "asyncio.get_running_loop() is loop; await asyncio.sleep(0); "
            "asyncio.get_running_loop() is loop"
        ).text
        == "True"
    )


def test_asyncio_run_works_in_a_cell_and_leaves_await_working(worker: WorkerProcess) -> None:
    worker.run(
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 1\nawait f()"
    )
    assert worker.run("asyncio.run(f())").text == "1"
    assert worker.run("await f()").text == "1"
    assert (
        worker.run(
            "import warnings; warnings.simplefilter('ignore'); "
            "asyncio.get_event_loop().run_until_complete(f())"
        ).text
        == "1"
    )


def test_async_for_and_with_work_at_top_level(worker: WorkerProcess) -> None:
    code = (
        "async def numbers():\n"
        "    for n in range(3):\n"
        "        yield n\n"
        "async for n in numbers():\n"
        "    print(n)"
    )
    assert worker.run(code).stdout == "0\n1\n2\n"


def test_an_error_in_await_has_the_users_lines_only(worker: WorkerProcess) -> None:
    error = worker.run(
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()"
    ).error
    assert error is not None
    text = "\n".join(error["traceback"])
    assert "Cell In[1], line 5" in text
    assert "execd" not in text


def test_shell_commands_write_to_the_sessions_streams(worker: WorkerProcess) -> None:
    cell = worker.run(
        "name = 'world'\n"
        "print('before')\n"
        "!echo hello $name; echo bad >&2; exit 3\n"
        "print(_exit_code)"
    )
    assert cell.stdout == "before\nhello world\n3\n"
    assert cell.stderr == "bad\n"
    assert worker.run("lines = !printf 'a\\nb\\n'\nlist(lines)").text == "['a', 'b']"
    worker.run("option = '-x'\nlines = !$option 2>/dev/null; echo $?")
    assert worker.run("list(lines)").text == "['127']"
    assert worker.run("!+x 2>/dev/null; echo $?").stdout == "127\n"


def test_a_shell_command_streams(worker: WorkerProcess, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    worker.start(f"!echo first; cat {tmp_path}/go; echo second")
    wait_until(lambda: worker.output_so_far() == "first\n")
    (tmp_path / "go").write_text("")
    assert worker.finish().stdout == "first\nsecond\n"


def test_os_system_answers_as_ever(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import os, io, sys\n"
        "print('first')\n"
        "sys.stdout = io.StringIO()\n"
        "a = os.system('echo out; echo err >&2; exit 3')\n"
        "os.waitstatus_to_exitcode(a), os.system('kill -9 $$')"
    )
    assert (cell.stdout, cell.stderr, cell.text) == ("first\nout\n", "err\n", "(3, 9)")


@pytest.mark.parametrize(
    "code",
    [
        "\0",
        "1\0",
        "\ud800",
        "'\ud800'",
        "# \ud800\n1",
        "\ufeff1 + 1",
        "x\r\n",
        "\x0c",
        "1 +\\",
        "%%",
        "!",
        "?",
        "%",
    ],
)
def test_code_of_any_characters_is_run_or_refused(worker: WorkerProcess, code: str) -> None:
    assert worker.run(code).done["type"] == "done"
    assert worker.run("6 * 7").text == "42"


def test_processes_can_be_spawned(worker: WorkerProcess) -> None:
    code = (
        "import multiprocessing, math\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: "
        "print(pool.map(math.sqrt, [4.0]))"
    )
    assert worker.run(code).stdout == "[2.0]\n"


def test_a_shell_command_may_go_on_in_the_background(worker: WorkerProcess) -> None:
    cell = worker.run("!sleep 1000 & echo $!")
    assert psutil.pid_exists(int(cell.stdout))
    assert worker.run("1 + 1").text == "2"


def test_shell_command_has_no_terminal_and_no_input(worker: WorkerProcess) -> None:
    assert worker.run("!cat; test -t 1 || echo none").stdout == "none\n"


def test_a_cell_that_closes_its_input_leaves_the_descriptor_to_programs(
    worker: WorkerProcess,
) -> None:
    """A descriptor that the session opens next would otherwise be the input of every program."""
    assert worker.run("import os, sys\nsys.stdin.close()\nos.readlink('/proc/self/fd/0')").text == (
        "'/dev/null'"
    )


def test_script_cells_stream_and_raise(worker: WorkerProcess) -> None:
    cell = worker.run("%%bash\necho out\necho err >&2\ncat <<< more\nexit 4")
    assert (cell.stdout, cell.stderr) == ("out\nmore\n", "err\n")
    assert cell.error is not None
    assert cell.error["name"] == "CalledProcessError"
    for script, status in (("true", "success"), ("exit 1", "error"), ("kill $$", "error")):
        assert worker.run(f"%%bash\n{script}").done["status"] == status
    assert worker.run("%%bash --no-raise-error\nexit 4").done["status"] == "success"
    assert "Couldn't find program" in worker.run("%%script nonesuch\nx").stdout
    worker.run("%%bash --out caught\necho into")
    assert worker.run("caught").text == "'into\\n'"
    assert worker.run("%%sh\necho sh").stdout == "sh\n"
    assert worker.run("%%python3\nprint(1)").stdout == "1\n"
    assert worker.run("%%bash\n" + "echo " + "x" * 200_000).stdout == "x" * 200_000 + "\n"


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        ("%%capture kept\n!{}\n", "kept.stdout"),
        ("%%capture kept\n%%bash\n{}\n", "kept.stdout"),
        ("kept = !{}\n", "kept.n"),
        ("%%bash --out kept\n{}\n", "kept"),
        (
            "import contextlib, io\n"
            "with contextlib.redirect_stdout(io.StringIO()) as kept:\n    !{}\n",
            "kept.getvalue()",
        ),
    ],
)
def test_captured_cell_ends_with_its_program_and_the_background_goes_on(
    worker: WorkerProcess, tmp_path: Path, cell: str, kept: str
) -> None:
    """The program in the background holds the pipes, and writes after the end of the cell."""
    os.mkfifo(tmp_path / "go")
    background = f"sh -c 'cat {tmp_path}/go; echo late; touch {tmp_path}/lived' & echo early"
    done = worker.run(cell.format(background))
    assert (done.done["status"], done.stdout) == ("success", "")
    assert worker.run(f"{kept}.strip()").text == "'early'"
    (tmp_path / "go").write_text("")
    wait_until(lambda: worker.output_so_far() == "late\n")
    wait_until((tmp_path / "lived").exists)


def test_names_of_ipython_are_known_as_such_and_lead_to_no_stream(worker: WorkerProcess) -> None:
    """dill.dump_session leaves out the names of IPython, and saves ``open`` with all that its
    module holds."""
    names = worker.run(
        "all(globals()[name].__module__.startswith('IPython')"
        " for name in ('exit', 'quit', 'get_ipython'))"
    )
    assert names.text == "True"
    streams = worker.run(
        "import io, types\n"
        "[name for name, value in open.__globals__.items() if isinstance(value, types.MethodType)"
        " and any(isinstance(held, io.IOBase) for held in vars(value.__self__).values())]"
    )
    assert streams.text == "[]"


def test_capture_takes_programs_too(worker: WorkerProcess) -> None:
    assert worker.run("%%capture caught\n!echo program\nprint('python')").stdout == ""
    assert worker.run("caught.stdout").text == "'program\\npython\\n'"


def test_magics_work(worker: WorkerProcess, tmp_path: Path) -> None:
    assert "loop" in worker.run("%timeit -n1 -r1 1").stdout
    assert "Wall time" in worker.run("%%time\n1").stdout
    assert worker.run(f"%cd {tmp_path}").done["status"] == "success"
    assert worker.run("import os; os.getcwd()").text == repr(str(tmp_path))
    worker.run("%%writefile own.py\nanswer = 42")
    assert worker.run("import own; own.answer").text == "42"
    (tmp_path / "script.py").write_text("import sys\nran = sys.argv[1]")
    assert worker.run("%run script.py argument\nran").text == "'argument'"
    assert "answer = 42" in worker.run("%%bash\ncat own.py").stdout
    assert "x" in worker.run("x = 1\n%who").stdout
    assert worker.run("%rehashx").error is None
    error = worker.run("%nosuchmagic").error
    assert error is not None
    assert error["name"] == "UsageError"
    assert worker.run("%env EXECD_NEW=1\n!echo $EXECD_NEW").stdout.endswith("1\n")


def test_help_is_shown(worker: WorkerProcess) -> None:
    cell = worker.run("len?")
    shown = cell.stdout + "".join(str(frame["data"]) for frame in cell.of("display"))
    assert "Return the number of items" in shown


def test_a_cell_writes_nothing_to_the_home_directory(new_worker: NewWorker, tmp_path: Path) -> None:
    worker = new_worker(env={**harness.environment(), "HOME": str(tmp_path)})
    worker.run("1 / 0")
    worker.run("%history\n%bookmark here /tmp")
    worker.run("!true")
    assert list(tmp_path.iterdir()) == []


def test_environment_directory_and_limits_are_the_sessions(
    new_worker: NewWorker, tmp_path: Path
) -> None:
    import resource

    worker = new_worker(
        cwd=str(tmp_path),
        env={"OWN": "1", "TZ": "Asia/Tokyo", "PATH": os.environ["PATH"]},
        limits=[[resource.RLIMIT_NOFILE, 77, 77]],
    )
    assert worker.run("import os; sorted(os.environ)").text == repr(["OWN", "PATH", "TZ"])
    assert worker.run("os.getcwd()").text == repr(str(tmp_path))
    assert (
        worker.run("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)").text == "(77, 77)"
    )
    assert worker.run("import time; time.tzname[0]").text == "'JST'"
    assert worker.run("!echo $OWN").stdout == "1\n"


def test_a_configuration_that_cannot_be_is_refused_and_may_be_repeated(
    zygote: Zygote, workers: list[WorkerProcess]
) -> None:
    worker = zygote.fork_unconfigured()
    workers.append(worker)
    assert "no/such" in worker.configure(cwd="/no/such")["message"]
    assert worker.configure(limits=[[7, 10, 5]])["type"] == "failed"
    assert worker.configure(env={"A": "\0"})["type"] == "failed"
    assert worker.configure()["type"] == "configured"
    assert worker.run("1 + 1").text == "2"


def test_threads_of_a_cell_print_after_it(worker: WorkerProcess) -> None:
    cell = worker.run(
        "import threading\n"
        "go = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), print('late')))\n"
        "thread.start()"
    )
    assert cell.done["status"] == "success"
    assert worker.run("go.set(); thread.join()").stdout == "late\n"
