"""The shapes of a warden, and the refusal of namespaces for real reasons of this kernel."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from execd.kernel import process_name
from execd.proc import namespaces, self_process, spawn
from execd.proc.root_capabilities import CAPABILITY_NAMES, ROOT_CAPABILITIES
from tests import subreaper

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(namespaces.__file__))))

# Starts a warden, reads the shape, and runs a shell script under the warden, in a process with as
# few rights as the test needs.
PROBE = """
import asyncio, json, os, sys
sys.path.insert(0, sys.argv[1])
from execd.proc.client import WardenClient
from execd.proc.messages import NULL_DEVICE, Exited, Spawn
from execd.proc.program_block import pack
from execd.proc.namespaces import View
from execd.proc.reaper import Reaper
from execd.proc.spawn import KEEP_IDENTITY, StepFailed

async def main():
    state, policy, script = sys.argv[2:]
    reaper = Reaper(everything=True)
    view = View(state, state + "/bin", {"python": "/usr/bin/env"})
    client = WardenClient(
        lambda: view, reaper,
        module="execd.warden.main", policy=policy, ping_seconds=2, dead_seconds=5,
    )
    try:
        await client.start()
    except StepFailed as error:
        print(json.dumps({"failed": error.step, "error": error.strerror}))
    else:
        read_end, write_end = os.pipe()
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "M": "1"}
        request = Spawn(client.new_tag(), pack(["/bin/sh", "-c", script], env, "/"),
            [NULL_DEVICE, 0, 0], False, [], 0, "M=1", None, None, None)
        child = await client.launch(request, [write_end], lambda *_: None)
        ended = await child.exited
        text = open(read_end).read()
        print(json.dumps({"shape": client.started.shape, "refusal": client.started.refusal,
            "text": text, "root_capabilities": client.root_capabilities}))
    await client.close()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        print("a child is left")
    reaper.close()

