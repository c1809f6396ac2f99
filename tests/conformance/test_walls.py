"""Mounts and capabilities: user code in a separate user namespace, and root, against the walls.

Each attack runs in a daemon of the test, whose base dir and state dir lie on the same volume: an
overlay over a parent directory of the state dir then reaches below the cover.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from .conftest import Run
from .target import READ_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .target import Target

ATTACK = """
import ctypes, os, sys, tempfile
state, bin_dir, secret = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS = 0x10000000, 0x20000
REMOUNT, BIND, MOVE, REC, DETACH = 32, 4096, 8192, 16384, 2

def mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    return libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3])

def is_seen(folder):
    "Whether the journal, or the output of another command, can be found."
    for path, _, names in os.walk(folder):
        if "journal" in names: return True
        for name in names:
            try: found = secret in open(os.path.join(path, name), errors="replace").read()
            except OSError: continue
            if found: return True
    return False

def scratch():
    folder = tempfile.mkdtemp()
    mount("tmpfs", folder, "tmpfs")
    for name in "target", "upper", "work": os.mkdir(f"{folder}/{name}")
    return folder

def remount_and_replace():
    mount(None, state, flags=REMOUNT)
    mount(None, state, flags=REMOUNT | BIND)
    mount("none", state, flags=REMOUNT)
    for name in "python", "python3":
        try:
            os.unlink(f"{bin_dir}/{name}")
            with open(f"{bin_dir}/{name}", "w") as file: file.write("#!/bin/sh\\necho forged\\n")
            os.chmod(f"{bin_dir}/{name}", 0o755)
        except OSError: pass

def unmount():
    for flags in 0, DETACH:
        libc.umount2(state.encode(), flags)
        if is_seen(state): print("seen after umount")

def overlay():
    above = os.path.dirname(state)
    while True:
        folder = scratch()
        options = f"lowerdir={above},upperdir={folder}/upper,workdir={folder}/work"
        if mount("overlay", f"{folder}/target", "overlay", 0, options) == 0:
            if is_seen(f"{folder}/target" + state.removeprefix(above)):
                print(f"seen through an overlay over {above}")
        if above == "/": return
        above = os.path.dirname(above)

def bind():
    folder = scratch()
    for flags in BIND, BIND | REC:
        mount(os.path.dirname(state), f"{folder}/target", flags=flags)
        inner = f"{folder}/target/{os.path.basename(state)}"
        libc.umount2(inner.encode(), DETACH)
        if is_seen(inner): print("seen through a bind mount")

def move():
    folder = scratch()
    mount(state, f"{folder}/target", flags=MOVE)
    if is_seen(state): print("seen where the cover was")

def pivot():
    folder = scratch()
    os.mkdir(f"{folder}/old")
    libc.pivot_root(folder.encode(), f"{folder}/old".encode())
    libc.umount2(f"/old{state}".encode(), DETACH)
    for path in f"/old{state}", state:
        if is_seen(path): print("seen after pivot_root")

def leave_the_root():
    "chroot(2): a process with a root below the current directory walks out with `..`."
    folder = scratch()
    libc.chroot(folder.encode())
    for _ in range(50): os.chdir("..")
    libc.chroot(b".")

def in_own_namespaces(act):
    if os.fork() == 0:
        try:
            uid, gid = os.getuid(), os.getgid()
            if act is not leave_the_root and libc.unshare(NEWUSER | NEWNS) == 0:
                maps = {"setgroups": "deny", "uid_map": f"0 {uid} 1", "gid_map": f"0 {gid} 1"}
                for name, text in maps.items():
                    try: open(f"/proc/self/{name}", "w").write(text)
                    except OSError: pass
            act()
            if act is leave_the_root and libc.unshare(NEWUSER | NEWNS) == 0:
                remount_and_replace()
                overlay()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.wait()

for act in remount_and_replace, unmount, overlay, bind, move, pivot, leave_the_root:
    in_own_namespaces(act)
