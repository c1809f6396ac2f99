"""Starting and stopping execd and the baseline, here or inside gVisor, both alike."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import environments
from benchmarks.environments import HERE, REPOSITORY
from tests.free_port import free_port

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence

START_SECONDS = 60.0
IDLE_CPU_SECONDS, IDLE_WITHIN_SECONDS = 0.05, 30.0
"""A server is idle when the server's processes use less CPU than this in a second."""


@dataclass
class Server:
    port: int
    pid: int
    start_seconds: float
    """From the process' start to the first 200 for GET /."""

    def processes(self) -> list[psutil.Process]:
        """The server itself first, then all processes below the server."""
        server = psutil.Process(self.pid)
        return [server, *server.children(recursive=True)]

    def resident_mib(self) -> dict[str, float]:
        """RSS by role: the server itself, and the processes kept below the server while nothing
        runs (execd's warden)."""
        server, *below = [process.memory_info().rss / (1 << 20) for process in self.processes()]
        return {"server": server, "below": sum(below)}

    def cpu_seconds(self, *, ended: bool = False) -> float:
        """CPU used so far by the server and the processes kept below, without the commands:
        commands are not the server's own work. ``ended``: also by all children that these processes
        have waited for."""
        seconds = 0.0
        for process in self.processes():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # ended since the listing
            seconds += times.user + times.system
            if ended:
                seconds += times.children_user + times.children_system
        return seconds

    def wait_idle(self) -> None:
        """Return when the server has finished the work after a start, or after the last client: a
        zygote, a pool of workers, ends of commands."""
        deadline = time.monotonic() + IDLE_WITHIN_SECONDS
        used = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(1.0)
            before, used = used, self.cpu_seconds()
            if used - before < IDLE_CPU_SECONDS:
                return
        print("the server does not become idle; it is measured all the same", file=sys.stderr)


@dataclass(frozen=True)
class Checkout:
    """A checkout of execd, and the interpreter of the checkout's environment."""

    root: Path
    python: Path

    def environment(self) -> dict[str, str]:
        """``import execd`` finds this checkout, wherever the editable install points."""
        return {"PYTHONPATH": str(self.root)}


THIS = Checkout(REPOSITORY, Path(sys.executable))


