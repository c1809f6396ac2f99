"""A daemon that is restored in a pod with another token and another size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pytest

from tests.checkpoint.sandbox import Sandbox, ended
from tests.waiting import wait_until

OLD_BYTES, NEW_BYTES = 8 << 30, 1 << 30
HOG = f"import time; held = bytes([1]) * {NEW_BYTES}; time.sleep(5)"
"""Fits into the old pod, and not into the new pod."""
LOOK = """
import ctypes, os, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS, NEWPID = 0x10000000, 0x20000, 0x20000000

def look(folder):
    for name in os.listdir(f"{folder}/gvisor"): print(name, "in", folder, flush=True)

look("/proc")
for flags in NEWUSER, NEWUSER | NEWPID, NEWUSER | NEWNS, NEWNS:
    if os.fork() == 0:
        if libc.unshare(flags) == 0:
            if os.fork() == 0:
                libc.unshare(NEWNS)
                fresh = tempfile.mkdtemp()
                if libc.mount(b"proc", fresh.encode(), b"proc", 0, None) == 0:
                    look(fresh)
            else:
                os.wait()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
print("looked")
"""
"""Looks for the pod's environment in /proc, also in a fresh /proc in namespaces of its own."""
NOTICE_SECONDS = 60.0
HTTP_UNAUTHORIZED = 401


def variables(token: str, size_bytes: int) -> list[str]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return [f"EXECD_TOKEN_SHA256={digest}", f"EXECD_POD_MEMORY_BYTES={size_bytes}"]


@dataclass
class Visit:
    """What the restored daemon answered."""

    instance: dict[str, Any]
    pod_memory: dict[str, Any]
    old_token: int
    """HTTP status."""
    hog: dict[str, Any]
    report: dict[str, Any]
    look: dict[str, Any]


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    folder = tmp_path_factory.mktemp("restored-pod")
    flags = ("--namespaces", "require")
    with ended(Sandbox.make(folder, *flags, env=variables("old", OLD_BYTES))) as original:
        original.wait_ready()
        if not original.tells_restores:
            pytest.skip("this release of gVisor shows no environment of a restored pod")
        original.token = "old"
        found = original.ask("GET", "/v1/capabilities")["pod_memory"]
        assert found["size_bytes"] == OLD_BYTES
        original.checkpoint(folder / "image", goes_on=False)
    restored = original.restored(folder / "image", "new", env=variables("new", NEW_BYTES))
    with ended(restored):
        return visit_restored(restored)


def visit_restored(sandbox: Sandbox) -> Visit:
    sandbox.wait_ready()
    sandbox.token = "new"
    wait_until(lambda: sandbox.reply("GET", "/v1/stats")[0] != HTTP_UNAUTHORIZED, NOTICE_SECONDS)
    found = sandbox.ask("GET", "/v1/capabilities")
    hog = sandbox.ask("POST", "/v1/executions", argv=["python3", "-c", HOG])
    look = sandbox.ask("POST", "/v1/executions", argv=["python3", "-c", LOOK])
    report = sandbox.ask("POST", "/v1/restored")
    sandbox.token = "old"
    return Visit(
        instance=found["instance"],
        pod_memory=found["pod_memory"],
        old_token=sandbox.reply("GET", "/v1/stats")[0],
        hog=hog,
        report=report,
        look=look,
    )


def test_gvisor_tells_of_a_restore(visit: Visit) -> None:
    assert visit.instance["restores"] == 1
    assert visit.report["instance_id"] == visit.instance["id"]
    assert visit.report["cause"] == "file"


def test_the_token_of_the_restored_pod_takes_the_place_of_the_old_token(visit: Visit) -> None:
    assert visit.old_token == HTTP_UNAUTHORIZED


def test_the_memory_of_the_restored_pod_is_guarded(visit: Visit) -> None:
    assert visit.pod_memory["size_bytes"] == NEW_BYTES
    assert visit.hog["exit_reason"] == "memory_limit"


def test_user_code_does_not_see_the_environment_of_the_pod(visit: Visit) -> None:
    assert visit.look["stdout"] == "looked\n", visit.look
