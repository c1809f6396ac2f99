"""A warden's silence: stops, starvation, a paused daemon."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.proc import spawn
from execd.proc.child import Lost
from execd.proc.client import WardenLost
from execd.proc.memory_stand_in import MemoryStandIn
from execd.proc.messages import Configure
from execd.proc.reaper import Reaper
from execd.proc.warden_process import STARVED_FACTOR, STARVING_TASKS, WardenProcess
from tests.proc.conftest import Wardens, living, new_token
from tests.proc.test_client import exit_of, replaced, warden_pid
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from execd.proc.client import WardenClient
    from execd.proc.namespaces import Started


async def test_a_stopped_warden_is_continued_and_not_replaced(wardens: Wardens) -> None:
    # SIGCHLD does not wake the loop of the test if the kernel delivers the signal to a different
    # thread. Then the next ping continues the warden.
    async with wardens.start(ping_seconds=0.5, dead_seconds=60.0) as client:
        program = await wardens.run(
            client, "read x; exit 5", stdio=[0, 1, 1], descriptors=[*_pipe_and_null()]
        )
        pid = warden_pid(client)
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)
        assert (client.restarts, warden_pid(client)) == (0, pid)
        program.child.kill(0.0)
        await asyncio.wait_for(program.child.killed, 20)


@pytest.mark.parametrize(("more_tasks", "is_patient"), [(0, False), (STARVING_TASKS + 1, True)])
async def test_silent_warden_beside_a_crowd_has_more_time_before_it_is_replaced(
    wardens: Wardens, monkeypatch: pytest.MonkeyPatch, more_tasks: int, is_patient: bool
) -> None:
    # The stop simulates a starved warden.
    monkeypatch.setattr(WardenProcess, "send_signal", lambda _warden, _number: None)
    usual_tasks = 100
    monkeypatch.setattr(spawn, "count_tasks", lambda: usual_tasks)
    async with wardens.start(ping_seconds=0.05, dead_seconds=10.0) as client:
        await wardens.run(client, f"sleep {new_token()}")
        monkeypatch.setattr(spawn, "count_tasks", lambda: usual_tasks + more_tasks)
        become_impatient(client, 0.2)
        missed_before = client.missed_pings
        os.kill(warden_pid(client), signal.SIGSTOP)
        await replaced(client)
        needed = 0.2 / 0.05 * STARVED_FACTOR / 2
        assert (client.missed_pings - missed_before > needed) == is_patient


@pytest.mark.parametrize("n_answers", [30, 5])
async def test_only_pings_without_an_answer_begin_the_watch_over_memory(
    monkeypatch: pytest.MonkeyPatch, n_answers: int
) -> None:
    """The answers come shortly before the next ping."""
    monkeypatch.setattr("execd.proc.warden_process.PATIENCE_SECONDS", 0.1)
    loop, begun, pings = asyncio.get_running_loop(), [], []
    channel = SimpleNamespace(lost=asyncio.Event(), was_used=asyncio.Event(), has_received=False)

    def send_ping() -> None:
        pings.append(loop.time())
        if len(pings) <= n_answers:
            loop.call_later(0.03, setattr, channel, "has_received", True)
        if len(pings) == 30:
            channel.lost.set()

    stand_in = SimpleNamespace(begin=lambda: begun.append(len(pings)))
    warden = WardenProcess(None, stand_in, ping_seconds=0.04, dead_seconds=60.0)
    warden._channel = channel
    await warden.watch(send_ping, lambda: None, lambda _lag: None)
    assert warden._patience is not None
    warden._patience.cancel()
    assert all(n_pings > n_answers for n_pings in begun)
    assert bool(begun) is (n_answers < 30)


async def test_no_pings_are_sent_while_no_user_code_lives(wardens: Wardens) -> None:
    async with wardens.start(ping_seconds=0.02) as client:
        await wait_until_async(lambda: is_resting(client), 20)
        program = await wardens.run(client, f"sleep {new_token()}")
        n_pings = client._ping
        await wait_until_async(lambda: client._ping > n_pings + 20, 20)
        assert not is_resting(client)
        program.child.kill(0.0)
        await wait_until_async(lambda: is_resting(client), 20)


async def test_a_process_that_a_program_leaves_behind_keeps_the_pings_going(
    wardens: Wardens,
) -> None:
    token = new_token()
    async with wardens.start(ping_seconds=0.02) as client:
        program = await wardens.run(client, f"env -i setsid sleep {token} </dev/null >&0 2>&0 &")
        assert await exit_of(program) == Exit(0, None)
        await wait_until_async(lambda: bool(living(token)), 20)
        n_pings = client._ping
        await wait_until_async(lambda: client._ping > n_pings + 100, 20)
        assert not is_resting(client)
        for pid in living(token):
            os.kill(pid, signal.SIGKILL)
        await wait_until_async(lambda: is_resting(client), 20)


async def test_a_warden_that_hangs_while_no_user_code_lives_is_found_at_the_next_request(
    wardens: Wardens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WardenProcess, "send_signal", lambda _warden, _number: None)
    async with wardens.start(ping_seconds=0.05, dead_seconds=10.0) as client:
        await wait_until_async(lambda: is_resting(client), 20)
        become_impatient(client, 0.2)
        os.kill(warden_pid(client), signal.SIGSTOP)
        with pytest.raises(WardenLost):
            await asyncio.wait_for(wardens.run(client, "true"), 20)
        await replaced(client)
        assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


def become_impatient(client: WardenClient, dead_seconds: float) -> None:
    """Replace the present warden after a short silence. The next warden has its time: a spawn
    silences a warden too."""
    assert client._warden is not None
    client._warden._dead_seconds = dead_seconds


def is_resting(client: WardenClient) -> bool:
    return client._warden is not None and client._warden.is_resting


def _pipe_and_null() -> Iterator[int]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.close(write_end)
    yield read_end
    yield os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


STOPPER = "import os, signal, sys\nwhile True:\n    os.kill(int(sys.argv[1]), signal.SIGSTOP)"


async def test_warden_that_is_stopped_without_end_goes_on_or_is_replaced(wardens: Wardens) -> None:
    """The outcome depends on the CPU time of each process. In both outcomes programs run to their
    ends."""
    async with wardens.start(ping_seconds=0.1, dead_seconds=10.0) as client:
        token = new_token()
        program = await wardens.run(client, f"sleep {token}")
        first = warden_pid(client)
        become_impatient(client, 0.3)
        # Two stoppers: the first stops the warden while the second waits for a processor.
        stoppers = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", STOPPER, str(first)], stderr=subprocess.DEVNULL
            )
            for _ in range(2)
        ]
        try:
            await asyncio.wait((program.child.exited,), timeout=3)
            become_impatient(client, 60.0)
        finally:
            for stopper in stoppers:
                stopper.kill()
                stopper.wait()
        if program.child.exited.done():
            assert isinstance(program.child.exited.result(), Lost)
            await replaced(client)
            assert warden_pid(client) != first
        else:
            program.child.kill(0.0)
            await asyncio.wait_for(program.child.killed, 20)
        assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)
        assert living(token) == []


PAUSED_DAEMON = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from execd.proc.client import WardenClient
from execd.proc.messages import NULL_DEVICE, Spawn
from execd.proc.namespaces import View
from execd.proc.program_block import pack
from execd.proc.reaper import Reaper
from execd.proc.spawn import KEEP_IDENTITY

async def main():
    state = sys.argv[2]
    os.makedirs(state + "/bin")
    client = WardenClient(
        lambda: View(state, state + "/bin", {}), Reaper(everything=False),
        module="execd.warden.main", policy=sys.argv[3], ping_seconds=0.1, dead_seconds=1.5,
    )
    await client.start()
    request = Spawn(client.new_tag(), pack(["/bin/sleep", "60"], {}, "/"), [NULL_DEVICE] * 3,
        False, [], 0, "A=1", None, None, None)
    child = await client.launch(request, [], lambda *_: None)
    for _ in range(2):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(0.3)
    print(client.restarts, child.exited.done(), flush=True)
    await client.close()

asyncio.run(main())
"""