@dataclass
class Place:
    """Natively, or inside gVisor: then every program gets a separate sandbox, shaped by
    ``.ci/in-gvisor``."""

    runsc: str | None = None

    @property
    def name(self) -> str:
        return "gVisor" if self.runsc else "native"

    def command(
        self,
        argv: Sequence[str],
        environment: dict[str, str],
        folders: Sequence[Path],
        *,
        stdin: bool = False,
    ) -> list[str]:
        if not self.runsc:
            return ["env", *(f"{k}={v}" for k, v in environment.items()), *argv]
        return [
            sys.executable,
            str(REPOSITORY / ".ci" / "in-gvisor"),
            f"--uid={self.uid()}",
            *(f"--tmpfs={folder}" for folder in folders),
            *(f"--env={k}={v}" for k, v in environment.items()),
            *(["--stdin"] if stdin else []),
            "--",
            *argv,
        ]

    @staticmethod
    def uid() -> int:
        """1000 as in a pod, unless only root can reach the interpreter."""
        interpreter = Path(sys.executable).resolve()
        reachable = all(folder.stat().st_mode & 0o005 == 0o005 for folder in interpreter.parents)
        return 1000 if reachable else 0

    def run(self, argv: Sequence[str], checkout: Checkout | None = None) -> str:
        """The program's output. ``checkout``: run the program where and as the checkout's server
        runs."""
        environment = dict(os.environ) | ({"RUNSC": self.runsc} if self.runsc else {})
        ended = subprocess.run(
            self.command(argv, checkout.environment() if checkout else {}, []),
            cwd=checkout.root if checkout else None,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return ended.stdout

    @contextmanager
    def conversation(self, argv: Sequence[str]) -> Iterator[Callable[[str], str]]:
        """A program that answers each line of standard input with a line; the program ends at the
        end of the input."""
        environment = dict(os.environ) | ({"RUNSC": self.runsc} if self.runsc else {})
        with subprocess.Popen(
            self.command(argv, {}, [], stdin=True),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            to_program, from_program = process.stdin, process.stdout

            def ask(line: str) -> str:
                to_program.write(line + "\n")
                to_program.flush()
                answer = from_program.readline()
                if not answer:
                    raise RuntimeError(f"{argv[0]} has ended, with exit code {process.wait()}")
                return answer

            yield ask

    @contextmanager
    def serving(
        self,
        kind: str,
        *flags: str,
        checkout: Checkout = THIS,
        program: Path | None = None,
        unpack_dir: Path | None = None,
    ) -> Iterator[Server]:
        """A fresh server of this kind, with these flags added; the server and its folders are gone
        at the end. ``checkout``: the code of a server of kind "execd". ``program``: execd in
        another form, in place of the checkout. ``unpack_dir``: where a single file unpacks."""
        # Not below /tmp: the sandbox has another /tmp.
        work = Path(tempfile.mkdtemp(prefix="execd-bench-", dir="/var/tmp"))
        work.chmod(0o755)
        base_dir, state_dir = work / "base", work / "state"
        base_dir.mkdir()
        state_dir.mkdir()
        port = free_port()
        argv, environment = _argv(kind, port, base_dir, state_dir, checkout)
        folders = [base_dir, state_dir]
        if program is not None:
            argv[: argv.index("serve")] = [str(program)]
            environment = {}
        if unpack_dir is not None:
            environment["EXECD_UNPACK_DIR"] = str(unpack_dir)
            folders.append(unpack_dir)
        started = time.perf_counter()
        # Both servers log a line a request, the default; nobody reads the log.
        process = subprocess.Popen(
            self.command([*argv, *flags], environment, folders),
            cwd=checkout.root,
            env=dict(os.environ) | ({"RUNSC": self.runsc} if self.runsc else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await(process, port)
            yield Server(port, process.pid, time.perf_counter() - started)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shutil.rmtree(work, ignore_errors=True)


def parse_with_places(parser: ArgumentParser) -> tuple[Namespace, list[Place]]:
    """Parse the command line with --only and --runsc, and return the places asked for. Without a
    runsc that is natively alone, unless gVisor is asked for."""
    parser.add_argument("--only", choices=["native", "gvisor"])
    parser.add_argument("--runsc", default=shutil.which("runsc"))
    asked = parser.parse_args()
    if asked.only == "gvisor" and not asked.runsc:
        parser.error("--only gvisor needs --runsc")
    places = [Place()] if asked.only != "gvisor" else []
    if asked.only != "native" and asked.runsc:
        places.append(Place(asked.runsc))
    return asked, places


def _argv(
    kind: str, port: int, base_dir: Path, state_dir: Path, checkout: Checkout
) -> tuple[list[str], dict[str, str]]:
    if kind == "baseline":
        uvicorn = [
            str(baseline_interpreter()),
            "-m",
            "uvicorn",
            f"--app-dir={HERE}",
            "baseline.server:app",
        ]
        # The upstream image has a `python`; Debian has only `python3`.
        path = f"{baseline_interpreter().parent}:{os.environ['PATH']}"
        environment = {"SANDBOX_BASE_DIR": str(base_dir), "PATH": path}
        return [*uvicorn, "--host=127.0.0.1", f"--port={port}"], environment
    if kind == "copy":
        program = f"from benchmarks.files import serve_copy; serve_copy({port}, {str(base_dir)!r})"
        return [sys.executable, "-c", program], {"PYTHONPATH": str(REPOSITORY)}
    execd = [str(checkout.python), "-m", "execd", "serve", "--host=127.0.0.1", f"--port={port}"]
    folders = [f"--base-dir={base_dir}", f"--state-dir={state_dir}"]
    return [*execd, *folders], checkout.environment()


def baseline_interpreter() -> Path:
    """Of an environment with the baseline's requirements, made on first use."""
    return environments.made(Path(sys.executable), environments.BASELINE)


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pause.wait(0.005)
        finally:
            connection.close()
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server does not answer: {process.args!r}")