asyncio.run(main())
"""


def probe(
    state_dir: Path, policy: str, script: str = "true", *, under: list[str] | None = None
) -> dict[str, Any]:
    (state_dir / "bin").mkdir(parents=True, exist_ok=True)
    (state_dir / "secret").write_text("secret")
    done = subprocess.run(
        [*(under or []), sys.executable, "-c", PROBE, ROOT, str(state_dir), policy, script],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_shape_is_the_strongest_that_this_user_may_have(tmp_path: Path) -> None:
    found = probe(tmp_path, "require")
    assert (found["shape"], found["refusal"]) == (
        "pid+mount" if os.geteuid() == 0 else "user+pid+mount",
        None,
    )


def test_inside_there_are_only_the_wardens_processes_and_of_the_state_dir_only_the_links(
    tmp_path: Path,
) -> None:
    found = probe(
        tmp_path,
        "require",
        f"ls {tmp_path}; ls {tmp_path}/bin; readlink {tmp_path}/bin/python; "
        "cat /proc/1/cmdline | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l",
    )
    lines = found["text"].splitlines()
    assert lines[:3] == ["bin", "python", "/usr/bin/env"]
    assert process_name.WARDEN in found["text"]
    assert int(lines[-1].split()[-1]) <= 6


def test_inside_system_v_objects_and_the_files_of_dev_shm_are_their_own(tmp_path: Path) -> None:
    name = f"execd-test-{os.getpid()}"
    found = probe(
        tmp_path,
        "require",
        f"echo inside > /dev/shm/{name}; ls /dev/shm; stat -c %a /dev/shm; "
        "readlink /proc/self/ns/ipc; df --output=size -B1 /dev/shm | tail -1",
    )
    listed, mode, ipc, size = found["text"].split()
    assert (listed, mode) == (name, "1777"), "nothing else is there"
    assert not os.path.exists(f"/dev/shm/{name}")
    assert ipc != os.readlink("/proc/self/ns/ipc")
    own = os.statvfs("/dev/shm")
    assert int(size) == own.f_blocks * own.f_frsize


@pytest.mark.parametrize(
    ("view", "covers"),
    [
        (namespaces.View("/state", "/state/bin", {}), True),
        (namespaces.View("/dev/shm/state", "/dev/shm/state/bin", {}), False),
        (namespaces.View("/state", "/state/bin", {}, base_dir="/dev/shm/work"), False),
        (namespaces.View("/state", "/state/bin", {}, base_dir="/dev/shmwork"), True),
    ],
)
def test_dev_shm_stays_in_sight_where_a_directory_of_execd_lies_in_it(
    view: namespaces.View, covers: bool
) -> None:
    places = [place for _, place, _ in namespaces._own_mounts(view, None)]
    assert (namespaces.SHM in places) == covers


@pytest.mark.parametrize("policy", ["auto", "off"])
def test_a_warden_without_namespaces_is_born_below_a_subreaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    # In gVisor a process that is a subreaper already hears of no later subreaper above.
    born_below_a_subreaper = []

    def clone(*, clone_flags: int = 0, **_: Any) -> int:
        if clone_flags:
            raise spawn.StepFailed("clone", errno.EPERM, None)
        born_below_a_subreaper.append(subreaper.is_subreaper())
        return 1

    monkeypatch.setattr(spawn, "clone", clone)
    subreaper.become_subreaper(False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        namespaces.start(theirs, namespaces.View("/", "/", {}), policy, "execd.warden.main")
    assert born_below_a_subreaper == [True]


def test_switched_off_means_none_and_says_so(tmp_path: Path) -> None:
    found = probe(tmp_path, "off", f"cat {tmp_path}/secret")
    assert (found["shape"], found["refusal"], found["text"]) == ("none", "switched off", "secret")


def limited(name: str) -> list[str]:
    """Run as root of a new user namespace, with a kernel limit of 0 for a kind of namespace."""
    return [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        f'echo 0 > /proc/sys/user/{name} && exec "$@"',
        "sh",
    ]


OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
MASKED_PROC = [
    *OWN_MOUNTS,
    "sh",
    "-c",
    'mount -t tmpfs none /proc/sys && exec "$@"',
    "sh",
    *OWN_MOUNTS,
]
"""Masks parts of /proc like a container runtime: the kernel then refuses a fresh /proc
(mount_too_revealing)."""

WITHOUT_SYS_ADMIN = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


@pytest.mark.parametrize(
    ("under", "step"),
    [
        (limited("max_pid_namespaces"), "fork"),
        (limited("max_mnt_namespaces"), "mount_namespace"),
        (MASKED_PROC, "mount_proc"),
    ],
    ids=["no pid namespaces", "no mount namespaces", "masked proc"],
)
@pytest.mark.linux_only("gVisor has no limits of namespaces and does not refuse a fresh /proc")
def test_where_a_step_is_refused_the_fallback_serves_and_names_it_and_require_fails(
    tmp_path: Path, under: list[str], step: str
) -> None:
    found = probe(tmp_path / "first", "auto", "echo served", under=under)
    assert (found["shape"], found["text"]) == ("none", "served\n")
    assert found["refusal"].startswith(f"{step}: ")
    assert probe(tmp_path / "second", "require", under=under)["failed"] == step


@pytest.mark.parametrize("policy", ["auto", "require"])
@pytest.mark.linux_only("gVisor mounts over a file")
def test_a_state_dir_that_cannot_be_covered_is_a_refusal_too(tmp_path: Path, policy: str) -> None:
    """All or nothing: a warden in namespaces never has commands with access to the state dir."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROBE, ROOT, str(tmp_path / "file"), policy, "echo served"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    found = json.loads(done.stdout)
    if policy == "auto":
        assert (found["shape"], found["text"]) == ("none", "served\n")
        assert found["refusal"] == "cover: Not a directory"
    else:
        assert found == {"failed": "cover", "error": "Not a directory"}


