"""``execctl inject --podman``: the single file into containers that podman has started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.anywhere.conftest import ROOTS, ROWS
from tests.free_port import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXECCTL = Path(sys.executable).parent / "execctl"
# runc and own limits: crun wants cgroups of one version, and both want more files than a build
# machine allows. The network is the host's, as everywhere in CI.
RUN = ("--runtime=runc", "run", "--detach", "--network=host", "--log-driver=none")
LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
REFUSAL = re.compile(r"rlimit|cgroup|operation not permitted|permission denied", re.IGNORECASE)
WAITING = {"musl": ["/bin/busybox", "sleep", "600"], "scratch": ["/waiting"]}


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs podman with a storage of its own; ends the containers that are left."""
    folder = tmp_path_factory.mktemp("podman")
    settings = folder / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(settings))

        def run(*words: str) -> str:
            done = subprocess.run(
                ["podman", *words], capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        yield run
        run("rm", "--all", "--force", "--time=0")


@pytest.fixture
def container(request: pytest.FixtureRequest, podman: Callable[..., str]) -> str:
    name, *options = request.param
    image = f"localhost/execd-anywhere-{name}"
    if not podman("images", "--quiet", image):
        pack = ["tar", "-C", f"{ROOTS}/{name}", "-c", "."]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["podman", "import", "--quiet", "-", image], stdin=tar.stdout, check=True
            )
    try:
        return podman(*RUN, *LIMITS, *options, image, *WAITING[name])
    except AssertionError as refused:
        if not REFUSAL.search(str(refused)):
            raise
        pytest.skip(f"podman starts no container on this machine: {refused}")


def inject(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["inject", "--podman", name, "--execd-file", os.environ["EXECD_SINGLE"], *options]
    return subprocess.run([EXECCTL, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("container", [("musl", "--user=4711"), ("scratch",)], indirect=True)
def test_execd_serves_in_a_container_that_runs(
    container: str, request: pytest.FixtureRequest
) -> None:
    port = free_port()
    done = inject(container, f"--port={port}")
    assert (done.returncode, done.stdout) == (0, f"http://127.0.0.1:{port}\n"), done.stderr
    name = request.node.callspec.params["container"][0]
    with httpx.Client(base_url=done.stdout.strip(), trust_env=False, timeout=30) as client:
        answer = client.post("/v1/executions", json={"argv": ROWS[name].program}).json()
        assert (answer["stdout"], answer["exit_code"]) == ("hello\n", 0)
        words = [
            "/.execd-tree/bin/python3",
            "-c",
            "import os; print(*(os.stat(path).st_uid for path in ('/.execd', '/.execd-tree')))",
        ]
        assert client.post("/v1/executions", json={"argv": words}).json()["stdout"] == "0 0\n"


@pytest.mark.parametrize("container", [("musl",)], indirect=True)
def test_message_of_a_refusal_is_passed_on(container: str, podman: Callable[..., str]) -> None:
    done = inject(container, "--", "--no-such-flag")
    assert done.returncode == 1
    assert "podman exec: Usage: execd serve" in done.stderr
    podman("stop", "--time=0", container)
    assert "does not run" in inject(container).stderr
    assert "no such container" in inject("nobody").stderr
