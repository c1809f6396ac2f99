"""A daemon with no setting but the address and the directories: only the defaults protect the
daemon."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
import pytest

from .attack import PROBE_SECONDS, Neighbours, probing
from .target import READ_SECONDS, execute_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .target import Target


@pytest.fixture
def daemon(own_daemon: Callable[..., Target], monkeypatch: pytest.MonkeyPatch) -> Target:
    for name in [
        name
        for name in os.environ
        if name.startswith(("EXECD_", "SANDBOX_")) and "CONFORMANCE" not in name
    ]:
        monkeypatch.delenv(name)
    return own_daemon()


@pytest.mark.timed
def test_daemon_without_any_limit_set_survives_a_crowd_a_flood_and_a_fork_bomb(
    daemon: Target, timed: Callable[[float, float], None]
) -> None:
    attacks = {
        "fork bomb": ("f() { f | f & }; f; sleep 100", 60.0),
        "flood": ("yes 1234567890", 15.0),
        "flood of errors": ("yes 1234567890 >&2", 15.0),
    }
    crowd = [
        "true",
        "ls /",
        "seq 200 | sort -n | tail -1",
        "python3 -c 'import json, re; print(1)'",
    ] * 8
    requests = [
        execute_bytes(command, timeout_seconds) for command, timeout_seconds in attacks.values()
    ]
    requests += [execute_bytes(command) for command in crowd]
    with (
        httpx.Client(base_url=daemon.url, timeout=READ_SECONDS, trust_env=False) as client,
        Neighbours(daemon, client).beside(),
        probing(daemon) as prober,
    ):
        answers = daemon.request_at_once(requests)
    bomb, flood, errors, *small = [answer.json() for answer in answers]
    assert bomb["exit_reason"] == "process_limit", bomb
    for flooding in flood, errors:
        assert flooding["exit_reason"] == "timeout"
        assert flooding["truncated"]
    assert {said["exit_code"] for said in small} == {0}, small
    timed(prober.worst_seconds, PROBE_SECONDS)
