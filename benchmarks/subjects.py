"""The measured servers: execd by each of its dialects, a FastAPI server of the same contract, peers
as programs, and servers that run already.

All are started alike: a fresh process with two empty folders, the same PATH and the same python3
for commands, standard streams on /dev/null, and no other change of the defaults than the ports.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import usage
from benchmarks.client import Address, Target, get_connection
from benchmarks.dialects import DIALECTS
from benchmarks.environments import HERE, REPOSITORY, Python
from benchmarks.figures import EXECD, FASTAPI, SANDBOXD, SESSIONS_OFF
from tests.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.servers import Place

START_SECONDS = 60.0
ENDS = ((signal.SIGTERM, 5.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 30.0))
"""Signals, and the seconds that a subject has after each. A server with commands in a queue does
not end at SIGTERM. In gVisor SIGQUIT kills the sandbox in order."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Unusable(Exception):
    """A subject that cannot run here, with the reason."""


@dataclass(frozen=True)
class Site:
    """What a start needs to know: the ports to listen on, and where to work."""

    port: int
    second_port: int
    base_dir: Path
    state_dir: Path


@dataclass(frozen=True)
class Launch:
    argv: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Subject:
    name: str
    dialect: str
    software: str
    """The build, for the page: a figure without it means little."""
    launch: Callable[[Site], Launch] | None
    """None: the server runs already, at ``target``."""
    target: Target | None = None
    pid: int | None = None
    """Of a server that runs already; None: CPU and memory are not measured."""
    probes_second_port: bool = False
    needs_own_network: bool = False
    """In a network namespace without other servers; natively only, as root."""
    pages: tuple[str, ...] = ()
    """Routes whose first use loads code: figures of memory are taken with them in."""
    has_sessions: bool = False
    rests: bool = False
    """Measured at rest only."""


@dataclass(frozen=True)
class Running:
    subject: Subject
    target: Target
    pid: int | None
    start_seconds: float | None
    """From the process' start to the first answer."""


def _path(user_python: Path) -> str:
    return f"{user_python.parent}:{_SYSTEM_PATH}"


def execd_subjects(python: Python, daemon: Path, user: Path) -> list[Subject]:
    """execd by the python-runtime's dialect, at rest without sessions, and by a dialect of each
    wing. ``daemon`` and ``user`` are interpreters of environments of ``python``: with execd's
    packages, and with those of the user's code."""
    # A start must not pay for the first compilation of the checkout.
    subprocess.run([daemon, "-m", "compileall", "-q", REPOSITORY / "execd"], check=True)
    # With the entry points by which execd finds them.
    wings = REPOSITORY / ".cache" / "benchmarks" / "wings"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    sources = sorted(REPOSITORY.glob("wings/*/"))
    subprocess.run([*pip, "--no-deps", "--upgrade", "--target", wings, *sources], check=True)
    places = [REPOSITORY, wings]
    environment = {"PYTHONPATH": ":".join(map(str, places)), "PATH": _path(user)}

    def launch(*flags: str, port_name: str = "") -> Callable[[Site], Launch]:
        def make(site: Site) -> Launch:
            main, other = site.port, site.second_port
            ports = [f"--port={main}"]
            if port_name:
                ports = [f"--port={other}", f"--dialect={port_name}={main}"]
            folders = [f"--base-dir={site.base_dir}", f"--state-dir={site.state_dir}"]
            argv = [str(daemon), "-m", "execd", "serve", "--host=127.0.0.1", f"--python={user}"]
            return Launch([*argv, *ports, *folders, *flags], environment)

        return make

    software = str(python)
    pages = ("/metrics", "/openapi.json", "/docs")
    found = [
        Subject(EXECD, "python_runtime", software, launch(), pages=pages, has_sessions=True),
        Subject(SESSIONS_OFF, "python_runtime", software, launch("--sessions=off"), rests=True),
    ]
    for dialect, port_name in (
        ("sandboxd", "sandboxd-grpc"),
        ("opensandbox", "opensandbox"),
        ("e2b", "e2b-envd"),
    ):
        made = launch(port_name=port_name)
        second = dialect == "sandboxd"
        found.append(
            Subject(f"execd by {dialect}", dialect, software, made, probes_second_port=second)
        )
    return found


def fastapi_subject(python: Python, baseline: Path, user: Path) -> Subject:
    def launch(site: Site) -> Launch:
        uvicorn = [str(baseline), "-m", "uvicorn", f"--app-dir={HERE}", "baseline.server:app"]
        environment = {"SANDBOX_BASE_DIR": str(site.base_dir), "PATH": _path(user)}
        return Launch([*uvicorn, "--host=127.0.0.1", f"--port={site.port}"], environment)

    pages = ("/openapi.json", "/docs")
    return Subject(FASTAPI, "python_runtime", str(python), launch, pages=pages)


