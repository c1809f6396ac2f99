"""The client with real wardens: loss and replacement. No caller waits forever."""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import psutil
import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.proc.child import Lost
from execd.proc.client import SpawnError, WardenClient, WardenLost
from execd.proc.messages import NULL_DEVICE, Exited, Killed
from tests.gvisor import is_gvisor
from tests.proc import conftest
from tests.proc.conftest import PATH, Wardens, living, new_token
from tests.waiting import wait_until_async


async def exit_of(program: object) -> Exit:
    ended = await asyncio.wait_for(program.child.exited, 20)  # type: ignore[attr-defined]
    assert isinstance(ended, Exited)
    return exit_status.decode(ended.wait_status)


def warden_pid(client: WardenClient) -> int:
    assert client.pid is not None
    return client.pid


async def replaced(client: WardenClient, restarts: int = 1) -> None:
    await wait_until_async(lambda: client.restarts >= restarts and client.up.is_set(), 20)


TREE = (
    "(setsid sh -c '(env -i setsid sleep SECONDS &) ; trap \"\" TERM; sleep SECONDS' &) ; "
    "echo ready; sleep SECONDS"
)


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
    if is_gvisor():  # reports the end of an init while members with a KILL still end
        await wait_until_async(lambda: living(token) == [])
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
            await conftest.spawn(
                client,
                argv=["/bin/sh", "-c", "true " + "x" * 100_000],
                stdio=[NULL_DEVICE, 0, 0],
                descriptors=[null],
                marker="M=1",
                on_limit=lambda *_: None,
            )
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


async def test_what_was_sent_is_confirmed_to_each_caller(
    wardens: Wardens, client: WardenClient
) -> None:
    async with asyncio.timeout(20):
        await client.confirm_sent()
        first, second = client.confirm_sent(), client.confirm_sent()
        await second
        assert first.done(), "the warden has acted on what came before"


async def test_written_bytes_are_told_for_each_tree_and_a_lost_warden_tells_none(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await wardens.run(
        client, "head -c 100000 /dev/zero > /dev/null; echo ready; sleep 60"
    )
    told = await asyncio.wait_for(client.read_written(), 20)
    assert told is not None
    assert told.tags == [program.child.tag]
    client.end_tree(program.child.tag)
    await asyncio.wait_for(program.child.exited, 20)
    os.kill(warden_pid(client), signal.SIGSTOP)
    waiting = client.read_written()
    os.kill(warden_pid(client), signal.SIGKILL)
    assert await asyncio.wait_for(waiting, 20) is None
