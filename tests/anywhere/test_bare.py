"""What a container may lack: /proc, and any place to write."""

from __future__ import annotations

import subprocess

import pytest

from tests.anywhere.conftest import PLACES, PROGRAM, TREE, in_image, serving

MOUNTS = {"/opt/execd": str(TREE)}


def test_container_without_proc_is_told_so() -> None:
    command = in_image("musl", 1000, "native", MOUNTS, "--no-proc")
    done = subprocess.run([*command, PROGRAM, "serve"], capture_output=True, text=True, check=False)
    assert (done.returncode, "it needs /proc" in done.stderr) == (127, True), done


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("uid", [0, 1000])
def test_read_only_image_without_a_volume_serves_in_shared_memory(uid: int, place: str) -> None:
    options = ("--env=HOME=/",)  # in the place of volumes
    command = [*in_image("musl", uid, place, MOUNTS, *options), PROGRAM]
    with serving("musl", uid, place, command, ()) as daemon:
        assert all(daemon.client.get("/v1/capabilities").json()["protections"].values())
        done = daemon.execute(command="echo kept >file; cat file; pwd; ls /dev/shm")
        assert done["stdout"].split()[0] == "kept", done
        assert done["stdout"].split()[1].startswith("/dev/shm/"), done