def peer_subjects(folder: Path, user: Path) -> list[Subject]:
    """The peers whose programs are in the folder, packed (``NAME.xz``) or not."""
    path = _path(user)
    found = []

    def add(name: str, program: str, dialect: str, *, own_network: bool = False) -> None:
        if executable := unpacked(folder, program):
            launch = _peer_launch(program, executable, path)
            second = dialect == "sandboxd"
            found.append(
                Subject(
                    *(name, dialect, f"{program}, Go", launch),
                    probes_second_port=second,
                    needs_own_network=own_network,
                )
            )

    add(SANDBOXD, "sandboxd", "sandboxd")
    add("OpenSandbox", "os-execd", "opensandbox")
    add("E2B envd", "envd", "e2b", own_network=True)
    return found


def _peer_launch(program: str, executable: Path, path: str) -> Callable[[Site], Launch]:
    def launch(site: Site) -> Launch:
        flags = {
            "sandboxd": [
                *("--listen-host", "127.0.0.1", "--grpc-port", str(site.port)),
                *("--rest-port", str(site.second_port), "--root-dir", str(site.base_dir)),
            ],
            "os-execd": ["-port", str(site.port)],
            "envd": ["-isnotfc", "-no-cgroups", "-port", str(site.port)],
        }[program]
        # Without the variable os-execd sleeps for a second after each command.
        environment = {"PATH": path, "EXECD_API_GRACE_SHUTDOWN": "0"}
        return Launch([str(executable), *flags], environment)

    return launch


def unpacked(folder: Path, program: str) -> Path | None:
    """The program, unpacked into a cache if it is packed, or None where the folder has none."""
    if (plain := folder / program).exists():
        return plain
    packed = folder / f"{program}.xz"
    if not packed.exists():
        return None
    content = packed.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:12]
    target = REPOSITORY / ".cache" / "benchmarks" / "peers" / f"{program}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(lzma.decompress(content))
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target


def parse_subject(text: str) -> Subject:
    """``NAME=DIALECT+http://HOST:PORT[?probes=PORT][#PID]``. Raises ValueError."""
    name, separator, url = text.partition("=")
    parts = urllib.parse.urlsplit(url)
    dialect, plus, scheme = parts.scheme.partition("+")
    if not (name and separator and plus and scheme == "http" and parts.hostname and parts.port):
        raise ValueError(f"{text!r} is not NAME=DIALECT+http://HOST:PORT[?probes=PORT][#PID]")
    if dialect not in DIALECTS:
        raise ValueError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
    [probes] = urllib.parse.parse_qs(parts.query).get("probes", [str(parts.port)])
    target = Target(
        dialect, Address(parts.hostname, parts.port), Address(parts.hostname, int(probes))
    )
    pid = int(parts.fragment) if parts.fragment else None
    return Subject(name, dialect, "running already", None, target, pid)


@contextmanager
def running(subject: Subject, place: Place) -> Iterator[Running]:
    """The subject, started afresh; its processes, commands and folders are gone at the end. Raises
    Unusable."""
    if subject.launch is None:
        assert subject.target is not None
        yield Running(subject, subject.target, subject.pid, None)
        return
    if subject.needs_own_network and (place.runsc or os.geteuid()):
        raise Unusable("needs a network namespace of its own: natively and as root only")
    # Not below /tmp: a sandbox has another /tmp.
    work = Path(tempfile.mkdtemp(prefix="execd-bench-", dir="/var/tmp"))
    try:
        work.chmod(0o755)
        site = Site(free_port(), free_port(), work / "base", work / "state")
        site.base_dir.mkdir()
        site.state_dir.mkdir()
        with _process(subject, place, site) as process:
            network_of = process.pid if subject.needs_own_network else None
            probes = site.second_port if subject.probes_second_port else site.port
            target = Target(
                subject.dialect,
                Address("127.0.0.1", site.port, network_of),
                Address("127.0.0.1", probes, network_of),
            )
            yield Running(subject, target, process.pid, _await(process, target))
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _process(subject: Subject, place: Place, site: Site) -> Iterator[subprocess.Popen[bytes]]:
    assert subject.launch is not None
    launch = subject.launch(site)
    argv = place.command(launch.argv, launch.environment, [site.base_dir, site.state_dir])
    if subject.needs_own_network:
        argv = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *argv]
    process = subprocess.Popen(
        argv,
        cwd=site.base_dir,
        env=dict(os.environ) | ({"RUNSC": place.runsc} if place.runsc else {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    below = []
    for pid in usage.tree(process.pid)[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            below.append(psutil.Process(pid))  # with the start time: the id may be used again
    for number, seconds in ENDS:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    for each in below:  # some peers leave commands behind
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _await(process: subprocess.Popen[bytes], target: Target) -> float:
    """Seconds until the health route has answered."""
    began = time.perf_counter()
    while True:
        try:
            with get_connection(target.probes, target.speak().probe_path) as connection:
                connection.exchange()
            return time.perf_counter() - began
        except OSError:
            time.sleep(0.001)
        if process.poll() is not None:
            raise Unusable(f"ended with exit code {process.returncode} before the first answer")
        if time.perf_counter() > began + START_SECONDS:
            raise Unusable(f"no answer within {START_SECONDS:g} s")
