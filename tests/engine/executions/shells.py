"""The shells of this machine, and command lines run by them and without them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from execd.engine.executions import exit_status
from execd.engine.executions.direct_exec import QUESTION, parse_answer
from execd.engine.executions.plain_words import plain_words
from execd.proc import spawn
from execd.proc.program_block import DirectProgram, pack
from tests.proc import spawning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from execd.engine.executions.direct_exec import Layout

SHOW_PROCESS = Path(__file__).parent / "show_process.c"
LIMITS = [spawn.Limit(resource.RLIMIT_CORE, 0, 0)]


class Ran(NamedTuple):
    """The end of a program, as its caller sees the end."""

    stdout: bytes
    stderr: bytes
    wait_status: int
    was_direct: bool


class Shell:
    """A shell by the name ``sh``, as behind /bin/sh, in a directory of its own."""

    def __init__(self, folder: Path, name: str, path: str) -> None:
        folder.mkdir()
        self.name = name
        self.path = str(folder / "sh")
        os.symlink(os.path.realpath(path), self.path)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self.forks = False
        """Whether the shell waits for its last command."""

    def run(self, line: str, env: Mapping[str, str], cwd: Path) -> Ran:
        """Run the line by the shell."""
        return _run([self.path, "-c", line], env, str(cwd), None)

    def run_directly(self, line: str, env: Mapping[str, str], cwd: Path) -> Ran:
        """Run the line as DirectExec would run the line in the place of this shell."""
        words = plain_words(line)
        assert words is not None
        layout = self.layout(env)
        direct = DirectProgram(words, layout.entries)
        ran = _run([self.path, "-c", line], env, str(cwd), direct)
        if not (ran.was_direct and layout.forks):
            return ran
        wait_status, report = exit_status.as_reported_by_dash(ran.wait_status)
        return ran._replace(wait_status=wait_status, stderr=ran.stderr + report)

    def layout(self, env: Mapping[str, str]) -> Layout:
        if tuple(env) not in self._layouts:
            self.learn(env)
        return self._layouts[tuple(env)]

    def learn(self, env: Mapping[str, str]) -> None:
        answer = _run([self.path, "-c", QUESTION], env, "/", None)
        layout = parse_answer(answer.stdout, env)
        assert layout is not None, answer
        self._layouts[tuple(env)] = layout
        self.forks = layout.forks


def _run(argv: list[str], env: Mapping[str, str], cwd: str, direct: DirectProgram | None) -> Ran:
    streams = [os.memfd_create("stream", os.MFD_CLOEXEC) for _ in range(2)]
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        pid, is_direct = spawning.spawn(
            program=pack(argv, env, cwd, direct), fds=[null, *streams], limits=LIMITS
        )
        _, wait_status = os.waitpid(pid, 0)
        stdout, stderr = (os.pread(fd, 1 << 24, 0) for fd in streams)
    finally:
        for fd in (null, *streams):
            os.close(fd)
    return Ran(stdout, stderr, wait_status, is_direct)


def as_by_a_parent(ran: Ran) -> Ran:
    """Without the one line that differs where the shell would have been the program's parent."""
    lines = ran.stdout.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b"leads group ")]
    return ran._replace(stdout=b"".join(kept), was_direct=False)


def find_shells(folder: Path, names: tuple[str, ...]) -> list[Shell]:
    return [Shell(folder / name, name, path) for name in names if (path := shutil.which(name))]


def make_programs(folder: Path) -> None:
    """Files that are programs, and files that look like programs, by the names of PROGRAMS."""
    compile_ = ["gcc", "-O1", "-Wall", "-Werror", "-o", str(folder / "show"), str(SHOW_PROCESS)]
    subprocess.run(compile_, check=True)
    for name, content, mode in (
        ("script", '#!/bin/sh\necho "$#" "$@"\n', 0o755),
        ("noshebang", 'echo no shebang "$@"\n', 0o755),
        ("badinterpreter", "#!/nonexistent/x\n", 0o755),
        ("crlf", "#!/bin/sh\r\necho\n", 0o755),
        ("noexec", "#!/bin/sh\necho never\n", 0o644),
        ("empty", "", 0o755),
        ("binary", "\x7fELF\x00\x01", 0o755),
    ):
        (folder / name).write_text(content, newline="")
        (folder / name).chmod(mode)
    (folder / "directory").mkdir()
    os.symlink("show", folder / "link")
    os.symlink("nowhere", folder / "dangling")
    os.symlink("loop", folder / "loop")