print("tried")
"""


def confined_run(daemon: Target, client: httpx.Client) -> Run:
    if not daemon.claims_namespaces():
        assert not daemon.must_have_namespaces, daemon.capabilities()
        pytest.skip("/v1/capabilities says that there are no namespaces here")
    return Run(client)


@pytest.fixture
def one_volume(own_daemon: Callable[..., Target], tmp_path: Path) -> Iterator[tuple[Run, str]]:
    """A daemon whose base dir and state dir are siblings on the same volume, and the path of the
    state dir."""
    volume = tmp_path / "daemon-0/base"
    places = f"--base-dir={volume}/work", f"--state-dir={volume}/state"
    daemon = own_daemon(*places, "--stream-memory-bytes=4096")
    with httpx.Client(base_url=daemon.url, timeout=READ_SECONDS, trust_env=False) as client:
        yield confined_run(daemon, client), f"{volume}/state"


def attack(run: Run, state_dir: str, secret: str) -> str:
    response = run.client.post("/upload", files={"file": ("attack.py", ATTACK.encode())})
    assert response.status_code == 200
    bin_dir = '"$(dirname "$(command -v python3)")"'
    return run.out(f"python3 attack.py {state_dir} {bin_dir} {secret}")


def test_no_mount_of_user_code_shows_the_state_dir(one_volume: tuple[Run, str]) -> None:
    run, state_dir = one_volume
    secret = "output-of-somebody-else"
    other = {"id": "somebody-else", "command": f"yes {secret} | head -c 200000"}
    assert run.client.post("/v1/executions", json=other).json()["state"] == "EXITED"
    assert attack(run, state_dir, secret) == "tried\n"


def test_no_mount_of_user_code_changes_what_the_next_command_runs(
    one_volume: tuple[Run, str],
) -> None:
    run, state_dir = one_volume
    look = "command -v python python3; readlink -f $(command -v python3)"
    before = run.out(look)
    attack(run, state_dir, "nothing")
    assert run.out(look) == before
    for name in "python", "python3":
        assert run.out(f"{name} -c 'print(6 * 7)'") == "42\n"


# containerd's and Docker's default set: the numbers of linux/capability.h.
CONTAINER_CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "SYS_CHROOT": 18,
    "MKNOD": 27,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}

OWN_CAPABILITIES = """
import json
with open("/proc/self/status") as status:
    lines = [line.split() for line in status if line.startswith("Cap")]
print(json.dumps({line[0]: line[1] for line in lines}))
"""


@pytest.mark.both_shapes
def test_commands_have_no_capability_that_a_container_would_not_give_them(
    run: Run, target: Target
) -> None:
    """The sets are read and no capability is used: SYS_TIME would set the clock of this machine."""
    shown = json.loads(run.python(OWN_CAPABILITIES).stdout)
    sets = {name.rstrip(":"): int(text, 16) for name, text in shown.items()}
    told = target.capabilities()["root_capabilities"]
    if run.out("id -u").strip() == "0":
        assert (
            sets["CapEff"]
            == sets["CapBnd"]
            == sum(1 << CONTAINER_CAPABILITIES[name] for name in told)
        )
    else:
        assert told == []
        assert sets["CapEff"] == sets["CapPrm"] == sets["CapInh"] == 0


OPEN_BY_HANDLE = """
import ctypes, os, sys
class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_char * 128)]
libc = ctypes.CDLL(None, use_errno=True)
handle, mount_id = Handle(128), ctypes.c_int()
folder = os.open(".", os.O_RDONLY)
EMPTY_PATH = 0x1000
found = libc.name_to_handle_at(
    folder, b"", ctypes.byref(handle), ctypes.byref(mount_id), EMPTY_PATH
)
if found != 0: sys.exit("no handles here")
if libc.open_by_handle_at(folder, ctypes.byref(handle), os.O_RDONLY) >= 0: sys.exit("opened")
print(os.strerror(ctypes.get_errno()))
"""


@pytest.mark.both_shapes
def test_no_command_opens_files_by_handle(run: Run) -> None:
    """open_by_handle_at(2) takes no path, so no cover stops the call."""
    ran = run.python(OPEN_BY_HANDLE)
    assert ran.stdout == "Operation not permitted\n" or "no handles here" in ran.stderr
