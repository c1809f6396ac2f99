"""A private copy of the work tree for one mutant at a time.

The daemon and the workers start as ``python -I -m execd``, so a path in the environment would not
reach them: the copy has a virtual environment of its own. The environment's only file names the
copy, the copy's wings, and then the packages of the repository's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .mutant import REPOSITORY, Mutant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SERVER = Path(__file__).with_name("fork_server.py")
CLEAN_SECONDS = 300.0
# A mutant may make tests wait for a deadline of theirs before they fail.
HANG_FACTOR, LEAST_HANG_SECONDS = 10.0, 45.0


class Unusable(Exception):
    """The tests do not pass without a mutant, so a failure with a mutant would mean nothing."""


@dataclass(frozen=True)
class Verdict:
    word: Literal["killed", "hangs", "SURVIVED"]
    killers: tuple[str, ...] = ()
    """The tests that failed; none where the mutant hung, or could not be imported."""


@dataclass(frozen=True)
class Run:
    """The fork server's reply."""

    exit_code: int | None
    passed: dict[str, float]
    failed: tuple[str, ...]
    output: str


class Slot:
    """Made by ``slot``, which removes the copy."""

    clean_seconds: ClassVar[dict[str, float]] = {}
    """By name of a test, a file or a folder: how long the tests took without a mutant. They passed.
    Shared by all slots."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._server = server
        self._n_mutants = 0

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the mutant's tests, which have passed without the mutant (``prove``). Raises
        Unusable.

        A failure counts when the test that failed fails a second time: a test that fails by chance
        kills nothing.
        """
        if unproven := [test for test in mutant.tests if test not in self.clean_seconds]:
            raise Unusable(f"{mutant.name}: no verdict, because of {' '.join(unproven)}")
        clean_seconds = sum(self.clean_seconds[test] for test in mutant.tests)
        hangs_after_seconds = max(LEAST_HANG_SECONDS, HANG_FACTOR * clean_seconds)
        with self._planted(mutant):
            first = self._run(mutant.tests, hangs_after_seconds)
            if first.exit_code == 0:
                return Verdict("SURVIVED")
            if first.exit_code is None:
                return Verdict("hangs")
            # Without a test that failed: the mutant ended pytest.
            again = self._run(first.failed or mutant.tests, hangs_after_seconds)
            return Verdict("SURVIVED") if again.exit_code == 0 else Verdict("killed", first.failed)

    @contextlib.contextmanager
    def _planted(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        source, before = path.read_text(), path.stat()
        library = library_of(self.folder, mutant.file) if path.suffix == ".c" else None
        machine_code = b"" if library is None else library.read_bytes()
        path.write_text(mutant.applied_to(source))
        # Daemons and workers write bytecode whatever the environment says (`python -I`), and Python
        # knows stale bytecode by the second and by the size of the source. Each mutant's second is
        # its own.
        self._n_mutants += 1
        os.utime(path, (before.st_mtime, int(before.st_mtime) + self._n_mutants))
        try:
            if library is not None:
                compile_library(self.folder, mutant.file)
            yield
        finally:
            path.write_text(source)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            if library is not None:
                library.unlink()  # a process may still have the file mapped
                library.write_bytes(machine_code)

    def prove(self, tests: Collection[str]) -> None:
        """Run the tests without a mutant. Raises Unusable unless all pass, some of each name; a
        test that fails by chance has a second try."""
        for _ in range(2):
            run = self._run(tuple(tests), CLEAN_SECONDS, writes_bytecode=True)
            if run.exit_code == 0:
                break
        if run.exit_code != 0:
            raise Unusable(f"{' '.join(tests)}: exit code {run.exit_code}\n{run.output}")
        for test in tests:
            seconds = [
                seconds
                for name, seconds in run.passed.items()
                if name == test or name.startswith((f"{test}[", f"{test}::", f"{test}/"))
            ]
            if not seconds:
                raise Unusable(f"{test}: skipped here")
            self.clean_seconds[test] = sum(seconds)

    def _run(
        self, tests: tuple[str, ...], limit_seconds: float, *, writes_bytecode: bool = False
    ) -> Run:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {
            "tests": tests,
            "limit_seconds": limit_seconds,
            "writes_bytecode": writes_bytecode,
        }
        print(json.dumps(request), file=self._server.stdin, flush=True)
        reply = json.loads(self._server.stdout.readline())
        return Run(reply["exit_code"], reply["passed"], tuple(reply["failed"]), reply["output"])


def library_of(folder: Path, source: str) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return folder / f"{_extension(folder, source)['name'].replace('.', '/')}{suffix}"


def compile_library(folder: Path, source: str) -> Path:
    """Build the extension that ``source`` belongs to, as pyproject.toml says. Raises Unusable."""
    module, library = _extension(folder, source), library_of(folder, source)
    include = f"-I{sysconfig.get_paths()['include']}"
    flags = ["-shared", "-fPIC", *module["extra-compile-args"], include]
    done = subprocess.run(
        ["cc", *flags, "-o", library, *module["sources"]],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Unusable(f"no mutant: the compiler refuses\n{done.stderr}")
    return library


def _extension(folder: Path, source: str) -> dict[str, Any]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    modules: list[dict[str, Any]] = project["tool"]["setuptools"]["ext-modules"]
    [found] = [module for module in modules if source in module["sources"]]
    return found


@contextlib.contextmanager
def slot(folder: Path) -> Iterator[Slot]:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        ).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        libraries = [str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("execd/*/*.so")]
        for name in (*names, *libraries):
            if (REPOSITORY / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)
        venv.create(folder / ".venv", symlinks=True)
        [packages] = (folder / ".venv/lib").glob("python3.*/site-packages")
        theirs = sysconfig.get_paths()["purelib"]
        assert Path(theirs).is_relative_to(Path(sys.prefix))
        # The finders of editable installs, which name the repository, do not run here.
        places = [folder, *sorted(folder.glob("wings/*/")), theirs]
        (packages / "mutants.pth").write_text("".join(f"{place}\n" for place in places))
        # The IPython that execd lends to a Python of the machine: see zygote_process.
        (folder / ".venv/share").symlink_to(Path(sys.prefix) / "share")
        with _fork_server(folder) as server:
            yield Slot(folder, server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _fork_server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    hidden = ("EXECD_TEST_RECORD", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    server = subprocess.Popen(
        [folder / ".venv/bin/python", SERVER],
        cwd=folder,
        env={**environment, "EXECD_TEST_PROFILE": "dev"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield server
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()
