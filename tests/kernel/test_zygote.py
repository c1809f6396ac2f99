from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from execd import kernel
from execd.engine.sessions import zygote_process
from execd.kernel import frames
from tests.kernel import harness
from tests.kernel.harness import Ends, Gone, Peer, WorkerProcess, Zygote
from tests.waiting import wait_until

FOLDER = Path(kernel.__path__[0])
WORKER_HALF = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def test_zygote_says_what_it_is(zygote: Zygote) -> None:
    probe = "import platform; print(platform.python_version())"
    assert (
        zygote.ready["python"]
        == subprocess.run(
            [harness.PYTHON, "-c", probe], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    assert zygote.ready["warnings"] == []
    assert zygote.ready["import_seconds"] > 0


def test_zygote_has_no_thread_and_nothing_open_but_its_control_channel(zygote: Zygote) -> None:
    process = psutil.Process(zygote.pid)
    assert process.num_threads() == 1
    assert len(os.listdir(f"/proc/{zygote.pid}/fd")) == 4


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_the_unused_end_of_the_heap_gets_no_huge_page(
    zygote: Zygote, worker: WorkerProcess
) -> None:
    """The blocks of cells are in huge pages all the same: see test_worker_fork.

    Huge pages at the beginning of the heap are from the start of the interpreter, and in use.
    """
    for process in (zygote, worker):
        folder = Path(f"/proc/{process.pid}")
        heap = (folder / "smaps").read_text().split("[heap]\n")[1]
        assert "nh" in heap.split("VmFlags:")[1].splitlines()[0].split()
        assert "THP_enabled:\t1\n" in (folder / "status").read_text()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_no_huge_page_comes_in_while_the_zygote_loads_its_packages() -> None:
    program = (
        "import contextlib\n"
        "from execd.kernel.zygote import _small_pages\n"
        "for pages in (contextlib.nullcontext(), _small_pages(), contextlib.nullcontext()):\n"
        "    with pages, open('/proc/self/status') as status:\n"
        "        [print(line, end='') for line in status if line.startswith('THP_enabled')]\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert told.split() == ["THP_enabled:", "1", "THP_enabled:", "0", "THP_enabled:", "1"]


def test_no_package_of_terminals_or_completion_costs_a_session_memory(
    worker: WorkerProcess,
) -> None:
    """prompt_toolkit and jedi made up a third of a session's memory, and no cell needs either."""
    cell = worker.run(
        "import sys\nsorted({'prompt_toolkit', 'jedi', 'psutil'} & sys.modules.keys())"
    )
    assert cell.text == "[]"


def test_worker_is_its_own_session_and_a_child_of_the_warden(worker: WorkerProcess) -> None:
    assert os.getsid(worker.pid) == os.getpgid(worker.pid) == worker.pid
    assert psutil.Process(worker.pid).ppid() == os.getpid()


def test_workers_of_a_zygote_that_leads_only_a_group_lead_a_group_in_the_same_session(
    workers: list[WorkerProcess],
) -> None:
    zygote = Zygote(leads_session=False)
    workers.append(zygote.fork())
    branches, _ = workers[0].fork()
    workers.extend(branches)
    zygote.close()
    for worker in workers:
        assert (os.getpgid(worker.pid), os.getsid(worker.pid)) == (worker.pid, os.getsid(0))


def test_worker_has_its_pipes_its_channel_and_no_other_descriptor(worker: WorkerProcess) -> None:
    targets = {
        int(fd): os.readlink(f"/proc/{worker.pid}/fd/{fd}")
        for fd in os.listdir(f"/proc/{worker.pid}/fd")
    }
    assert targets.pop(0) == "/dev/null"
    out, err = targets.pop(1), targets.pop(2)
    assert out.startswith("pipe:")
    assert err.startswith("pipe:")
    own = {fd: where for fd, where in targets.items() if fd >= 64}
    assert targets == own, "low numbers are the user's"
    assert sorted(where.split(":")[0] for where in own.values()) == ["pipe", "pipe", "socket"]
    assert {out, err} < set(own.values())


def test_a_worker_ends_when_the_daemon_goes(worker: WorkerProcess) -> None:
    worker.peer.socket.shutdown(socket.SHUT_RDWR)
    assert worker.wait() == 0


def test_zygote_ends_when_the_daemon_goes_and_workers_live_on() -> None:
    zygote = Zygote()
    worker = zygote.fork()
    zygote.close()
    assert worker.run("1 + 1").text == "2"
    worker.close()


def test_interrupt_does_not_end_the_zygote(zygote: Zygote) -> None:
    os.kill(zygote.pid, 2)
    worker = zygote.fork()
    assert worker.run("1 + 1").text == "2"
    worker.close()


def test_workers_know_nothing_of_each_other(zygote: Zygote, worker: WorkerProcess) -> None:
    worker.run("x = 1")
    other = zygote.fork()
    assert (error := other.run("x").error)
    assert error["name"] == "NameError"
    assert other.run("Out, In").text is not None
    other.close()


def test_a_fork_without_its_descriptors_is_said_to_have_failed(zygote: Zygote) -> None:
    zygote.control.send("fork", id=99)
    assert zygote.control.expect("fork_failed")["id"] == 99
    worker = zygote.fork()
    worker.close()


def test_garbage_on_the_control_channel_ends_the_zygote() -> None:
    zygote = Zygote()
    zygote.control.socket.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(Gone):
        zygote.control.receive()
    zygote.close()


def test_preloaded_modules_are_there_and_what_fails_is_named(tmp_path: Path) -> None:
    zygote = Zygote(preload=("fractions", "no_such_module", "antigravity.nothing"))
    assert [warning.split()[0] for warning in zygote.ready["warnings"]] == [
        "no_such_module",
        "antigravity.nothing",
    ]
    worker = zygote.fork()
    assert worker.run("import sys; 'fractions' in sys.modules").text == "True"
    assert worker.run("fractions").error, "imported, but not into the session's namespace"
    worker.close()
    zygote.close()


def test_files_in_the_working_directory_are_not_the_zygotes_modules(tmp_path: Path) -> None:
    for name in ("IPython", "json", "asyncio", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "own.py").write_text("answer = 42")
    zygote = Zygote(cwd=str(tmp_path))
    worker = zygote.fork(cwd=str(tmp_path))
    assert worker.run("import own; own.answer").text == "42"
    worker.close()
    zygote.close()


def test_path_main_and_arguments_look_like_plain_ipython(worker: WorkerProcess) -> None:
    assert (
        worker.run(
            "import sys; sys.path[0], sys.argv, __name__, "
            "sys.modules['__main__'].__dict__ is globals()"
        ).text
        == "('', [''], '__main__', True)"
    )
    assert (
        worker.run(
            "'execd' in sys.modules, any(name.startswith('execd') for name in sys.modules)"
        ).text
        == "(False, False)"
    )
    assert worker.run("any('execd/kernel' in path for path in sys.path)").text == "False"
    assert worker.run("dir()[0]").text


def test_pythonpath_and_user_packages_of_the_session_count(zygote: Zygote, tmp_path: Path) -> None:
    worker = zygote.fork_unconfigured()
    env = {**harness.environment(), "PYTHONPATH": "/a:/b", "HOME": str(tmp_path)}
    worker.configure(env=env)
    assert worker.run("import sys; sys.path[:3]").text == "['', '/a', '/b']"
    worker.close()


OTHER_PYTHONS = [
    path
    for path in ("/usr/bin/python3", *os.environ.get("EXECD_TEST_PYTHONS", "").split())
    if shutil.which(path)
]


@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_another_interpreter_brings_its_own_ipython_or_gets_ours_at_the_end_of_its_path(
    python: str, workers: list[WorkerProcess]
) -> None:
    probe = (
        "import importlib.util, sys; "
        "print(importlib.util.find_spec('IPython') is not None, sys.prefix)"
    )
    has_own, prefix = subprocess.run(
        [python, "-c", probe], capture_output=True, text=True, check=True
    ).stdout.split()
    zygote = Zygote(python)
    assert zygote.ready["type"] == "ready", zygote.ready
    workers.append(worker := zygote.fork())
    assert worker.run("import sys; sys.prefix").text == repr(prefix)
    worker.run(
        "import IPython, os\n"
        "last = os.path.realpath(sys.path[-1])\n"
        "ours = os.path.realpath(IPython.__file__).startswith(last)"
    )
    if has_own == "False":
        assert worker.run("ours").text == "True"
    assert worker.run("1 / 0").error
    zygote.close()


NO_IPYTHON = "has no IPython, and execd is installed without an IPython to lend"
LENT_FAILS = "has no IPython of its own, and execd's cannot be imported"


@pytest.mark.parametrize(
    ("lent", "cause", "words"),
    [
        (None, "no_ipython", [NO_IPYTHON, "-m pip install ipython", "image/make-ipython"]),
        ("int | 'of a newer Python'", "broken_ipython", [LENT_FAILS, "TypeError"]),
        ("import no_such_module", "broken_ipython", [LENT_FAILS, "No module named"]),
        ("raise SystemExit", "broken_ipython", [LENT_FAILS, "SystemExit"]),
        ("raise MemoryError", "no_resources", ["MemoryError"]),
        ("raise ImportError from OSError(12, 'Cannot allocate')", "no_resources", ["ImportError"]),
        ("raise OSError(2, 'No such file')", "broken_ipython", [LENT_FAILS, "No such file"]),
    ],
)
def test_an_interpreter_that_cannot_have_ipython_says_so(
    tmp_path: Path, lent: str | None, cause: str, words: list[str]
) -> None:
    if lent is not None:
        for name in ("py39", "py311"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "IPython.py").write_text(lent)
    control, theirs = socket.socketpair()
    argv = zygote_process.zygote_argv(sys.executable)
    argv[-1] = json.dumps([str(tmp_path), []])
    argv[1:1] = ["-S"]  # without any site-packages
    with subprocess.Popen(
        argv, preexec_fn=lambda: os.dup2(theirs.fileno(), 3) and None, pass_fds=[3]
    ) as process:
        theirs.close()
        peer = Peer(control, frames.FROM_ZYGOTE)
        assert peer.expect("began")["version"] == list(sys.version_info[:3])
        failed = peer.expect("failed")
        assert failed["cause"] == cause
        for word in words if cause == "no_resources" else [sys.version.split()[0], *words]:
            assert word in failed["message"]
        assert process.wait(harness.DEADLINE_SECONDS) == 0
    control.close()


def test_a_worker_whose_ends_are_closed_harms_nobody(zygote: Zygote) -> None:
    ends = Ends()
    ends.protocol.close()
    ends.greeting.close()
    zygote.control.send("fork", ends.sent, id=7)
    ends.close_sent()
    os.close(ends.stdout)
    os.close(ends.stderr)
    worker = zygote.fork()
    worker.close()
    wait_until(
        lambda: [
            child.pid
            for child in psutil.Process().children()
            if child.pid not in Zygote.alive and child.status() == "zombie"
        ]
    )
    harness.end_orphans()


@pytest.mark.parametrize("module", WORKER_HALF)
def test_the_workers_half_is_python_3_9(module: str) -> None:
    source = (FOLDER / f"{module}.py").read_text()
    ast.parse(source, feature_version=(3, 9))
    assert "from __future__ import annotations" in source


def test_the_workers_half_is_the_standard_library_ipython_and_itself() -> None:
    for module in WORKER_HALF:
        for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                top = name.split(".")[0]
                assert (
                    top in sys.stdlib_module_names
                    or top in ("IPython", "traitlets")
                    or name.startswith("execd.kernel")
                ), (
                    module,
                    name,
                )
                if name.startswith("execd.kernel."):
                    assert name.split(".")[2] in WORKER_HALF


def test_the_daemons_part_of_it_does_not_import_ipython() -> None:
    program = (
        "import sys, execd.engine.sessions.zygote_process as boot, execd.kernel.frames; "
        "boot.zygote_argv('python'); print('IPython' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
