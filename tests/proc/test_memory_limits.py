"""Memory limits and the reserve with real programs. CI tries both shapes. Nothing may run beside
these tests, so a developer waits for one shape only.

/proc/meminfo is of the machine natively and of the sandbox in gVisor. Programs beside the test move
the native figures, so a program to be killed grows until the KILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.proc.client import WardenClient
from execd.proc.memory_meter import parse_meminfo, parse_zoneinfo
from execd.proc.messages import Configure, Exited, Killed
from execd.proc.namespaces import View
from execd.proc.reaper import Reaper
from tests.proc.conftest import SHAPES, Program, Wardens, living, new_token
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.alone

IN_CI = settings().max_examples >= 100
MIB = 1 << 20
# Far more than a hog should get here, and little enough for the machine to survive.
CAP_MIB = 3000

HOLD = """
import signal, sys
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
print("holding", flush=True)
signal.pause()
"""
HOG = f"""
kept = []
print("begins", flush=True)
for _ in range({CAP_MIB} // 4):
    kept.append(bytearray(b"x") * (4 << 20))
print("survived", flush=True)
"""
PACED_HOG = f"""
import sys, time
kept = [bytearray(b"x") * (int(sys.argv[1]) << 20)]
print("begins", flush=True)
for _ in range({CAP_MIB} // 4):
    kept.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.05)
print("survived", flush=True)
"""
"""Takes the given number of MiB at once, and then at most 80 MiB a second.

A second tree ends when free memory falls to half of the memory left at the first decision. HOG
fills this half within 30 ms. A busy machine may keep the KILL, or the sender of the KILL, from the
CPU for as long. One paced hog needs more than two seconds, two at once more than one.
"""
FORKS = """
import os, sys, time
size, n = int(sys.argv[1]) << 20, int(sys.argv[2])
write, seconds = sys.argv[3] == "write", float(sys.argv[4])
data = bytearray(b"x") * size
read_end, write_end = os.pipe()
for _ in range(n):
    if os.fork() == 0:
        os.close(write_end)
        if write:
            data[:: 4096] = b"y" * len(range(0, size, 4096))
        os.read(read_end, 1)
        os._exit(0)
os.close(read_end)
print("forked", flush=True)
time.sleep(seconds)
sys.exit(9)
"""
MEMFD_HOG = """
import os, signal, sys
fd = os.memfd_create("hog")
piece = b"x" * (4 << 20)
print("begins", flush=True)
for _ in range(int(sys.argv[1]) // 4):
    os.write(fd, piece)
print("filled", flush=True)
signal.pause()
"""


async def run_python(
    wardens: Wardens, client: WardenClient, code: str, *arguments: object, memory_bytes: int = 0
) -> Program:
    argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    return await wardens.run(client, "", argv=argv, memory_bytes=memory_bytes)


async def exited(program: Program) -> Exited:
    ended = await asyncio.wait_for(program.child.exited, 30)
    assert isinstance(ended, Exited)
    return ended


async def ended_by_memory(program: Program) -> int:
    """Wait until the tree has ended for memory and for no second limit; return the memory of the
    tree. Beside a late warden the daemon ends the tree first, and then both report the limit."""
    killed = await asyncio.wait_for(program.child.killed, 30)
    assert isinstance(killed, Killed)
    assert killed.survivors == []
    assert {limit for limit, _ in program.limits_reached} == {"memory"}
    assert exit_status.decode((await exited(program)).wait_status) == Exit(None, signal.SIGKILL)
    return program.limits_reached[0][1]


async def end(program: Program) -> None:
    program.child.kill(0.0)
    await asyncio.wait_for(program.child.killed, 30)


def assert_untouched(*programs: Program) -> None:
    for program in programs:
        assert not program.child.exited.done()
        assert program.limits_reached == []


def used_bytes() -> int:
    used = parse_meminfo(Path("/proc/meminfo").read_bytes()).used_bytes
    with contextlib.suppress(FileNotFoundError):
        used -= parse_zoneinfo(Path("/proc/zoneinfo").read_bytes())
    return used


async def settled_used_bytes() -> int:
    """Return the used memory, once the memory of earlier tests is back; gVisor needs 0.1 s for a
    gigabyte."""
    readings: deque[int] = deque(maxlen=60)

    def stands_still() -> bool:
        readings.append(used_bytes())
        return len(readings) == readings.maxlen and readings[0] - readings[-1] < 8 * MIB

    await wait_until_async(stands_still, 20)
    return readings[-1]


@pytest.fixture(params=SHAPES if IN_CI else SHAPES[:1])
def wardens(request: pytest.FixtureRequest, tmp_path: Path) -> Wardens:
    return Wardens(tmp_path, request.param)


@contextlib.asynccontextmanager
async def guarded(
    wardens: Wardens, *, reserve_bytes: int, pod_bytes: int, ping_seconds: float = 2.0
) -> AsyncIterator[WardenClient]:
    reaper = Reaper(everything=False)
    view = View(str(wardens.state_dir), str(wardens.state_dir / "bin"), {})
    client = WardenClient(
        lambda: view,
        reaper,
        module="execd.warden.main",
        policy=wardens.policy,
        ping_seconds=ping_seconds,
        # A silent warden is not replaced: all user code would end with the warden.
        dead_seconds=60.0,
        configuration=Configure(reserve_bytes, pod_bytes),
    )
    try:
        await client.start()
        yield client
        assert client.restarts == 0
    finally:
        await client.close()
        reaper.close()


def test_anonymous_memory_shows_at_once_when_it_is_taken_and_when_it_is_given_back() -> None:
    def anonymous() -> int:
        return parse_meminfo(Path("/proc/meminfo").read_bytes()).anonymous_bytes

    before = anonymous()
    held = bytearray(b"x") * (400 * MIB)
    grown = anonymous() - before
    del held
    assert grown > 200 * MIB
    assert anonymous() - before < grown - 200 * MIB


# Limits.


async def test_a_memory_bomb_over_its_limit_ends_and_its_neighbour_runs_on(
    wardens: Wardens, client: WardenClient
) -> None:
    beside = await run_python(wardens, client, HOLD, 150, memory_bytes=300 * MIB)
    await beside.says("holding")
    hog = await run_python(wardens, client, HOG, memory_bytes=300 * MIB)
    held = await ended_by_memory(hog)
    assert "survived" not in hog.text
    assert 300 * MIB < held < CAP_MIB * MIB
    assert (await exited(hog)).peak_tree_bytes >= held
    assert_untouched(beside)
    await end(beside)


async def test_the_memory_of_a_whole_tree_counts_and_the_whole_tree_ends(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    part = f"{shlex.quote(sys.executable)} -I -S -c '{HOLD}' 250 {token}"
    program = await wardens.run(
        client, f"(setsid {part} &); {part} & {part} & {part} & wait", memory_bytes=400 * MIB
    )
    assert await ended_by_memory(program) > 400 * MIB
    assert living(token) == []


async def test_a_tree_below_its_limit_is_left_alone_and_its_figures_are_told(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await run_python(wardens, client, FORKS, 100, 2, "write", 3, memory_bytes=600 * MIB)
    ended = await exited(program)
    assert (exit_status.decode(ended.wait_status), program.limits_reached) == (Exit(9, None), [])
    assert 300 * MIB < ended.peak_tree_bytes < 450 * MIB
    assert ended.processes == 3
    assert 100 * MIB < ended.max_rss_bytes < 200 * MIB


async def test_pages_shared_after_a_fork_do_not_count_again_for_each_process(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await run_python(wardens, client, FORKS, 300, 4, "read", 3, memory_bytes=1000 * MIB)
    ended = await exited(program)
    assert (exit_status.decode(ended.wait_status), program.limits_reached) == (Exit(9, None), [])
    assert ended.peak_tree_bytes > 1400 * MIB, "it was seen, as RSS tells it, and not believed"


async def test_pages_written_after_a_fork_do_count(wardens: Wardens, client: WardenClient) -> None:
    program = await run_python(wardens, client, FORKS, 300, 4, "write", 60, memory_bytes=600 * MIB)
    assert await ended_by_memory(program) > 600 * MIB


# The reserve. The size of the pod is the present usage and a margin.


async def test_the_reserve_is_kept_by_ending_the_hog_alone(wardens: Wardens) -> None:
    async with guarded(
        wardens, reserve_bytes=400 * MIB, pod_bytes=await settled_used_bytes() + 1200 * MIB
    ) as client:
        beside = [await run_python(wardens, client, HOLD, size) for size in (20, 60, 100)]
        for program in beside:
            await program.says("holding")
        hog = await run_python(wardens, client, PACED_HOG, 500)
        assert await ended_by_memory(hog) > 100 * MIB
        assert "survived" not in hog.text
        await end(await wardens.run(client, "true"))
        # longer than a cascade would need to go on
        await exited(await wardens.run(client, "sleep 0.8"))
        assert_untouched(*beside)


async def test_two_hogs_at_once_both_end_and_their_neighbour_does_not(wardens: Wardens) -> None:
    async with guarded(
        wardens, reserve_bytes=400 * MIB, pod_bytes=await settled_used_bytes() + 1000 * MIB
    ) as client:
        beside = await run_python(wardens, client, HOLD, 50)
        await beside.says("holding")
        hogs = [await run_python(wardens, client, PACED_HOG, 200) for _ in range(2)]
        for hog in hogs:
            assert await ended_by_memory(hog) > 50 * MIB
        assert_untouched(beside)


async def test_the_reserve_is_kept_by_ending_the_largest(
    wardens: Wardens, client: WardenClient
) -> None:
    holders = [await run_python(wardens, client, HOLD, size) for size in (150, 500, 300)]
    for holder in holders:
        await holder.says("holding")
    # The grower takes 100 MiB of the reserve, however late the KILL of the first tree comes. A
    # second tree would end only at half of the reserve.
    client.send(Configure(400 * MIB, await settled_used_bytes() + 600 * MIB))
    grower = await run_python(wardens, client, HOLD, 300)
    assert await ended_by_memory(holders[1]) >= 500 * MIB
    assert_untouched(holders[0], holders[2], grower)


async def test_memory_of_a_memfd_is_told_and_blamed_on_no_process(
    wardens: Wardens, caplog: pytest.LogCaptureFixture
) -> None:
    # More than half of the reserve stays, also beside gVisor's own memory. Below a quarter of the
    # reserve the daemon ends everything if the warden is late for a moment, as on a busy machine
    # (memory_stand_in).
    async with guarded(
        wardens, reserve_bytes=1000 * MIB, pod_bytes=await settled_used_bytes() + 1850 * MIB
    ) as client:
        beside = await run_python(wardens, client, HOLD, 60)
        await beside.says("holding")
        hog = await run_python(wardens, client, MEMFD_HOG, 900)
        await wait_until_async(
            lambda: any("memory is short" in message for message in caplog.messages), 30
        )
        await hog.says("filled")
        assert_untouched(beside, hog)
        await end(hog)


async def test_a_reserve_that_was_never_whole_ends_nobody(wardens: Wardens) -> None:
    async with guarded(wardens, reserve_bytes=100 * MIB, pod_bytes=100 * MIB) as client:
        program = await run_python(wardens, client, FORKS, 200, 1, "write", 1.0)
        ended = await exited(program)
        assert (exit_status.decode(ended.wait_status), program.limits_reached) == (
            Exit(9, None),
            [],
        )


async def test_a_warden_with_two_hundred_programs_and_a_reserve_answers(wardens: Wardens) -> None:
    async with guarded(wardens, reserve_bytes=100 * MIB, pod_bytes=0) as client:
        programs = [
            await wardens.run(client, "sleep 100", memory_bytes=500 * MIB) for _ in range(200)
        ]
        hog = await run_python(wardens, client, HOG, memory_bytes=300 * MIB)
        await ended_by_memory(hog)
        assert_untouched(*programs)
