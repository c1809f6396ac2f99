"""Cells that flood their own session's protocol with frames: the daemon answers, and only the
flooding sessions are hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .attack import Neighbours, probing

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from .sessions import Session
    from .target import Target

pytestmark = pytest.mark.usefixtures("confined")

N_SESSIONS = 16

# Finds the worker's sockets, and writes to each socket from a separate thread. The protocol's
# socket is among them.
FLOOD = """
import json, os, socket, threading, time
def frame(**fields):
    data = json.dumps(fields).encode()
    return len(data).to_bytes(4, "big") + data
def flood(fd):
    with socket.socket(fileno=os.dup(fd)) as end:
        while True: end.sendall(batch)
batch = {batch}
for fd in map(int, os.listdir("/proc/self/fd")):
    try: is_socket = os.readlink(f"/proc/self/fd/{{fd}}").startswith("socket:")
    except OSError: continue
    if is_socket: threading.Thread(target=flood, args=(fd,), daemon=True).start()
time.sleep(60)
"""
# Valid frames of a worker that change nothing: answers to no question, and frames about another
# cell.
IGNORED = {
    "answers to no question": "frame(type='configured') * 3000",
    "ends of another cell": (
        "frame(type='done', id=0, status='success', execution_count=1, exit=None) * 1000"
    ),
    "displays of another cell": "frame(type='clear_output', id=0, wait=False) * 2000",
}
LARGE = (
    "frame(type='display', id=0, data=dict(x='x' * 30_000_000), metadata={}, "
    "display_id=None, update=False)"
)


@pytest.mark.parametrize("kind", IGNORED)
def test_frames_that_mean_nothing_end_their_worker_and_hold_up_nobody(
    target: Target, client: httpx.Client, new_session: Callable[..., Session], kind: str
) -> None:
    neighbours = Neighbours(target, client)
    sessions = [new_session() for _ in range(N_SESSIONS)]
    with neighbours.beside(), probing(target):
        cells = [
            session.start(FLOOD.format(batch=IGNORED[kind]), timeout_seconds=30)
            for session in sessions
        ]
        ended = [session.ended(cell) for session, cell in zip(sessions, cells, strict=True)]
    assert [(one["exit_reason"], "frames" in one["message"]) for one in ended] == [
        ("worker_died", True)
    ] * N_SESSIONS, ended
    after = sessions[0].run("1 + 1")
    assert (after["result"]["data"]["text/plain"], after["state_lost"]) == ("2", True)


def test_large_frames_that_mean_nothing_hold_up_nobody(
    target: Target, client: httpx.Client, new_session: Callable[..., Session]
) -> None:
    neighbours = Neighbours(target, client)
    sessions = [new_session() for _ in range(4)]
    with neighbours.beside(), probing(target):
        cells = [
            session.start(FLOOD.format(batch=LARGE), timeout_seconds=5) for session in sessions
        ]
        ended = [session.ended(cell) for session, cell in zip(sessions, cells, strict=True)]
    # as fast as the machine makes them
    assert {one["exit_reason"] for one in ended} <= {"worker_died", "timeout"}, ended


def test_honest_output_of_many_cells_passes_and_holds_up_nobody(
    target: Target, client: httpx.Client, new_session: Callable[..., Session]
) -> None:
    sessions = [new_session() for _ in range(N_SESSIONS)]
    code = (
        "for n in range(8000): display({'text/plain': f'{n}'}, raw=True)\n"
        "print('x' * 5_000_000)\n"
        "'last'"
    )
    with probing(target):
        cells = [session.start(code, timeout_seconds=60) for session in sessions]
        ended = [session.ended(cell) for session, cell in zip(sessions, cells, strict=True)]
    assert [one["exit_reason"] for one in ended] == ["exited"] * N_SESSIONS
    for one in ended:
        assert [shown["data"]["text/plain"] for shown in one["displays"]] == [
            str(n) for n in range(8000)
        ]
        assert one["truncated"]["stdout"]["total_bytes"] == 5_000_001
        assert one["result"]["data"]["text/plain"] == "'last'"
