"""A daemon that hears of everything too late: stopped for seconds while commands and cells end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from .conftest import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .target import Target

# Without namespaces user code finds the daemon (the parent of its parent) and may stop the daemon,
# natively and in gVisor alike.
FIND_DAEMON = "read -r _ _ _ daemon _ < /proc/$PPID/stat; "
# The program itself stops the daemon, so the daemon stands still when the program ends, however
# slow the machine is.
STOP_DAEMON = (
    "setsid sh -c 'sleep 5; kill -CONT $0' $daemon > /dev/null 2>&1 &"
    " sleep 0.3; kill -STOP $daemon; "
)
LIMIT_SECONDS = 3.0


@pytest.fixture
def client(own_daemon: Callable[..., Target]) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=own_daemon("--namespaces=off").url, timeout=60, trust_env=False
    ) as made:
        yield made


def test_command_that_ended_in_time_is_no_timeout_though_the_daemon_was_stopped(
    client: httpx.Client,
) -> None:
    ran = Run(client)(FIND_DAEMON + STOP_DAEMON + "echo done", timeout_seconds=LIMIT_SECONDS)
    assert (ran.exit_reason, ran.exit_code, ran.timed_out, ran.stdout) == (
        "exited",
        0,
        False,
        "done\n",
    )
    assert ran.elapsed_seconds > LIMIT_SECONDS, "the daemon was stopped until after the deadline"


def test_command_that_ended_too_late_is_a_timeout_though_the_daemon_was_stopped(
    client: httpx.Client,
) -> None:
    ran = Run(client)(
        FIND_DAEMON + STOP_DAEMON + "sleep 3.2; echo done", timeout_seconds=LIMIT_SECONDS
    )
    assert (ran.exit_reason, ran.exit_code, ran.stdout) == ("timeout", 124, "done\n")


def test_cell_that_ended_in_time_is_no_timeout_though_the_daemon_was_stopped(
    client: httpx.Client,
) -> None:
    session = client.post("/v1/sessions", json={}).json()["id"]
    daemon = Run(client)(FIND_DAEMON + "echo $daemon").stdout.strip()
    stop = f"daemon={daemon}; {STOP_DAEMON}"
    wish = {
        "code": f"import os; os.system({stop!r}); 1 + 1",
        "timeout_seconds": LIMIT_SECONDS,
    }
    said = client.post(f"/v1/sessions/{session}/execute", json=wish).json()
    assert (said["exit_reason"], said["status"], said["result"]["data"]["text/plain"]) == (
        "exited",
        "success",
        "2",
    )
    assert said["duration_seconds"] > LIMIT_SECONDS, (
        "the daemon was stopped until after the deadline"
    )