@pytest.mark.parametrize(("uid", "denies"), [(0, False), (1000, True)])
def test_only_a_daemon_that_is_not_root_gives_up_the_groups_of_its_commands(
    monkeypatch: pytest.MonkeyPatch, uid: int, denies: bool
) -> None:
    """The kernel asks a user without privileges for it (user_namespaces(7), setgroups)."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(self_process, "capabilities", lambda _: 0)
    shape, _, maps = namespaces.plan()
    assert (shape, "setgroups" in maps) == ("user+pid+mount", denies)


@pytest.mark.root
def test_a_root_daemon_without_sys_admin_keeps_every_id_in_a_user_namespace(tmp_path: Path) -> None:
    found = probe(
        tmp_path,
        "require",
        "cat /proc/self/uid_map; id -u; touch /tmp/x-$$; chown 1234 /tmp/x-$$; "
        "stat -c %u /tmp/x-$$; rm /tmp/x-$$",
        under=WITHOUT_SYS_ADMIN,
    )
    assert found["shape"] == "user+pid+mount"
    assert found["text"].split() == ["0", "0", "4294967295", "0", "1234"]


def capability_sets(status: str) -> dict[str, int]:
    """Parse lines of /proc/PID/status."""
    return {
        name: int(text, 16)
        for name, text in re.findall(r"^(Cap\w+):\s*(\w+)$", status, re.MULTILINE)
    }


ALLOWED = sum(1 << CAPABILITY_NAMES.index(name) for name in ROOT_CAPABILITIES)


@pytest.mark.root
@pytest.mark.parametrize("under", [[], WITHOUT_SYS_ADMIN], ids=["sys_admin", "no sys_admin"])
def test_a_root_command_gets_back_no_right_to_uncover_the_state_dir(
    tmp_path: Path, under: list[str]
) -> None:
    script = (
        f"umount {tmp_path}; mount --bind / /mnt; unshare --mount umount {tmp_path}; "
        f"cat {tmp_path}/secret; grep Cap /proc/self/status"
    )
    found = probe(tmp_path, "require", script, under=under)
    assert "secret: No such file" in found["text"]
    assert capability_sets(found["text"])["CapBnd"] & ~ALLOWED == 0


INHERITABLE = ["setpriv", "--inh-caps=+sys_time,+dac_read_search", "--ambient-caps=+sys_time"]


@pytest.mark.root
@pytest.mark.parametrize(
    "under", [[], WITHOUT_SYS_ADMIN, INHERITABLE], ids=["sys_admin", "no sys_admin", "inheritable"]
)
@pytest.mark.parametrize("policy", ["require", "off"])
def test_a_root_command_has_what_a_container_has_and_the_warden_tells_it(
    tmp_path: Path, policy: str, under: list[str]
) -> None:
    """The test reads the sets and uses no capability. Exec also adds the inheritable set. The
    bounding set does not limit the inheritable set."""
    found = probe(tmp_path, policy, "grep Cap /proc/self/status", under=under)
    sets = capability_sets(found["text"])
    ours = capability_sets(Path("/proc/self/status").read_text())
    assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"] == ours["CapBnd"] & ALLOWED
    assert sets["CapInh"] == sets["CapAmb"] == 0
    assert [CAPABILITY_NAMES.index(name) for name in found["root_capabilities"]] == [
        number for number in range(64) if sets["CapEff"] >> number & 1
    ]


@pytest.mark.root
def test_capabilities_that_cannot_be_taken_away_are_told(tmp_path: Path) -> None:
    without = ["setpriv", "--bounding-set=-setpcap,-sys_admin", "--inh-caps=-all"]
    found = probe(tmp_path, "off", "true", under=without)
    assert "SETPCAP" not in found["root_capabilities"]
    assert "SYS_TIME" in found["root_capabilities"]


def test_the_capability_names_have_the_numbers_of_the_kernel() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    declared = re.findall(r"^#define CAP_(\w+)\s+(\d+)\s*$", header.read_text(), re.MULTILINE)
    assert [name for name, _ in sorted(declared, key=lambda item: int(item[1]))] == list(
        CAPABILITY_NAMES
    )
