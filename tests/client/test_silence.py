"""A pod that is gone tells nobody: packets vanish, or a peer accepts them and answers nothing. The
client stops waiting by itself, sooner than the SDK of agent-sandbox (120 s)."""

from __future__ import annotations

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from execd_client import ConnectionLost, Execd, Unreachable, cells, executions
from execd_client.calls import Patience
from execd_client.effects import Cut
from tests.client.conftest import AT_ONCE
from tests.client.plays import Clock, play
from tests.client.proxies import cutting_proxy
from tests.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd_client.effects import Plan
    from tests.conformance.target import Target

RETRY_SECONDS = 5.0
SILENCE_AND_PROBE_SECONDS = 25 + 10
CALLS: dict[str, Callable[[Execd], object]] = {
    "run": lambda client: client.run("sleep 300"),
    "start": lambda client: client.start("sleep 300"),
    "session": lambda client: client.sessions.get("silence").run("1 + 1"),
    "file": lambda client: client.files.read("a"),
}


@AT_ONCE
def test_each_call_to_an_address_that_falls_silent_ends(target: Target, sandbox: Execd) -> None:
    """Each call gives up 35 s after the last byte, where ``retry_seconds`` are fewer. All calls
    wait at the same time."""
    begun = threading.Event()

    def follow(client: Execd) -> None:
        for event in client.stream("echo begun; sleep 300"):
            if event.kind == "stdout":
                begun.set()

    with ExitStack() as ends:
        ends.enter_context(sandbox.sessions.create("silence"))
        proxy = ends.enter_context(cutting_proxy(target.address, random.Random(1)))
        client = Execd(f"http://127.0.0.1:{proxy.port}", retry_seconds=RETRY_SECONDS)
        ends.enter_context(client)
        pool = ends.enter_context(ThreadPoolExecutor(1 + len(CALLS)))
        ends.callback(proxy.speak)
        waits = {"stream": pool.submit(follow, client)}
        assert begun.wait(patience.seconds(30))
        proxy.fall_silent()
        silent_since = time.monotonic()
        waits |= {name: pool.submit(call, client) for name, call in CALLS.items()}
        for name, wait in waits.items():
            with pytest.raises(ConnectionLost, match="no answer from execd in 5 s"):
                wait.result()
            assert time.monotonic() - silent_since < patience(SILENCE_AND_PROBE_SECONDS + 5), name


def test_an_address_that_takes_no_connection_is_unreachable() -> None:
    with ExitStack() as ends:
        listener = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # The kernel drops the next requests for a connection.
            filler = ends.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        client = Execd(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_seconds=RETRY_SECONDS)
        ends.enter_context(client)
        with pytest.raises(Unreachable, match="ConnectTimeout"):
            client.run("true")


PLANS: dict[str, Callable[[Patience], Plan[Any]]] = {
    "run": lambda patience: executions.run(executions.EXECUTIONS, {"id": "x"}, patience),
    "stream": lambda patience: executions.follow(executions.EXECUTIONS, {"id": "x"}, patience),
    "wait": lambda patience: executions.wait("x", patience),
    "new session": lambda patience: cells.create({"id": "s"}, patience),
    "known session": lambda patience: cells.get_or_create({"id": "s"}, patience),
    "fork": lambda patience: cells.fork("s", 1, patience),
}


@pytest.mark.parametrize("made", PLANS.values(), ids=PLANS)
def test_with_the_clients_own_patience_a_silent_address_costs_70_seconds(
    made: Callable[[Patience], Plan[Any]],
) -> None:
    clock = Clock()
    began = clock.seconds

    def silent(effect: Any) -> Cut:
        clock.seconds += effect.request.silence_seconds
        return Cut("ReadTimeout", was_sent=True)

    with pytest.raises(ConnectionLost):
        play(made(Patience(clock=clock)), clock, silent)
    assert 60 <= clock.seconds - began < 73
