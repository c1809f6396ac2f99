"""Streams that user code wraps, replaces, closes and moves, and what the next cell finds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.kernel.harness import WorkerProcess, Zygote

NOTE = "[before this cell: "
PRELUDE = """
import io, os, sys
files, owners = [], []
class Tee:
    def __init__(self, out, log): self.out, self.log = out, log
    def write(self, text): self.log.write(text); return self.out.write(text)
    def flush(self): self.log.flush(); self.out.flush()
def new_file():
    files.append(open(f"data{len(files)}", "w"))
"""


class Act(NamedTuple):
    """What a cell does to a stream."""

    code: str
    """With ``{name}``, ``{fd}`` and ``{log}`` of the stream."""
    leads_to: str | None = None
    """Where text goes in the next cell: the "reply", a "log", "both", "memory"; None: as before."""
    is_told: bool = False
    """Whether the next cell is told that something could not stay."""


ACTS = {
    "fdopen": Act("sys.{name} = os.fdopen({fd}, 'w', 1)", "reply"),
    "wrap the buffer": Act(
        "sys.{name} = io.TextIOWrapper(sys.__{name}__.buffer, write_through=True)", "reply"
    ),
    "detach": Act("sys.{name} = io.TextIOWrapper(sys.__{name}__.detach())", "reply"),
    "tee": Act("sys.{name} = Tee(os.fdopen({fd}, 'w', 1), open({log!r}, 'a', 1))", "both"),
    "file": Act("sys.{name} = open({log!r}, 'a')", "log"),
    "memory": Act("sys.{name} = io.StringIO()", "memory"),
    "the twin": Act("sys.{name} = sys.__{name}__", "reply"),
    "close a stream": Act("sys.{name} = os.fdopen({fd}, 'w')\nsys.{name}.close()", "reply", True),
    "close our own": Act("sys.{name} = sys.__{name}__\nsys.{name}.close()", "reply", True),
    "close below": Act(
        "sys.{name} = open({log!r}, 'a')\nos.close(sys.{name}.fileno())", "reply", True
    ),
    "None": Act("sys.{name} = None", "reply", True),
    "delete": Act("del sys.{name}", "reply", True),
    "no stream": Act("sys.{name} = object()", "reply", True),
    "spoil the twin": Act("sys.__{name}__ = None"),
    "redirect the number": Act(
        "os.dup2(os.open('other', os.O_CREAT | os.O_WRONLY), {fd})", None, True
    ),
    "close the number": Act("os.close({fd})"),
    "a file in its place": Act("os.close({fd})\nnew_file()"),
    "own the number": Act("owners.append(io.open({fd}, 'w'))"),
    "drop the owners": Act("owners.clear()\nnew_file()"),
    "a file": Act("new_file()"),
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(ACTS)), st.sampled_from(["stdout", "stderr"])), max_size=10
)


@given(STEPS)
def test_what_cells_do_to_their_streams_spoils_no_file_and_no_later_cell(
    zygote: Zygote, steps: list[tuple[str, str]]
) -> None:
    with TemporaryDirectory() as folder:
        worker = zygote.fork(cwd=folder)
        try:
            play(worker, Path(folder), steps)
        finally:
            worker.close()


def play(worker: WorkerProcess, folder: Path, steps: list[tuple[str, str]]) -> None:
    leads_to = {"stdout": "reply", "stderr": "reply"}
    logs = {"stdout": "", "stderr": ""}
    worker.run(PRELUDE)
    n_files = 0
    for number, (act_name, name) in enumerate(steps):
        act = ACTS[act_name]
        code = act.code.format(name=name, fd=1 if name == "stdout" else 2, log=f"log-{name}")
        error = worker.run(code).error
        assert error is None or act_name == "delete"  # IPython itself looks at sys.stdout
        n_files += "new_file" in code
        leads_to[name] = act.leads_to or leads_to[name]
        cell = worker.run(
            f"for file in files: n = file.write('row {number}\\n')\n"
            f"print('to stdout {number}')\n"
            f"print('to stderr {number}', file=sys.stderr)"
        )
        assert cell.error is None
        # Before the notes Python 3.13 speaks of streams that it could not close.
        _, note, rest = cell.stderr.rpartition(NOTE)
        # Python closes the session's own stream with a stream around the same buffer.
        if ("wrap the buffer", name) not in steps[:number]:
            assert bool(note) == act.is_told, cell.stderr
        found = {"stdout": cell.stdout, "stderr": rest.partition("\n")[2] if note else rest}
        for stream, place in leads_to.items():
            text = f"to {stream} {number}\n"
            assert found[stream] == (text if place in ("reply", "both") else "")
            logs[stream] += text if place in ("log", "both") else ""
    assert worker.run("for file in files: file.close()").error is None
    for stream, text in logs.items():
        log = folder / f"log-{stream}"
        assert (log.read_text() if log.exists() else "") == text
    data = [folder.joinpath(f"data{number}").read_text() for number in range(n_files)]
    began = [number for number, (act, _) in enumerate(steps) if "new_file" in ACTS[act].code]
    assert data == [
        "".join(f"row {number}\n" for number in range(first, len(steps))) for first in began
    ]


@pytest.mark.parametrize(
    "code",
    [
        "sys.stdout = Tee(sys.stdout, io.StringIO())",
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, write_through=True)",
    ],
)
def test_stream_around_the_sessions_own_stays_in_a_branch(
    worker: WorkerProcess, workers: list[WorkerProcess], code: str
) -> None:
    worker.run(f"{PRELUDE}\n{code}\nmine = sys.stdout")
    [branch], _ = worker.fork()
    workers.append(branch)
    for one in (branch, worker):
        cell = one.run("print('text')\nsys.stdout is mine")
        assert (cell.stdout, cell.stderr, cell.text) == ("text\n", "", "True")


@pytest.mark.parametrize("code", ["sys.exit('reason')", "%tb"])
def test_spoiled_stderr_costs_no_state(worker: WorkerProcess, code: str) -> None:
    worker.run("import sys\nx = 1\nclass Broken:\n    def write(self, text): raise OSError(5)")
    worker.run(f"sys.stderr = Broken()\n{code}")
    assert worker.run("x").text == "1"


def test_deleted_stdin_comes_back_with_a_note(worker: WorkerProcess) -> None:
    worker.run("import sys\ndel sys.stdin")
    cell = worker.run("sys.stdin.read()")
    assert cell.text == "''"
    assert "sys.stdin was deleted" in cell.stderr


def test_programs_write_where_the_replacement_does(worker: WorkerProcess) -> None:
    worker.run("import io, sys\nsys.stdout = kept = io.StringIO()")
    assert worker.run("!echo program").stdout == ""
    assert worker.run("sys.stdout = sys.__stdout__\nkept.getvalue()").text == "'program\\n'"
