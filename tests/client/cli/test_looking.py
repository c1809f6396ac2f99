"""``execctl stats`` and ``execctl doctor``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import execd
from tests.client.cli.conftest import ended

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    import pexpect

    Run = Callable[..., subprocess.CompletedProcess[str]]


def test_stats_shows_figures(execctl: Run) -> None:
    assert execd.__version__ in execctl("stats").stdout
    assert json.loads(execctl("stats", "--json").stdout)["ready"] is True


def test_stats_watches_until_ctrl_c(terminal: Callable[..., pexpect.spawn[str]]) -> None:
    child = terminal("stats", "--watch")
    for _ in range(2):
        child.expect("uptime")
    child.sendintr()
    assert ended(child) == 0


def test_doctor_tells_protections_limits_and_the_clock(execctl: Run) -> None:
    done = execctl("doctor", "--json")
    checks = {check["check"]: check for check in json.loads(done.stdout)}
    assert set(checks) == {
        *("reachable", "ready", "clock", "namespaces", "protections", "sessions"),
        *("memory of the pod", "commands", "journal"),
    }
    assert checks["reachable"]["found"] == f"execd {execd.__version__}"
    assert (done.returncode == 0) == all(check["ok"] for check in checks.values())
    shown = execctl("doctor").stdout
    assert all(name in shown for name in checks)
