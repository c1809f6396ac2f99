"""The real SDK, k8s-agent-sandbox from PyPI, in several versions, each in a separate environment.

The SDK runs in a separate process (``drivers/drive.py``) and prints the results as JSON; a process
that has imported the SDK forks that process (``drivers/warm.py``). A stand-in replaces only
Kubernetes, because the SDK asks Kubernetes for nothing but the address of the pod. The daemon is
found as in the conformance suite: EXECD_URL, or a daemon started here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..conformance.target import (
    REPOSITORY,
    TERMINATED,
    Target,
    dialect_ports,
    elsewhere,
    start,
)
from ..free_port import free_port
from ..patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Drive = Callable[..., dict[str, Any]]

VERSIONS = ("1.0.8", "0.5.6", "0.4.6")
NEWEST = VERSIONS[0]
# Neither the version nor the kind of an SDK meets the kernel: a daemon elsewhere gets one of each.
VERSIONS_HERE = VERSIONS[:1] if elsewhere() else VERSIONS
KINDS = ["async"] if elsewhere() else ["sync", "async"]
ENVIRONMENTS = Path(os.environ.get("EXECD_SDK_CACHE", REPOSITORY / ".cache" / "sdk"))
SANDBOXD_PORT = free_port()
SANDBOXD_GRPC_PORT = dialect_ports("sandboxd_grpc")["sandboxd_grpc"]
DRIVERS = Path(__file__).parent / "drivers"
DRIVER = DRIVERS / "drive.py"
MODULES = (
    "k8s_agent_sandbox.async_sandbox",
    "k8s_agent_sandbox.async_sandbox_client",
    "k8s_agent_sandbox.sandbox",
    "k8s_agent_sandbox.sandbox_client",
)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if there := elsewhere():
        yield there
        return
    own = start(
        tmp_path_factory.mktemp("daemon"),
        "--sessions=lazy",
        f"--sandboxd-rest-port={SANDBOXD_PORT}",
        f"--sandboxd-grpc-port={SANDBOXD_GRPC_PORT}",
    )
    yield own
    assert own.stop() == TERMINATED, own.log_text()


@pytest.fixture(scope="session", params=VERSIONS_HERE)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def installed(name: str, *requirements: str) -> Path:
    """The interpreter of an environment with these packages, made on first use. An environment left
    half-made is made anew. ``name``: of the environment's folder."""
    folder = ENVIRONMENTS / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = folder / "bin" / "python"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    # Files of tests run side by side, and two may need the same environment.
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            pip = [sys.executable, "-m", "pip", "--python", interpreter]
            # An SDK has hundreds of modules, most of which nothing imports.
            subprocess.run([*pip, "install", "--quiet", "--no-compile", *requirements], check=True)
            (folder / "complete").touch()
    return interpreter


def environment(version: str) -> Path:
    """The interpreter of an environment with this version of k8s-agent-sandbox."""
    # Only the newest talks to sandboxd.
    extras = "async,grpc" if version == NEWEST else "async"
    name = f"{version}-{extras.replace(',', '-')}"
    return installed(name, f"k8s-agent-sandbox[{extras}]=={version}")


class Warm:
    """A process that has imported an SDK, and forks a process for each program."""

    def __init__(self, interpreter: Path, modules: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [interpreter, DRIVERS / "warm.py", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, program: list[Any], timeout_seconds: float) -> tuple[int, str, str]:
        """The exit code and the two outputs. Raises TimeoutError, after which nothing runs."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("stdout", "stderr")]
            for file in files:
                file.touch()
            stdin.write(json.dumps([str(part) for part in [*program, *files]]).encode() + b"\n")
            stdin.flush()
            if not select.select([stdout], [], [], timeout_seconds)[0]:
                self.end()
                raise TimeoutError(f"{program} does not end")
            exit_code = int(stdout.readline())
            return exit_code, files[0].read_text(), files[1].read_text()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()


WARM: dict[Path, Warm] = {}
"""By the interpreter."""


@contextlib.contextmanager
def warm(interpreter: Path, *modules: str) -> Iterator[Path]:
    """Within the block, programs of ``drivers`` in this interpreter find the modules imported."""
    if interpreter in WARM:
        yield interpreter
        return
    WARM[interpreter] = Warm(interpreter, modules)
    try:
        yield interpreter
    finally:
        WARM.pop(interpreter).end()


def output_of(command: list[Any], **variables: str) -> str:
    """The output of a program of an SDK. The program's own failure fails the test."""
    timeout_seconds = patience.seconds(150)
    if command[0] in WARM and isinstance(command[1], Path) and not variables:
        exit_code, stdout, stderr = WARM[command[0]].run(command[1:], timeout_seconds)
        assert exit_code == 0, stderr
        return stdout
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        env={**os.environ, **variables},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="session")
def interpreter(version: str) -> Iterator[Path]:
    with warm(environment(version), *MODULES) as path:
        yield path


@pytest.fixture(scope="session")
def newest() -> Iterator[Path]:
    with warm(environment(NEWEST), *MODULES) as path:
        yield path


def ports_of_sandboxd(target: Target) -> tuple[int, int]:
    """The ports of the two halves of sandboxd. A daemon elsewhere serves the REST half on its first
    port."""
    rest_port = SANDBOXD_PORT if target.process is not None else target.address[1]
    return rest_port, SANDBOXD_GRPC_PORT


def drive(
    interpreter: Path, target: Target, scenario: str, kind: str = "sync", connection: str = "direct"
) -> Any:
    """The results of the scenario. The driver's own failure fails the test, with the driver's
    traceback."""
    rest_port, grpc_port = ports_of_sandboxd(target)
    url = f"http://127.0.0.1:{rest_port}" if connection == "sandboxd" else target.url
    command = [interpreter, DRIVER, scenario, kind, connection, url, grpc_port]
    return json.loads(output_of(command).splitlines()[-1])