async def test_a_daemon_that_was_paused_for_longer_than_a_warden_may_be_silent_keeps_it(
    wardens: Wardens, tmp_path: object
) -> None:
    """A snapshot or a frozen pod stops both processes: the clock moves on, and the warden was not
    silent."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(exit_status.__file__))))
    paused = 0
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED_DAEMON, root, f"{tmp_path}/other", wardens.policy],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        while (line := await asyncio.to_thread(daemon.stdout.readline)) == "ready\n":
            daemon.send_signal(signal.SIGSTOP)
            begin = asyncio.get_running_loop().time()
            await wait_until_async(
                lambda begin=begin: asyncio.get_running_loop().time() > begin + 2.0
            )  # type: ignore[misc]
            daemon.send_signal(signal.SIGCONT)
            paused += 1
            daemon.stdin.write("\n")
    assert paused == 2
    assert line == "0 False\n"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_cancelled_start_stays_cancelled_when_the_start_fails(is_cancelled: bool) -> None:
    """Otherwise the task for replacing lost wardens would outlive ``WardenClient.close``."""
    is_running, may_fail = threading.Event(), threading.Event()

    def launch(_end: socket.socket) -> Started:
        is_running.set()
        may_fail.wait(10)
        raise OSError("no warden today")

    reaper = Reaper(everything=False)
    stand_in = MemoryStandIn(
        asyncio.get_running_loop(),
        Configure(0, 0),
        runtime_bytes=lambda: 0,
        end_all=lambda: None,
    )
    warden = WardenProcess(reaper, stand_in, ping_seconds=1.0, dead_seconds=1.0)
    try:
        starting = asyncio.create_task(warden.start(launch, lambda _: None))
        await wait_until_async(is_running.is_set)
        if is_cancelled:
            starting.cancel()
            await asyncio.sleep(0)
        may_fail.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else OSError):
            await starting
        assert await warden.end("closed", math.inf) == ()
    finally:
        reaper.close()