def link_tools(folder: Path) -> None:
    """Links to the programs that lines of agents may call."""
    for name in TOOLS.split():
        if (path := shutil.which(name)) is not None:
            (folder / name).symlink_to(os.path.realpath(path))
    # An interpreter of its own, for a virtual environment is found by the path of the call.
    (folder / "python3").symlink_to(os.path.realpath(sys.executable))


def make_project(folder: Path, env: Mapping[str, str]) -> None:
    """A project of a few files, with two commits."""
    for path, content in PROJECT.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    for name in ("run.sh", "noshebang", "badinterp"):
        (folder / name).chmod(0o755)
    (folder / "empty").mkdir()
    for command in ("init -q -b main", "add -A", "commit -q -m First"):
        subprocess.run(["git", *command.split()], cwd=folder, env=dict(env), check=True)
    (folder / "README.md").write_text(PROJECT["README.md"] + "more\n")
    subprocess.run(["git", "commit", "-qam", "Second"], cwd=folder, env=dict(env), check=True)
    subprocess.run(["git", "branch", "feature"], cwd=folder, env=dict(env), check=True)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


PROJECT = {
    "README.md": "# App\n\nan old app, v1, a.b, price: $5\n",
    "src/app/main.py": "import sys\n\n# TODO\nprint('main', sys.argv[1:])\n",
    "src/app/util.py": "def add(a, b):\n    # TODO\n    return a + b\n",
    "src/Makefile": "all:\n\t@echo in src\n",
    "tests/__init__.py": "",
    "tests/test_util.py": (
        "import unittest\n\n\nclass TestUtil(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(1 + 1, 2)\n"
    ),
    "fail.py": "import sys\nprint('before')\nsys.stdout.flush()\nraise ValueError('no')\n",
    "docs/notes.md": "it's a note\n",
    "data/users.csv": "name,mail,age\nann,ann@example.invalid,31\nbob,bob@example.invalid,9\n",
    "data/orders.csv": "1,ann\n1,ann\n2,bob\n",
    "data/big.txt": "0123456789abcdef\n" * 2000,
    "logs/app.log": "10:00 INFO start\n10:01 ERROR no\n10:02 WARN hm\n",
    "package.json": '{"name": "app", "scripts": {"test": "true"}}\n',
    "pyproject.toml": "[project]\nname = 'app'\n",
    "requirements.txt": "requests\n",
    "setup.cfg": "# comment\n[metadata]\nname = app\n",
    "Makefile": "CC = cc\ntest:\n\t@echo $(CC) $(V)\nbuild:\n\tfalse\nclean all:\n\t@:\n",
    "run.sh": '#!/bin/sh\necho run "$#" "$@"\nexit 3\n',
    "noexec.sh": "#!/bin/sh\necho never\n",
    "noshebang": 'echo no shebang "$@"\n',
    "badinterp": "#!/nonexistent/x\n",
    "file with spaces.txt": "spaces\n",
    ".gitignore": "build\n",
}
TOOLS = """
    awk basename cat chmod cp cut date dd diff dirname du env expr file find git grep gunzip gzip
    head id ln ls make md5sum mkdir mv nice nl nohup nproc od paste printenv readlink realpath rm
    rmdir sed seq sh bash sha256sum sleep sort split stat strings tac tail tar tee timeout touch
    truncate uname uniq wc which xargs xxd zcat
"""
PROGRAMS = (
    *("script", "noshebang", "badinterpreter", "crlf", "noexec", "empty", "binary"),
    *("directory", "link", "dangling", "loop", "nosuchprogram", "show"),
)
STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
