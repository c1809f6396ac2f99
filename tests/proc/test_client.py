"""The client with real wardens: loss, replacement, and no caller that waits forever."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.proc import spawn
from execd.proc.child import Lost
from execd.proc.client import SpawnError, WardenClient, WardenLost
from execd.proc.messages import NULL_DEVICE, Exited, Killed
from execd.proc.spawn import KEEP_IDENTITY
from execd.proc.warden_process import STARVED_FACTOR, STARVING_TASKS, WardenProcess
from tests.proc.conftest import PATH, Wardens, living, new_token
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator


async def exit_of(program: object) -> Exit:
    ended = await asyncio.wait_for(program.child.exited, 20)  # type: ignore[attr-defined]
    assert isinstance(ended, Exited)
    return exit_status.decode(ended.wait_status)


def warden_pid(client: WardenClient) -> int:
    assert client.pid is not None
    return client.pid


async def replaced(client: WardenClient, restarts: int = 1) -> None:
    await wait_until_async(lambda: client.restarts >= restarts and client.up.is_set(), 20)


TREE = "(setsid sh -c '(env -i setsid sleep SECONDS &) ; trap \"\" TERM; sleep SECONDS' &) ; echo ready; sleep SECONDS"


async def test_a_killed_warden_takes_everything_along_and_a_new_one_serves(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    program = await wardens.run(client, TREE.replace("SECONDS", token))
    await wait_until_async(lambda: len(living(f"sleep {token}")) >= 3)
    first = warden_pid(client)
    os.kill(first, signal.SIGKILL)
    lost = await asyncio.wait_for(program.child.exited, 20)
    assert isinstance(lost, Lost)
    assert lost.survivors == ()
    assert isinstance(program.child.killed.result(), Lost)
    assert living(token) == [], "no program is reported ended while it runs"
    await replaced(client)
    assert warden_pid(client) != first
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


async def test_losing_one_warden_after_another_ends_with_one_that_serves(wardens: Wardens) -> None:
    async with wardens.start() as client:
        for number in range(1, 4):
            os.kill(warden_pid(client), signal.SIGKILL)
            await replaced(client, number)
        assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


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
    async with wardens.start(ping_seconds=0.05, dead_seconds=0.2) as client:
        usual_tasks = spawn.count_tasks()
        monkeypatch.setattr(spawn, "count_tasks", lambda: usual_tasks + more_tasks)
        os.kill(warden_pid(client), signal.SIGSTOP)
        await replaced(client)
        needed = 0.2 / 0.05 * STARVED_FACTOR / 2
        assert (client.missed_pings > needed) == is_patient


def _pipe_and_null() -> Iterator[int]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.close(write_end)
    yield read_end
    yield os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


STOPPER = "import os, signal, sys\nwhile True:\n    os.kill(int(sys.argv[1]), signal.SIGSTOP)"


async def test_warden_that_is_stopped_without_end_goes_on_or_is_replaced(wardens: Wardens) -> None:
    """The outcome depends on the CPU time of each process. In both outcomes programs run to their
    ends."""
    async with wardens.start(ping_seconds=0.1, dead_seconds=0.3) as client:
        token = new_token()
        program = await wardens.run(client, f"sleep {token}")
        first = warden_pid(client)
        # Two stoppers: one stops the warden while the second waits for a processor.
        stoppers = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", STOPPER, str(first)], stderr=subprocess.DEVNULL
            )
            for _ in range(2)
        ]
        try:
            await asyncio.wait((program.child.exited,), timeout=3)
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
from execd.proc.messages import NULL_DEVICE
from execd.proc.namespaces import View
from execd.proc.reaper import Reaper
from execd.proc.spawn import KEEP_IDENTITY

async def main():
    state = sys.argv[2]
    os.makedirs(state + "/bin")
    client = WardenClient(lambda: View(state, state + "/bin", {}), Reaper(everything=False), module="execd.warden.main", policy=sys.argv[3], ping_seconds=0.1, dead_seconds=0.5)
    await client.start()
    child = await client.spawn(argv=["/bin/sleep", "60"], env={}, cwd="/", stdio=[NULL_DEVICE] * 3, descriptors=[], marker="A=1", limits=[],
                               processes=0, identity=KEEP_IDENTITY, on_limit=lambda *_: None)
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
                lambda begin=begin: asyncio.get_running_loop().time() > begin + 1.0
            )  # type: ignore[misc]
            daemon.send_signal(signal.SIGCONT)
            paused += 1
            daemon.stdin.write("\n")
    assert paused == 2
    assert line == "0 False\n"


async def test_a_spawn_cancelled_in_flight_leaves_no_program_and_no_descriptor(
    wardens: Wardens, client: WardenClient
) -> None:
    tokens = [new_token() for _ in range(20)]
    for token in tokens:
        task = asyncio.create_task(wardens.run(client, f"sleep {token} & sleep {token}"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # Requests are served in order: this answer comes after the cancelled requests.
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)
    await wait_until_async(lambda: not any(living(f"sleep {token}") for token in tokens))


async def test_requests_while_there_is_no_warden_are_told_so_and_their_descriptors_closed(
    wardens: Wardens,
) -> None:
    async with wardens.start() as client:
        pass
    with pytest.raises(WardenLost):
        await wardens.run(client, "true")


async def test_requests_in_flight_when_the_warden_dies_are_told_so(
    wardens: Wardens, client: WardenClient
) -> None:
    pid = warden_pid(client)
    os.kill(pid, signal.SIGSTOP)
    # more requests than the socket holds
    tasks = [asyncio.create_task(wardens.run(client, "true")) for _ in range(300)]
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert {type(outcome) for outcome in outcomes} == {WardenLost}
    await replaced(client)


async def test_requests_queue_up_behind_a_stopped_warden_and_are_all_served(
    wardens: Wardens,
) -> None:
    async with wardens.start(ping_seconds=0.3, dead_seconds=10.0) as client:
        os.kill(warden_pid(client), signal.SIGSTOP)
        programs = await asyncio.wait_for(
            asyncio.gather(*(wardens.run(client, f"exit {n % 100}") for n in range(300))), 30
        )
        assert [await exit_of(program) for program in programs] == [
            Exit(n % 100, None) for n in range(300)
        ]
        assert client.restarts == 0


async def test_a_long_request_without_a_descriptor_to_send_it_by_fails_and_leaks_nothing(
    wardens: Wardens, client: WardenClient
) -> None:
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(SpawnError, match="Too many open files"):
            await client.spawn(
                argv=["/bin/sh", "-c", "true " + "x" * 100_000], env=PATH, cwd="/", stdio=[NULL_DEVICE, 0, 0], descriptors=[null], marker="M=1",
                limits=[], processes=0, identity=KEEP_IDENTITY, on_limit=lambda *_: None,
            )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 10, 50, 200])
async def test_closing_at_any_moment_of_a_replacement_leaves_nothing(
    wardens: Wardens, turns: int
) -> None:
    """The guards look for remaining descriptors, tasks and wardens."""
    async with wardens.start() as client:
        os.kill(warden_pid(client), signal.SIGKILL)
        await wait_until_async(lambda: not client.up.is_set())
        for _ in range(turns):
            await asyncio.sleep(0.001)


async def test_closing_while_the_next_warden_is_being_started_leaves_nothing(
    wardens: Wardens,
) -> None:
    async with wardens.start() as client:
        assert client.started is not None
        first = client.started.pid
        os.kill(first, signal.SIGKILL)
        # A thread starts the process: the client cannot know the process yet.
        await wait_until_async(
            lambda: [child for child in psutil.Process().children() if child.pid != first]
        )


async def test_killed_is_said_after_exited(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(client, "sleep 1000")
    order: list[str] = []
    program.child.exited.add_done_callback(lambda _: order.append("exited"))
    program.child.killed.add_done_callback(lambda _: order.append("killed"))
    program.child.kill(0.0)
    assert isinstance(await asyncio.wait_for(program.child.killed, 20), Killed)
    assert order == ["exited", "killed"]


async def test_a_released_child_receives_no_more(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(client, "exit 3")
    program.child.release()
    assert await exit_of(await wardens.run(client, "exit 4")) == Exit(4, None)
    assert not program.child.exited.done() or isinstance(program.child.exited.result(), Exited)


async def test_a_hundred_programs_at_once_each_get_their_own_end(
    wardens: Wardens, client: WardenClient
) -> None:
    programs = await asyncio.gather(
        *(wardens.run(client, f"echo {n}; exit {n}") for n in range(100))
    )
    assert [await exit_of(program) for program in programs] == [Exit(n, None) for n in range(100)]
    assert [program.text for program in programs] == [f"{n}\n" for n in range(100)]


async def test_a_program_may_have_more_descriptors_than_three(
    wardens: Wardens, client: WardenClient
) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    program = await wardens.run(
        client,
        "echo three >&3",
        stdio=[NULL_DEVICE, NULL_DEVICE, NULL_DEVICE, 0],
        descriptors=[write_end],
        env=PATH,
    )
    assert await exit_of(program) == Exit(0, None)
    assert os.read(read_end, 100) == b"three\n"
    os.close(read_end)
