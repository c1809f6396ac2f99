"""OpenSandbox's own server from PyPI makes sandboxes of execd's image, and OpenSandbox's SDKs use
the sandboxes. Only Kubernetes is a stand-in (``cluster.py``): the server's provider for
agent-sandbox makes the pod's manifest, and the stand-in runs the pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.target import wait_until
from tests.free_port import free_port
from tests.sdk.cluster import Cluster
from tests.sdk.conftest import KINDS, installed, output_of

from .test_opensandbox import interpreter as interpreter
from .test_opensandbox import nothing_leaks as nothing_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "registry.example/execd:1"
API_KEY = "key-of-the-test"
DRIVER = Path(__file__).parent / "drive_opensandbox_server.py"
START_SECONDS = 120.0
TERMINATED_SHELL = 128 + signal.SIGTERM

CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
api_key = "{api_key}"

[runtime]
type = "kubernetes"
execd_image = "{image}"
execd_run_as_init = {as_init}

[store]
type = "sqlite"
path = "{folder}/store.db"

[kubernetes]
kubeconfig_path = "{folder}/kubeconfig"
namespace = "sandboxes"
workload_provider = "agent-sandbox"

[ingress]
mode = "direct"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture(scope="module", params=["false", "true"])
def server(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server, without and with ``execd_run_as_init``."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    (folder / "kubeconfig").write_text(json.dumps(cluster.kubeconfig()))
    (folder / "config.toml").write_text(
        CONFIG.format(port=port, api_key=API_KEY, image=IMAGE, as_init=request.param, folder=folder)
    )
    program = installed("opensandbox-server-1.1.1", "opensandbox-server==1.1.1")
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [program.parent / "opensandbox-server", "--config", folder / "config.toml"],
            stdout=file,
            stderr=file,
            env={**os.environ, "HOME": str(folder)},
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, START_SECONDS, "OpenSandbox's server answers")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_SECONDS)


@pytest.mark.parametrize("kind", KINDS)
def test_server_makes_a_sandbox_of_the_image(
    interpreter: Path, server: str, cluster: Cluster, kind: str
) -> None:
    cluster.exit_codes.clear()
    cluster.logs.clear()
    shown = output_of([interpreter, DRIVER, kind, server, IMAGE, API_KEY])
    assert json.loads(shown.splitlines()[-1]) == {
        "state": "Running",
        "command": ["out", 4],
        "file": "written",
        "set": "yes",
        "code": "42",
        "reconnected": "written",
        "after kill": 404,
    }
    # SIGTERM ended the entrypoint, `tail -f /dev/null`, and then the daemon drained.
    assert cluster.exit_codes == [TERMINATED_SHELL]
    assert '"message":"shutting down"' in cluster.logs[0]
    assert '"level":"error"' not in cluster.logs[0]
