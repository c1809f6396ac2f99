"""The end of an interpreter: exit functions, threads and files, in a worker and in a branch."""

from __future__ import annotations

import gzip
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kernel.harness import WorkerProcess

    NewWorker = Callable[..., WorkerProcess]


@pytest.fixture
def worker(new_worker: NewWorker, tmp_path: Path) -> WorkerProcess:
    return new_worker(cwd=str(tmp_path))


def end(worker: WorkerProcess) -> None:
    worker.request("end")
    assert worker.wait() == 0


@pytest.mark.parametrize(
    "code",
    [
        "f = open('found', 'w')\nn = f.write('text')",
        "import csv\ncsv.writer(open('found', 'w'), lineterminator='').writerow(['text'])",
        "def fail():\n    f = open('found', 'wb')\n    f.write(b'text')\n    1 / 0\nfail()",
        "f = open('found', 'w')\nn = f.write('text')\nf.circle = [f]\ndel f",
        "import sys\nsys.stdout = open('found', 'w')\nprint('text', end='')",
        "import atexit\natexit.register(lambda: print('text', end='', file=open('found', 'w')))",
        "class Late:\n    def __del__(self): open('found', 'w').write('text')\nlate = Late()",
        "import threading, time\n"
        "def late():\n    time.sleep(0.1)\n    open('found', 'w').write('text')\n"
        "threading.Thread(target=late).start()",
        "import logging.handlers\nto = logging.FileHandler('found')\nto.terminator = ''\n"
        "logging.getLogger().addHandler(logging.handlers.MemoryHandler(99, target=to))\n"
        "logging.warning('text')",
    ],
    ids=["file", "csv", "traceback", "circle", "stdout", "atexit", "__del__", "thread", "logging"],
)
def test_end_of_an_interpreter_loses_no_text(
    worker: WorkerProcess, tmp_path: Path, code: str
) -> None:
    worker.run(code)
    end(worker)
    assert (tmp_path / "found").read_text() == "text"


def test_archives_are_whole_after_the_end_of_an_interpreter(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.run("import gzip, zipfile\nz = zipfile.ZipFile('a.zip', 'w')\nz.writestr('a', 'text')")
    worker.run("g = gzip.open('a.gz', 'wt')\ng.write('text')")
    end(worker)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text"
    assert zipfile.ZipFile(tmp_path / "a.zip").read("a") == b"text"


def test_files_are_written_before_an_exit_function_that_does_not_end(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.run("f = open('found', 'w')\nn = f.write('text')")
    worker.run(
        "import atexit, time\n"
        "def hang():\n    print('hangs')\n    time.sleep(1000)\n"
        "atexit.register(hang);"
    )
    worker.peer.send("end", id=99)
    wait_until(lambda: "hangs" in worker.output_so_far())
    assert (tmp_path / "found").read_text() == "text"


def test_what_exit_functions_print_comes_before_the_answer(worker: WorkerProcess) -> None:
    worker.run("import atexit\natexit.register(print, 'bye');")
    end(worker)
    wait_until(lambda: worker.output_so_far() == "bye\n")


def test_interpreter_whose_daemon_is_gone_ends_in_order(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    worker.run("f = open('found', 'w')\nn = f.write('text')")
    worker.peer.socket.close()
    assert worker.wait() == 0
    assert (tmp_path / "found").read_text() == "text"


def test_end_of_a_branch_runs_its_own_exit_functions_only(
    worker: WorkerProcess, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    worker.run(
        "import atexit, os, tempfile\n"
        "folder = tempfile.TemporaryDirectory(dir='.')\n"
        "def note(text):\n    open('notes', 'a').write(text)\n"
        "atexit.register(note, 'original ');"
    )
    [branch], _ = worker.fork()
    workers.append(branch)
    branch.run("atexit.register(note, 'branch ')\nf = open('found', 'w')\nn = f.write('text')")
    end(branch)
    assert (tmp_path / "notes").read_text() == "branch "
    assert (tmp_path / "found").read_text() == "text"
    assert worker.run("os.path.isdir(folder.name)").text == "True"
    end(worker)
    assert (tmp_path / "notes").read_text() == "branch original "
    assert not list(tmp_path.glob("tmp*"))
