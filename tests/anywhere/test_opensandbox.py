"""The files that a server of OpenSandbox copies into a sandbox of any image: image/opensandbox."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest

from tests.anywhere.conftest import PLACES, REPOSITORY, in_image
from tests.free_port import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BY_SIGTERM = 128 + signal.SIGTERM
START_SECONDS = 60


class Sandbox(NamedTuple):
    process: subprocess.Popen[str]
    client: httpx.Client

    def command(self, line: str) -> str:
        """What a command prints, by the stream of events of OpenSandbox's execd."""
        answer = self.client.post("/command", json={"command": line})
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture(params=["busybox sh", "dash", "bash"])
def shell(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """An image and the sh of it."""
    return {
        "busybox sh": ("musl", ["/bin/sh"]),
        "dash": ("debian11", ["/bin/dash"]),
        "bash": ("debian11", ["/bin/bash"]),
    }[request.param]


@pytest.fixture(params=PLACES)
def sandbox(
    request: pytest.FixtureRequest, shell: tuple[str, list[str]], tmp_path: Path
) -> Iterator[Sandbox]:
    """A sandbox as the server makes it: the two files in a volume of their own, and the entrypoint
    as the arguments of bootstrap.sh. The entrypoint ends with 9 as soon as a file is there."""
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(os.environ["EXECD_SINGLE"], files / "execd")
    shutil.copy(REPOSITORY / "image" / "opensandbox" / "bootstrap.sh", files)
    files.chmod(0o777)  # as an emptyDir
    port = free_port()
    (image, sh), folder = shell, "/opt/execd"
    command = in_image(
        *(image, 1000, request.param, {}),
        *(
            f"--share={files}:{folder}",
            "--tmpfs=/app",
            "--tmpfs=/state",
            f"--env=EXECD={folder}/execd",
        ),
        *(f"--env=EXECD_OPENSANDBOX_PORT={port}", f"--env=EXECD_PORT={free_port()}"),
        *("--env=EXECD_HOST=127.0.0.1", "--env=EXECD_NAMESPACES=require", "--env=EXECD_INIT=1"),
        *(
            "--env=EXECD_BASE_DIR=/app",
            "--env=EXECD_STATE_DIR=/state/execd",
            "--env=OF_CALLER=seen",
        ),
    )
    entrypoint = [*sh, "-c", "echo begun; until [ -e /app/end ]; do sleep 0.1; done; exit 9"]
    process = subprocess.Popen(
        [*command, *sh, f"{folder}/bootstrap.sh", *entrypoint], stdout=subprocess.PIPE, text=True
    )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as client:

            def is_up() -> bool:
                assert process.poll() is None
                try:
                    return client.get("/ping").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(is_up, START_SECONDS)
            yield Sandbox(process, client)
    finally:
        process.kill()
        process.communicate()


def test_end_of_the_entrypoint_is_the_end_of_the_sandbox(sandbox: Sandbox) -> None:
    assert "seen /opt/execd/.env" in sandbox.command("echo $OF_CALLER $EXECD_ENVS")
    assert '"error"' not in sandbox.command("echo SET=yes >>$EXECD_ENVS")
    assert "=yes" in sandbox.command("echo =$SET")
    sandbox.command("touch /app/end")
    output, _ = sandbox.process.communicate(timeout=60)
    assert (sandbox.process.returncode, output) == (9, "begun\n")


@pytest.mark.parametrize("shell", ["busybox sh"], indirect=True)
def test_sigterm_ends_the_entrypoint_and_then_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.process.terminate()
    assert sandbox.process.wait(60) == BY_SIGTERM
