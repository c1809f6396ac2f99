"""Workers are orphans by design. The warden adopts a worker on the kernel's word alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.proc import tree_mark
from execd.proc.child import Child, Lost
from execd.proc.client import SpawnError, WardenClient
from execd.proc.credential_socket import make_pair
from execd.proc.messages import NULL_DEVICE, CellKilled, Exited
from execd.proc.spawn import KEEP_IDENTITY
from tests.proc.conftest import PATH, Program, Wardens, adopt, living, new_token, spawn
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# The zygote forks twice for each received greeting end. The grandchild does as the message says.
ZYGOTE = """
import os, signal, socket, sys, time
control = socket.socket(fileno=3)
while True:
    data, fds, _, _ = socket.recv_fds(control, 4096, 4)
    if not data:
        break
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        os.close(fds[0])
        continue
    middle = os.getpid()
    if os.fork():
        os._exit(0)
    control.close()
    while os.getppid() == middle:
        time.sleep(0.001)
    greeting = socket.socket(fileno=fds[0])
    exec(data)
    os._exit(9)
"""
SLOW = (
    "os.setsid(); print('forked', flush=True); time.sleep(1.5); "
    "greeting.send(b'!'); greeting.close()\n"
)
GREET = "os.setsid(); greeting.send(b'!'); greeting.close()\n"


class Zygote:
    def __init__(self, program: Program, control: socket.socket, client: WardenClient) -> None:
        self.program = program
        self.reached: list[tuple[str, int]] = []
        self._control = control
        self._client = client

    async def fork(self, script: str, **options: Any) -> Child:
        """Fork a worker as for a session. Children of the worker have the marker in their
        environment; the worker has no marker."""
        wardens, workers = make_pair()
        marker = new_token()
        script = f"os.environ['EXECD_EXECUTION_ID'] = '{marker}'\n{script}"
        with workers:
            socket.send_fds(self._control, [script.encode()], [workers.fileno()])
        return await asyncio.wait_for(
            adopt(
                self._client,
                wardens.detach(),
                lambda limit, value: self.reached.append((limit, value)),
                marker=f"EXECD_EXECUTION_ID={marker}",
                **options,
            ),
            20,
        )


@pytest.fixture
async def zygote(wardens: Wardens, client: WardenClient) -> AsyncIterator[Zygote]:
    ours, theirs = socket.socketpair()
    output = wardens.folder / "zygote"
    with ours, theirs:
        descriptors = [
            os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC),
            theirs.detach(),
        ]
        child = await spawn(
            client,
            argv=[sys.executable, "-I", "-c", ZYGOTE],
            env=PATH,  # without the zygote's marker: every worker would inherit the marker
            cwd="/",
            stdio=[NULL_DEVICE, 0, 0, 1],
            descriptors=descriptors,
            marker="EXECD_EXECUTION_ID=zygote",
            limits=[],
            processes=0,
            identity=KEEP_IDENTITY,
            on_limit=lambda *_: None,
            is_idle=True,
        )
        program = Program(child, output)
        yield Zygote(program, ours, client)


async def exit_of(child: Child) -> Exited:
    ended = await asyncio.wait_for(child.exited, 20)
    assert isinstance(ended, Exited)
    return ended


async def test_a_worker_is_a_program_like_any_other(zygote: Zygote) -> None:
    worker = await zygote.fork(f"{GREET}import time\n{BURN}os._exit(7)")
    assert worker.pid > 1
    ended = await exit_of(worker)
    assert exit_status.decode(ended.wait_status) == Exit(7, None)
    assert ended.pid == worker.pid
    assert ended.user_seconds > 0
    assert ended.max_rss_bytes > 1 << 20


async def test_a_worker_is_signalled_and_killed_with_its_tree_and_others_live_on(
    zygote: Zygote,
) -> None:
    tokens = [new_token() for _ in range(2)]
    first, second = [
        await zygote.fork(
            GREET + f"import subprocess; subprocess.Popen(['setsid', 'sleep', '{token}']); "
            "time.sleep(1000)"
        )
        for token in tokens
    ]
    await wait_until_async(lambda: all(living(f"sleep {token}") for token in tokens), 20)
    first.kill(0.0)
    await asyncio.wait_for(first.killed, 20)
    assert exit_status.decode((await exit_of(first)).wait_status) == Exit(None, signal.SIGKILL)
    assert living(f"sleep {tokens[0]}") == []
    # setsid may be about to become sleep; during an execve a process shows no arguments.
    await wait_until_async(lambda: living(f"sleep {tokens[1]}"), 20)
    second.signal(signal.SIGTERM, scope="leader")
    assert exit_status.decode((await exit_of(second)).wait_status) == Exit(None, signal.SIGTERM)
    second.kill(0.0)
    await asyncio.wait_for(second.killed, 20)
    assert living(f"sleep {tokens[1]}") == []


async def test_a_zygote_that_is_killed_leaves_its_workers_alone(zygote: Zygote) -> None:
    worker = await zygote.fork(GREET + "time.sleep(1000)")
    zygote.program.child.kill(0.0)
    await asyncio.wait_for(zygote.program.child.killed, 20)
    assert not worker.exited.done()
    worker.signal(signal.SIGINT, scope="leader")
    await exit_of(worker)


async def test_a_worker_that_greets_late_is_held_to_its_memory_limit(zygote: Zygote) -> None:
    # More than the limit by far: memory that other programs give back meanwhile hides growth.
    fill = "held = bytearray(b'x') * (1000 << 20); time.sleep(1000)"
    worker = await zygote.fork(SLOW + fill, memory_bytes=100 << 20)
    assert exit_status.decode((await exit_of(worker)).wait_status) == Exit(None, signal.SIGKILL)
    assert [limit for limit, _ in zygote.reached] == ["memory"]


async def test_processes_of_a_worker_are_counted_for_it(zygote: Zygote) -> None:
    token = new_token()
    script = (
        "import subprocess\n"
        f"for _ in range(30): subprocess.Popen(['sleep', '{token}'])\n"
        "time.sleep(1000)"
    )
    worker = await zygote.fork(GREET + script, processes=10)
    await asyncio.wait_for(worker.killed, 20)
    assert [limit for limit, _ in zygote.reached] == ["processes"]
    assert living(f"sleep {token}") == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("os._exit(0)", "ended before it greeted"),
        # In gVisor the zygote leads only a group, in the warden's session.
        (
            "greeting.send(b'!'); time.sleep(1000)",
            "no child of the warden with a session of its own|no group of its own",
        ),
        # Only the child of the worker leads a session, and the child is no child of the warden
        # while the worker lives.
        (
            "pid = os.fork()\n"
            "if not pid:\n"
            " os.setsid(); greeting.send(b'!'); time.sleep(1000)\n"
            "time.sleep(1000)",
            "no child of the warden",
        ),
    ],
)
async def test_what_is_no_worker_is_not_adopted(zygote: Zygote, script: str, reason: str) -> None:
    with pytest.raises(SpawnError, match=reason) as failure:
        await zygote.fork(script)
    assert failure.value.step == "adopt"


async def test_a_leader_cannot_be_adopted_again(zygote: Zygote) -> None:
    """The leader holds a second socket end, as user code may while a session is being forked."""
    wardens, workers = make_pair()
    with wardens, workers:
        script = (
            GREET + "import signal; other = socket.socket(fileno=fds[1]); "
            "other.send(b'!'); time.sleep(1000)"
        )
        first, second = make_pair()
        with second:
            socket.send_fds(zygote._control, [script.encode()], [second.fileno(), workers.fileno()])
        worker = await adopt(zygote._client, first.detach(), lambda *_: None, marker="A=1")
        with pytest.raises(SpawnError, match="leads a tree already"):
            await adopt(zygote._client, wardens.detach(), lambda *_: None, marker="A=2")
    worker.kill(0.0)
    await exit_of(worker)


async def test_a_greeting_that_is_given_up_leaves_nothing(zygote: Zygote) -> None:
    wardens, workers = make_pair()
    with workers:
        waiting = asyncio.create_task(
            adopt(zygote._client, wardens.detach(), lambda *_: None, marker="A=1")
        )
        await asyncio.sleep(0)  # asked for
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        workers.settimeout(20)
        assert workers.recv(1) == b"", "the warden has closed its end"


async def test_a_worker_that_has_not_greeted_does_not_die_with_the_only_other_tree(
    zygote: Zygote, client: WardenClient, wardens: Wardens
) -> None:
    """The worker is an orphan without evidence. Elimination would give the worker to the only
    tree."""
    program = await wardens.run(client, "echo runs; sleep 1000")
    await program.says("runs")
    adopting = asyncio.create_task(zygote.fork(SLOW + "time.sleep(1000)"))
    await zygote.program.says("forked")
    program.child.kill(0.0)
    await asyncio.wait_for(program.child.killed, 20)
    worker = await adopting
    worker.signal(signal.SIGTERM, scope="leader")
    assert exit_status.decode((await exit_of(worker)).wait_status) == Exit(None, signal.SIGTERM)


async def test_a_lost_warden_takes_workers_along(zygote: Zygote, client: WardenClient) -> None:
    worker = await zygote.fork(GREET + "time.sleep(1000)")
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    assert isinstance(await asyncio.wait_for(worker.exited, 20), Lost)


async def test_what_was_sent_before_has_been_acted_on_when_it_is_heard(
    zygote: Zygote, client: WardenClient
) -> None:
    script = "import signal; signal.signal(signal.SIGINT, lambda *_: os._exit(5))\n"
    worker = await zygote.fork(script + GREET + "time.sleep(1000)")
    worker.signal(signal.SIGINT, scope="leader")
    await asyncio.wait_for(client.confirm_sent(), 20)
    assert exit_status.decode((await exit_of(worker)).wait_status) == Exit(5, None)


async def test_a_lost_warden_keeps_nobody_waiting_to_be_heard(client: WardenClient) -> None:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    heard = client.confirm_sent()
    os.kill(client.pid, signal.SIGKILL)
    await asyncio.wait_for(heard, 20)


async def test_a_tree_is_measured_while_it_is_there(zygote: Zygote) -> None:
    worker = await zygote.fork(GREET + "data = b'x' * (64 << 20); time.sleep(1000)")
    await wait_until_async_that(
        lambda: worker.measure(), lambda measured: measured.tree_bytes > 64 << 20
    )
    worker.kill(0.0)
    await exit_of(worker)
    await asyncio.wait_for(worker.killed, 20)


BURN = "while time.process_time() < 0.4: pass\n"


@pytest.mark.parametrize(
    "script",
    [BURN, f"child = os.fork()\nif child == 0:\n    {BURN}    os._exit(0)\nos.waitpid(child, 0)\n"],
    ids=["own", "child's"],
)
async def test_what_it_uses_is_counted_anew(zygote: Zygote, script: str) -> None:
    fill = "data = b'x' * (64 << 20)\nprint('filled', flush=True)\n"
    worker = await zygote.fork(GREET + script + fill + "time.sleep(1000)")
    await zygote.program.says("filled")
    measured = await wait_until_async_that(
        lambda: worker.measure(), lambda measured: measured.tree_bytes > 64 << 20
    )
    # gVisor counts the waits of a process that could run, too.
    assert 0.3 < measured.user_seconds + measured.system_seconds < 3
    assert measured.peak_tree_bytes >= measured.max_rss_bytes > 64 << 20
    assert (await worker.measure(anew=True)).user_seconds >= measured.user_seconds
    # Less than before: the count began anew.
    before_seconds = measured.user_seconds + measured.system_seconds
    following = await worker.measure()
    assert following.user_seconds + following.system_seconds < before_seconds
    worker.kill(0.0)
    ended = await exit_of(worker)
    assert ended.user_seconds + ended.system_seconds < before_seconds
    await asyncio.wait_for(worker.killed, 20)


async def test_cpu_limit_of_the_adopted_is_told_and_counts_anew(zygote: Zygote) -> None:
    worker = await zygote.fork(GREET + "while True: pass", cpu_seconds=1)
    await wait_until_async(lambda: zygote.reached, 20)
    limit, seconds = zygote.reached[0]
    assert limit == "cpu"
    assert seconds >= 1
    await worker.measure(anew=True)
    zygote.reached.clear()
    await wait_until_async(lambda: zygote.reached, 20)
    measured = await worker.measure()  # one of before may be told together with the limit
    assert measured.user_seconds + measured.system_seconds >= 1
    assert not worker.exited.done()


async def test_a_cells_processes_end_and_those_of_other_cells_and_the_leader_live_on(
    zygote: Zygote,
) -> None:
    tree = tree_mark.of_tree(tree_mark.new_daemon(), 1)
    first, second = tree_mark.of_cell(tree, 1), tree_mark.of_cell(tree, 2)
    script = GREET + (
        "import resource, signal\n"
        "def begin(mark):\n"
        "    resource.setrlimit(resource.RLIMIT_RSS, (mark, resource.RLIM_INFINITY))\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "        print(mark, os.getpid(), flush=True)\n"
        "        time.sleep(1000)\n"
        f"begin({first})\nbegin({second})\ntime.sleep(1000)"
    )
    worker = await zygote.fork(script, mark=tree)
    await wait_until_async(lambda: zygote.program.text.count("\n") == 4, 20)
    for mark in (second, first):  # so the end of the second has left the first alone
        ended = await asyncio.wait_for(worker.kill_cell(mark, 0.05), 20)
        assert isinstance(ended, CellKilled)
        assert (ended.killed, ended.survivors) == (2, [])
        left = await asyncio.wait_for(worker.kill_cell(mark, 0.0), 20)
        assert isinstance(left, CellKilled)
        assert left.killed == 0
    assert not worker.exited.done()
    worker.kill(0.0)
    await exit_of(worker)
    gone = await asyncio.wait_for(worker.kill_cell(first, 0.0), 20)
    assert isinstance(gone, CellKilled)
    assert gone.killed == 0


async def test_others_in_the_tree_of_the_adopted_end_at_the_cpu_limit(zygote: Zygote) -> None:
    script = GREET + "child = os.fork()\nwhile child == 0: pass\nos._exit(os.waitpid(child, 0)[1])"
    worker = await zygote.fork(script, cpu_seconds=1)
    assert exit_status.decode((await exit_of(worker)).wait_status) == Exit(signal.SIGKILL, None)
    assert "cpu" in dict(zygote.reached)


async def wait_until_async_that(ask: Any, holds: Any) -> Any:
    async with asyncio.timeout(20):
        while not holds(answer := await ask()):  # the answer comes from a second process
            pass
    return answer
