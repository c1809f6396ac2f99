from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from execd.proc.reaper import Reaper
from tests.waiting import wait_until_async


@pytest.fixture
async def reaper() -> object:
    reaper = Reaper(everything=False)
    yield reaper
    reaper.close()


def child(program: str) -> int:
    return os.posix_spawn("/bin/sh", ["sh", "-c", program], {"PATH": "/bin:/usr/bin"})


def is_reaped(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


async def test_a_watched_child_is_reaped_when_it_ends(reaper: Reaper) -> None:
    pid = child("exit 0")
    reaper.watch(pid)
    assert await reaper.wait_gone(pid, 10)
    assert is_reaped(pid)


async def test_a_child_that_had_ended_before_it_was_watched_is_reaped(reaper: Reaper) -> None:
    pid = child("exit 0")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    reaper.watch(pid)
    assert await reaper.wait_gone(pid, 10)


async def test_a_child_that_lives_on_is_still_watched(reaper: Reaper) -> None:
    pid = child("exec sleep 1000")
    reaper.watch(pid)
    assert not await reaper.wait_gone(pid, 0.05)
    reaper.send_signal(pid, signal.SIGKILL)
    assert await reaper.wait_gone(pid, 10)
    assert is_reaped(pid)


async def test_what_is_not_watched_any_more_is_gone(reaper: Reaper) -> None:
    pid = child("exit 0")
    reaper.watch(pid)
    assert await reaper.wait_gone(pid, 10)
    assert await reaper.wait_gone(pid, 10)


async def test_a_child_that_was_reaped_or_never_watched_is_not_signaled(reaper: Reaper) -> None:
    pid = child("exec sleep 1000")
    reaper.send_signal(pid, signal.SIGKILL)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    reaper.watch(pid)
    os.kill(pid, signal.SIGKILL)
    assert await reaper.wait_gone(pid, 10)
    reaper.send_signal(pid, signal.SIGKILL)


async def test_a_child_that_is_reaped_and_still_watched_is_not_signaled(
    reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = child("exit 0")
    reaper.watch(pid)
    await wait_until_async(lambda: is_reaped(pid), 20)
    signaled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: signaled.append(call))
    reaper.send_signal(pid, signal.SIGKILL)
    assert not signaled, "the kernel may have given the number to another process"
    assert await reaper.wait_gone(pid, 10)


async def test_a_child_is_reaped_although_its_signal_is_lost(reaper: Reaper) -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)  # until the reaper is closed
    pid = child("exec sleep 1000")
    reaper.watch(pid)
    reaper.send_signal(pid, signal.SIGKILL)
    assert await reaper.wait_gone(pid, 20)
    assert is_reaped(pid)


async def test_a_child_that_somebody_else_waited_for_counts_as_gone(reaper: Reaper) -> None:
    pid = child("exec sleep 1000")
    reaper.watch(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert await reaper.wait_gone(pid, 10)


async def test_children_of_others_are_left_to_them(reaper: Reaper) -> None:
    with subprocess.Popen(["/bin/sh", "-c", "exit 7"]) as other:
        await reaper.collect(child("exit 0"), 10)
        assert await asyncio.to_thread(other.wait) == 7


async def test_collecting_waits_for_the_end(reaper: Reaper) -> None:
    pid = child("sleep 0.05")
    await reaper.collect(pid, 10)
    assert is_reaped(pid)


async def test_the_former_handler_of_sigchld_comes_back() -> None:
    def former(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGCHLD, former)
    try:
        reaper = Reaper(everything=False)
        assert signal.getsignal(signal.SIGCHLD) != former
        reaper.close()
        assert signal.getsignal(signal.SIGCHLD) == former
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("former", [signal.SIG_DFL, signal.SIG_IGN])
async def test_a_sigchld_that_is_delivered_at_the_close_finds_a_handler(
    former: signal.Handlers,
) -> None:
    before = signal.signal(signal.SIGCHLD, former)
    try:
        Reaper(everything=False).close()
        assert callable(signal.getsignal(signal.SIGCHLD))
    finally:
        signal.signal(signal.SIGCHLD, before)


EVERYTHING = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from execd.proc import spawn
from execd.proc.reaper import Reaper
from tests.patience import patience
from tests.waiting import wait_until_async

async def main():
    reaper = Reaper(everything=True)
    spawn.set_subreaper()
    script = "for i in 1 2 3 4 5; do (sleep 0.01; exit $i) & done; exit 0"
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {"PATH": "/bin:/usr/bin"})
    reaper.watch(pid)
    assert await reaper.wait_gone(pid, 10)
    while True:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        await asyncio.sleep(0.001)
    # A child that was reaped before the watch.
    pid = os.posix_spawn("/bin/true", ["true"], {})
    while os.path.exists(f"/proc/{pid}"):
        await asyncio.sleep(0.001)
    begin = asyncio.get_running_loop().time()
    await reaper.collect(pid, 10)
    assert asyncio.get_running_loop().time() - begin < patience(5)
    reaper.close()
    print("no children")

if len(sys.argv) > 2:
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.fixture(params=[[], ["uvloop"]])
def loop_name(request: pytest.FixtureRequest) -> list[str]:
    return request.param


def test_a_process_that_is_nobodys_library_reaps_orphans_too(loop_name: list[str]) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING, root, *loop_name],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.stdout, done.stderr) == ("no children\n", "")


async def test_a_stop_of_a_watched_child_is_told_and_is_no_end(reaper: Reaper) -> None:
    pid = child("exec sleep 1000")
    stops: list[int] = []
    reaper.watch(pid, lambda: stops.append(pid))
    reaper.send_signal(pid, signal.SIGSTOP)
    await wait_until_async(lambda: stops == [pid])
    reaper.send_signal(pid, signal.SIGCONT)
    reaper.send_signal(pid, signal.SIGSTOP)
    await wait_until_async(lambda: stops == [pid, pid])
    reaper.send_signal(pid, signal.SIGKILL)
    assert await reaper.wait_gone(pid, 10)
