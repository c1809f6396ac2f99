"""The real SDK, k8s-agent-sandbox from PyPI, in several versions, each in a separate environment.

The SDK runs in a separate process (``drivers/drive.py``) and prints the results as JSON. A stand-in
replaces only Kubernetes, because the SDK asks Kubernetes for nothing but the address of the pod.
The daemon is found as in the conformance suite: EXECD_URL, or a daemon started here.
"""

from __future__ import annotations

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
    elsewhere,
    free_port,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Drive = Callable[..., dict[str, Any]]

VERSIONS = ("1.0.8", "0.5.6", "0.4.6")
ENVIRONMENTS = Path(os.environ.get("EXECD_SDK_CACHE", REPOSITORY / ".cache" / "sdk"))
SANDBOXD_PORT = free_port()
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
    )
    yield own
    assert own.stop() == TERMINATED, own.log_text()


@pytest.fixture(scope="session", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def environment(version: str) -> Path:
    """The interpreter of an environment with this version of the SDK, made on first use. An
    environment left half-made is made anew."""
    folder = ENVIRONMENTS / f"{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder)
        # The SDK's client of Kubernetes has hundreds of modules, most of which nothing imports.
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", interpreter),
                *("install", "--quiet", "--no-compile", f"k8s-agent-sandbox[async]=={version}"),
            ],
            check=True,
        )
        (folder / "complete").touch()
    return interpreter


@pytest.fixture(scope="session")
def interpreter(version: str) -> Path:
    return environment(version)


@pytest.fixture(scope="session")
def newest() -> Path:
    return environment(VERSIONS[0])


def drive(
    interpreter: Path, target: Target, scenario: str, kind: str = "sync", connection: str = "direct"
) -> Any:
    """The results of the scenario. The driver's own failure fails the test, with the driver's
    traceback."""
    url = target.url
    if connection == "sandboxd" and target.process is not None:
        # a daemon elsewhere serves the same routes on its first port
        url = f"http://127.0.0.1:{SANDBOXD_PORT}"
    ended = subprocess.run(
        [interpreter, DRIVER, scenario, kind, connection, url],
        capture_output=True,
        text=True,
        timeout=90 + SLACK_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
