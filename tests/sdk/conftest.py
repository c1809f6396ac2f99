"""The real SDK, k8s-agent-sandbox from PyPI, in several versions, each in a separate environment.

The SDK runs in a separate process (``drivers/drive.py``) and prints the results as JSON. A stand-in
replaces only Kubernetes, because the SDK asks Kubernetes for nothing but the address of the pod.
The daemon is found as in the conformance suite: EXECD_URL, or a daemon started here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..conformance.target import (
    REPOSITORY,
    SLACK_SECONDS,
    TERMINATED,
    Target,
    dialect_ports,
    elsewhere,
    start,
)
from ..free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Drive = Callable[..., dict[str, Any]]

VERSIONS = ("1.0.8", "0.5.6", "0.4.6")
ENVIRONMENTS = Path(os.environ.get("EXECD_SDK_CACHE", REPOSITORY / ".cache" / "sdk"))
SANDBOXD_PORT = free_port()
SANDBOXD_GRPC_PORT = dialect_ports("sandboxd_grpc")["sandboxd_grpc"]
DRIVER = Path(__file__).parent / "drivers" / "drive.py"


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


@pytest.fixture(scope="session", params=VERSIONS)
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
    extras = "async,grpc" if version == VERSIONS[0] else "async"
    name = f"{version}-{extras.replace(',', '-')}"
    return installed(name, f"k8s-agent-sandbox[{extras}]=={version}")


def output_of(command: list[Any], **variables: str) -> str:
    """The output of a program of an SDK. The program's own failure fails the test."""
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=150 + SLACK_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="session")
def interpreter(version: str) -> Path:
    return environment(version)


@pytest.fixture(scope="session")
def newest() -> Path:
    return environment(VERSIONS[0])


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
    ended = subprocess.run(
        [interpreter, DRIVER, scenario, kind, connection, url, str(grpc_port)],
        capture_output=True,
        text=True,
        timeout=90 + SLACK_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
