"""The warden with real programs, in a namespace and as a plain subreaper."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.engine.executions import exit_status
from execd.engine.executions.exit_status import Exit
from execd.model import Limits
from execd.proc.client import SpawnError
from execd.proc.messages import (
    NULL_DEVICE,
    Exited,
    Killed,
)
from tests.gvisor import is_gvisor, needs_field
from tests.proc.conftest import PATH, Program, Wardens, living, new_token
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from execd.proc.client import WardenClient


async def exit_of(program: Program) -> Exit:
    ended = await asyncio.wait_for(program.child.exited, 20)
    assert isinstance(ended, Exited)
    return exit_status.decode(ended.wait_status)


async def kill(program: Program, grace_seconds: float = 0.0) -> Killed:
    program.child.kill(grace_seconds)
    killed = await asyncio.wait_for(program.child.killed, 20)
    assert isinstance(killed, Killed)
    return killed


async def test_a_program_runs_and_its_end_is_told_with_what_it_used(
    wardens: Wardens, client: WardenClient
) -> None:
    held = f"{PYTHON} -I -S -c 'held = bytearray(range(256)) * (100 << 12)'"
    program = await wardens.run(client, f"{held}; echo done; exit 7")
    ended = await asyncio.wait_for(program.child.exited, 20)
    assert isinstance(ended, Exited)
    assert exit_status.decode(ended.wait_status) == Exit(7, None)
    assert program.text == "done\n"
    assert 0 < ended.user_seconds + ended.system_seconds < 10
    assert 100 << 20 < ended.max_rss_bytes < 200 << 20, "a child that was waited for counts"


async def test_a_program_ended_by_a_signal_is_told_as_that(
    wardens: Wardens, client: WardenClient
) -> None:
    assert await exit_of(await wardens.run(client, "kill -SEGV $$")) == Exit(None, signal.SIGSEGV)


PYTHON = shlex.quote(sys.executable)
TRACED = "import ctypes, os, signal\nctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME\n"


async def leaves_nothing(killed: Killed, token: str) -> None:
    """In gVisor, beside other sandboxes, some may not have ended when the answer is due."""
    if killed.survivors:
        assert is_gvisor()
        await wait_until_async(lambda: living(token) == [], 20)
    assert living(token) == []


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("os.kill(os.getpid(), signal.SIGTRAP)\nos._exit(7)", Exit(7, None)),
        ("os.kill(os.getpid(), signal.SIGTERM)\nos._exit(7)", Exit(None, signal.SIGTERM)),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", Exit(7, None)),
        (
            "signal.signal(10, lambda *_: os._exit(7))\nos.kill(os.getpid(), 10)\nsignal.pause()",
            Exit(7, None),
        ),
    ],
)
async def test_a_program_that_has_itself_traced_by_its_parent_goes_on_to_its_real_end(
    wardens: Wardens, client: WardenClient, program: str, ended: Exit
) -> None:
    quoted = (TRACED + program).replace("'", "'\\''")
    assert await exit_of(await wardens.run(client, f"exec {PYTHON} -c '{quoted}'")) == ended


@needs_field("SigBlk")
async def test_a_program_blocks_and_ignores_no_signal(
    wardens: Wardens, client: WardenClient
) -> None:
    """Also not the two signals of the C library, 32 and 33, which a parent of execd may ignore."""
    program = await wardens.run(client, "exec grep -E '^Sig(Blk|Ign)' /proc/self/status")
    await exit_of(program)
    assert [int(line.split()[1], 16) for line in program.text.splitlines()] == [0, 0]


async def test_the_pid_is_as_the_program_sees_it(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(client, "echo $$")
    await exit_of(program)
    assert int(program.text) == program.child.pid


@pytest.mark.parametrize(
    ("options", "step", "error"),
    [
        ({"argv": ["/no/such/program"]}, "exec", errno.ENOENT),
        ({"program": b"no block"}, "request", errno.EINVAL),
        ({"cwd": "/no/such/directory"}, "cwd", errno.ENOENT),
        ({"uid": -1}, "request", 0),
        ({"stdio": [NULL_DEVICE, 0, 7]}, "request", errno.EINVAL),
        ({"stdio": [NULL_DEVICE, 0, -2]}, "request", errno.EINVAL),
        ({"stdio": []}, "request", errno.EINVAL),
        ({"limits": [[999, 1, 1]]}, "limits", errno.EINVAL),
    ],
)
async def test_a_program_that_cannot_be_started_fails_with_the_step_and_the_warden_serves_on(
    wardens: Wardens, client: WardenClient, options: dict[str, object], step: str, error: int
) -> None:
    with pytest.raises(SpawnError) as caught:
        await wardens.run(client, "", **options)
    assert (caught.value.step, caught.value.error) == (step, error)
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


async def test_two_megabytes_of_arguments_and_environment_reach_the_program(
    wardens: Wardens, client: WardenClient
) -> None:
    # A quarter of the stack limit may be arguments and environment: 2 MiB of the usual 8.
    arguments = ["x" * 130_000] * 8
    env = {f"V{number}": "y" * 9_000 for number in range(90)}
    program = await wardens.run(
        client, "", argv=["/bin/sh", "-c", 'echo "$#" "${#8}" "${#V89}"', "sh", *arguments], env=env
    )
    assert await exit_of(program) == Exit(0, None)
    assert program.text == "8 130000 9000\n"


async def test_too_many_arguments_are_a_spawn_failure_and_not_the_end_of_the_warden(
    wardens: Wardens, client: WardenClient
) -> None:
    with pytest.raises(SpawnError) as caught:
        await wardens.run(client, "", argv=["/bin/true", *["x" * 130_000] * 60])
    assert (caught.value.step, caught.value.error) == ("exec", errno.E2BIG)
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


async def test_orphans_are_reaped(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(
        client,
        """ended=$(mktemp)
        for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c "echo >> $ended" &) ; done
        zombies() {
            cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$1" '
                { sub(/.*\\) /, ""); if ($1 == "Z" && $2 == parent) n++ } END { print n + 0 }'
        }
        parent=$(awk '{ sub(/.*\\) /, ""); print $2 }' /proc/$$/stat)
        i=0
        while [ "$(wc -l < $ended) $left" != "10 0" ] && [ $i -lt 200 ]; do
            i=$((i+1)); left=$(zombies $parent)
        done
        rm $ended; echo left: $left""",
    )
    await exit_of(program)
    assert program.text == "left: 0\n"


# Trees, each with the number of its processes that sleep for SECONDS or are stopped. Only then is
# the tree complete: "ready" may come before an orphan's children, and late comers get no TERM.
TREES = {
    "one": (1, "echo ready; exec sleep SECONDS"),
    "group": (3, "sleep SECONDS & sleep SECONDS & sleep SECONDS & echo ready; wait"),
    "sessions": (
        4,
        "setsid sleep SECONDS & setsid setsid sleep SECONDS & "
        "(setsid sh -c 'sleep SECONDS & sleep SECONDS') & echo ready; wait",
    ),
    "double forked": (
        4,
        "(setsid sh -c '(setsid sleep SECONDS &) ; (sleep SECONDS &)' &) ; (sleep SECONDS &) ; "
        "echo ready; sleep SECONDS",
    ),
    "without its leader": (
        2,
        "(setsid sh -c '(setsid sleep SECONDS &) ; sleep SECONDS' &) ; echo ready",
    ),
    "without an environment": (
        4,
        "(env -i setsid sleep SECONDS &) ; "
        "(setsid env -i sh -c 'sleep SECONDS & sleep SECONDS' &) ; echo ready; sleep SECONDS",
    ),
    "deaf to TERM": (
        3,
        "trap '' TERM; sleep SECONDS & (setsid sleep SECONDS &) ; echo ready; "
        "while :; do sleep SECONDS; done",
    ),
    "stopped": (
        4,
        "sleep SECONDS & kill -STOP $!; "
        "setsid sh -c 'sleep SECONDS & kill -STOP $!; kill -STOP $$' & echo ready; "
        "kill -STOP $$; sleep SECONDS",
    ),
    "stopped, with orphans": (
        4,
        "sleep SECONDS & kill -STOP $!; "
        "(setsid sh -c 'sleep SECONDS & kill -STOP $!; kill -STOP $$' &) ; echo ready; "
        "kill -STOP $$; sleep SECONDS",
    ),
    "forking on": (
        1,
        "f() { (setsid sh -c 'sleep SECONDS & exec sleep SECONDS' &) ; }; trap '' TERM; "
        "echo ready; while :; do f; sleep 0.005; done",
    ),
}


@pytest.mark.parametrize("has_grace", [False, True])
@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(
            tree,
            marks=[pytest.mark.linux_only("an orphan's end hangs up a group with stopped members")]
            if tree == "stopped, with orphans"
            else [],
        )
        for tree in TREES
    ],
)
async def test_a_kill_leaves_nothing_of_a_tree(
    wardens: Wardens, client: WardenClient, tree: str, *, has_grace: bool
) -> None:
    token = new_token()
    n_at_rest, script = TREES[tree]
    program = await wardens.run(client, script.replace("SECONDS", token))
    await program.says("ready")
    await wait_until_async(lambda: len(at_rest(token)) >= n_at_rest)
    obeys = tree not in ("deaf to TERM", "forking on")
    # A tree that obeys has ended long before.
    killed = await kill(program, (20.0 if obeys else 0.15) if has_grace else 0.0)
    await leaves_nothing(killed, token)
    if tree != "without its leader":
        term_signals = {signal.SIGTERM if has_grace and obeys else signal.SIGKILL}
        if tree == "stopped" and is_gvisor() and not wardens.in_namespaces:
            # gVisor hangs up a group when a member ends and another is stopped. The warden prevents
            # this in a namespace only.
            term_signals.add(signal.SIGHUP)
        assert (await exit_of(program)).term_signal in term_signals


def at_rest(token: str) -> list[int]:
    """Pids of the processes ``sleep TOKEN``, and of stopped ones, which may have begun no sleep.
    ``living`` also finds shells with the token in their command line, before or beside the sleep.
    """
    found = []
    for pid in living(token):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.cmdline() == ["sleep", token] or process.status() == psutil.STATUS_STOPPED:
                found.append(pid)
    return sorted(found)


async def test_a_kill_of_one_tree_leaves_the_one_beside_it_alone(
    wardens: Wardens, client: WardenClient
) -> None:
    tokens = [new_token(), new_token()]
    script = (
        "(setsid sh -c '(setsid sleep SECONDS &) ; sleep SECONDS' &) ; "
        "sleep SECONDS & echo ready; wait"
    )
    programs = [await wardens.run(client, script.replace("SECONDS", token)) for token in tokens]
    for program, token in zip(programs, tokens, strict=True):
        await program.says("ready")
        await wait_until_async(lambda token=token: len(at_rest(token)) == 3)  # type: ignore[misc]
    before = at_rest(tokens[1])
    await kill(programs[0])
    assert living(tokens[0]) == []
    assert at_rest(tokens[1]) == before
    await kill(programs[1])
    assert living(tokens[1]) == []


async def test_an_orphan_without_an_environment_is_found_by_its_pipe_when_other_jobs_are_about(
    wardens: Wardens, client: WardenClient
) -> None:
    token, other_token = new_token(), new_token()
    other = await wardens.run(client, f"sleep {other_token}")
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    program = await wardens.run(
        client,
        f"(env -i setsid sh -c 'sleep {token}; :' &) ; sleep {token}",
        descriptors=[write_end],
        stdio=[NULL_DEVICE, 0, 0],
    )
    await wait_until_async(lambda: len(living(f"sleep {token}")) >= 3)
    await kill(program)
    assert living(token) == []
    os.close(read_end)
    assert living(other_token) != []
    await kill(other)


async def test_term_comes_before_the_kill_and_once(wardens: Wardens, client: WardenClient) -> None:
    token = new_token()
    loop = "while :; do sleep 0.01; done"
    program = await wardens.run(
        client,
        "trap 'echo term' TERM; (setsid sh -c 'trap \"echo inner\" TERM; echo ready; "
        f"{loop}' {token} &) ; {loop}",
    )
    await program.says("ready")
    program.child.kill(60.0)
    await program.says("inner")
    await program.says("term")
    killed = await kill(program, 0.0)
    lines = program.text.splitlines()  # shells also print lines about their killed sleeps
    assert (lines.count("inner"), lines.count("term")) == (1, 1)
    assert killed.killed >= 2
    assert living(token) == []


async def test_a_program_that_obeys_term_is_not_killed(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await wardens.run(
        client, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    )
    await program.says("ready")
    killed = await kill(program, 10.0)
    assert (killed.killed, killed.survivors) == (0, [])
    assert await exit_of(program) == Exit(5, None)
    assert "bye" in program.text


async def test_a_program_that_lives_on_is_a_job(wardens: Wardens, client: WardenClient) -> None:
    # The loop starts the first program, because the spawn watch sleeps.
    for _ in range(2):
        ended = await wardens.run(client, "exit 3", announce=False)
        assert await exit_of(ended) == Exit(3, None)
    script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    program = await wardens.run(client, script, announce=False)
    await program.says("ready")
    assert (await kill(program, 10.0)).killed == 0
    assert await exit_of(program) == Exit(5, None)


async def test_a_second_kill_shortens_the_grace_of_the_first(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await wardens.run(client, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
    await program.says("ready")
    program.child.kill(60.0)
    await kill(program, 0.0)
    assert await exit_of(program) == Exit(None, signal.SIGKILL)


async def test_a_kill_of_what_has_ended_is_answered(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(client, "exit 0")
    await exit_of(program)
    killed = await kill(program)
    assert killed.survivors == []


async def test_descendants_outlive_their_leader_until_a_kill_ends_them(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    program = await wardens.run(client, f"sleep {token} & (setsid sleep {token} &) ; exit 4")
    assert await exit_of(program) == Exit(4, None)
    await wait_until_async(lambda: len(living(f"sleep {token}")) == 2)
    assert (await kill(program)).killed == 2
    assert living(token) == []


async def test_a_signal_goes_to_the_leader_or_to_its_group(
    wardens: Wardens, client: WardenClient
) -> None:
    script = (
        "trap 'echo outer; exit 0' USR1; "
        'sh -c \'trap "echo inner; exit 0" USR1; echo ready; '
        "while :; do sleep 0.01; done' & wait; wait"
    )
    alone = await wardens.run(client, script)
    await alone.says("ready")
    alone.child.signal(signal.SIGUSR1, scope="leader")
    await exit_of(alone)
    assert sorted(alone.text.split()) == ["outer", "ready"]
    await kill(alone)
    group = await wardens.run(client, script)
    await group.says("ready")
    group.child.signal(signal.SIGUSR1, scope="group")
    await exit_of(group)
    await group.says("inner")
    await group.says("outer")
    await kill(group)


@pytest.mark.parametrize("number", [-1, 0, 65, 9999, 2**40])
async def test_a_signal_that_is_none_does_not_harm_the_warden(
    wardens: Wardens, client: WardenClient, number: int
) -> None:
    program = await wardens.run(client, "sleep 0.05; exit 6")
    program.child.signal(number, scope="leader")
    program.child.signal(number, scope="group")
    assert await exit_of(program) == Exit(6, None)
    assert client.restarts == 0


async def test_one_process_more_than_the_limit_ends_the_tree(
    wardens: Wardens, client: WardenClient
) -> None:
    token, beside = (
        new_token(),
        await wardens.run(
            client, "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo ready; wait", processes=20
        ),
    )
    await beside.says("ready")
    program = await wardens.run(
        client,
        # With the shell, the count exceeds the limit by 1: a scan amid the forks finds no larger
        # excess.
        f"for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep {token} & done; wait",
        processes=10,
    )
    killed = await asyncio.wait_for(program.child.killed, 20)
    assert isinstance(killed, Killed)
    assert program.limits_reached == [("processes", 11)]
    assert living(token) == []
    assert not beside.child.exited.done()
    await kill(beside)


async def test_a_tree_at_its_limit_is_left_alone(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(
        client, "for i in 1 2 3 4 5 6 7 8 9; do sleep 1.2 & done; wait; exit 9", processes=10
    )
    assert await exit_of(program) == Exit(9, None)
    assert program.limits_reached == []


# Bombs with a bound, so a winning bomb does not take this machine along. The first kind makes at
# most 2,186 processes: the user of the tests may have 4,096 (``rlimits.PROCESSES_BACKSTOP``), and
# above that the neighbours of a bomb cannot fork. (Of a bomb of 6,560 processes 3,691 were there at
# the first freeze on a busy machine.) The second kind makes some hundred processes, and each
# process leaves the group at birth. (With thousands of the second kind the kill may report
# survivors.)
BOMBS = {
    "in one group": (
        "b() { if [ $1 -gt 0 ]; then b $(($1-1)) | b $(($1-1)) & b $(($1-1)) & fi; sleep 1000; }; "
        "b 6"
    ),
    "in groups of their own": (
        'if [ $1 -gt 0 ]; then for i in 1 2; do setsid sh -c "$0" "$0" $(($1-1)) TOKEN '
        "& done; fi; sleep 1000"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_fork_bomb_ends_and_others_run_on(
    wardens: Wardens, client: WardenClient, bomb: str
) -> None:
    token = new_token()
    script = BOMBS[bomb].replace("TOKEN", token)
    depth = "5" if is_gvisor() else "6"  # 63 or 127 processes of the second kind
    program = await wardens.run(
        client, "", argv=["/bin/sh", "-c", script, script, depth, token], processes=50
    )
    killed = await asyncio.wait_for(program.child.killed, 30)
    assert isinstance(killed, Killed)
    assert killed.survivors == []
    assert living(token) == []
    assert [limit for limit, _ in program.limits_reached] == ["processes"]
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)


async def a_scan_has_begun_and_ended(wardens: Wardens, client: WardenClient) -> None:
    """Since the call: only a scan finds the child of a new program."""
    program = await wardens.run(client, "sleep 1000 & wait")
    async with asyncio.timeout(20):
        # each answer takes a turn of the warden's
        while (await program.child.measure()).processes < 2:
            pass
    await kill(program)


async def goes_on(program: Program, client: WardenClient) -> None:
    """Wait for more output of the program. A failure tells the states of all processes."""
    written = len(program.text)
    try:
        await wait_until_async(lambda: len(program.text) > written)
    except AssertionError:
        below = psutil.Process(client.pid).children(recursive=True)
        # as_dict: a zombie has no command line.
        states = [process.as_dict(["pid", "ppid", "status", "cmdline"]) for process in below]
        raise AssertionError(states, program.text[-200:], program.child.exited.done()) from None


async def test_a_bomb_beside_them_leaves_the_running_running_and_the_stopped_stopped(
    wardens: Wardens, client: WardenClient
) -> None:
    runs = await wardens.run(client, "while :; do sleep 0.05; echo on; done")
    stopped = await wardens.run(client, "echo stops; kill -STOP $$; echo on")
    await stopped.says("stops")
    await wait_until_async(lambda: is_stopped("echo stops"))
    await a_scan_has_begun_and_ended(wardens, client)
    bomb = await wardens.run(
        client, "", argv=["/bin/sh", "-c", BOMBS["in one group"]], processes=50
    )
    assert isinstance(await asyncio.wait_for(bomb.child.killed, 30), Killed)
    await goes_on(runs, client)
    assert is_stopped("echo stops")
    assert stopped.text == "stops\n"
    stopped.child.signal(signal.SIGCONT, scope="group")
    await stopped.says("on")
    await kill(runs)


async def test_a_bomb_leaves_running_whoever_was_stopped_and_continued_before(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await wardens.run(
        client, "echo stops; kill -STOP $$; echo on; while :; do sleep 0.05; echo on; done"
    )
    await program.says("stops")
    await wait_until_async(lambda: is_stopped("echo stops"))
    await a_scan_has_begun_and_ended(wardens, client)
    program.child.signal(signal.SIGCONT, scope="group")
    await program.says("on")
    bomb = await wardens.run(
        client, "", argv=["/bin/sh", "-c", BOMBS["in one group"]], processes=50
    )
    assert isinstance(await asyncio.wait_for(bomb.child.killed, 30), Killed)
    await goes_on(program, client)
    await kill(program)


# The first thread ends, and further threads live on. The process leads a session, and has no
# descriptor of the warden's.
HEADLESS = """
import ctypes, os, sys, threading
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=threading.Event().wait).start()
    print("ready", flush=True)
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
threading.Event().wait()
"""


async def test_processes_whose_first_thread_has_ended_die_with_their_tree(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    program = await wardens.run(
        client, "", argv=[sys.executable, "-I", "-S", "-c", HEADLESS, token]
    )
    await program.says("ready")
    program.child.kill(0.0)
    killed = await asyncio.wait_for(program.child.killed, 20)
    assert isinstance(killed, Killed)
    assert (killed.killed, killed.survivors) == (2, [])


# Children of the warden make the warden their tracer, and stop again each time the warden continues
# them.
TRACED_AND_STOPPING = """
import ctypes, os, signal, time
ptrace = ctypes.CDLL(None).ptrace
for _ in range(8):
    if os.fork() == 0:
        if os.fork() != 0:
            os._exit(0)
        while os.getppid() != int(os.environ["WARDEN"]):
            time.sleep(0.001)
        while True:
            ptrace(0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGCHLD)
    os.wait()
print("ready", flush=True)
time.sleep(1000)
"""


async def test_programs_that_make_the_warden_their_tracer_and_stop_for_ever_are_killed(
    wardens: Wardens, client: WardenClient
) -> None:
    token = new_token()
    warden = "1" if wardens.in_namespaces else str(client.pid)
    argv = [sys.executable, "-I", "-S", "-c", TRACED_AND_STOPPING, token]
    program = await wardens.run(client, "", argv=argv, env=PATH | {"WARDEN": warden})
    await program.says("ready")
    assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)
    await wait_until_async(lambda: len(living(token)) == 1, 20)
    assert client.restarts == 0
    await kill(program)


def is_stopped(word: str) -> bool:
    """Whether the program with this word in the command line is stopped. The pid is unknown here,
    because the program runs in a different PID namespace."""
    states = []
    for process in psutil.Process().children(recursive=True):
        # children of further programs come and go
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word in part for part in process.cmdline()):
                states.append(process.status())
    return states == [psutil.STATUS_STOPPED]


async def test_limits_are_those_asked_for(wardens: Wardens, client: WardenClient) -> None:
    program = await wardens.run(
        client, "ulimit -n; ulimit -c; ulimit -t", limited=Limits(open_files=123, cpu_seconds=9)
    )
    await exit_of(program)
    assert program.text.split() == ["123", "0", "9"]


async def test_commands_cannot_reach_the_wardens_descriptors_or_its_memory(
    wardens: Wardens, client: WardenClient
) -> None:
    program = await wardens.run(
        client,
        "ls /proc/$PPID/fd /proc/$PPID/mem; head -c 1 /proc/$PPID/mem; "
        "cat /proc/$PPID/environ; ls /proc/$$/fd",
    )
    await exit_of(program)
    if os.geteuid() != 0:
        assert "mem' for reading: Permission denied" in program.text
        # gVisor of 2024 shows the environment of an undumpable process, gVisor of 2026 does not;
        # the warden's has no secret.
        environments = ["", "LANG=C.UTF-8\0"] if is_gvisor() else [""]
        first, *others = program.text.split()[-3:]
        assert first in [f"{environment}0" for environment in environments]
        assert others == ["1", "2"]


@pytest.mark.root
async def test_a_root_command_cannot_uncover_the_state_dir(
    wardens: Wardens, client: WardenClient
) -> None:
    if not wardens.in_namespaces:
        # nothing is covered
        assert await exit_of(await wardens.run(client, f"ls {wardens.state_dir}")) == Exit(0, None)
        return
    (wardens.state_dir / "secret").write_text("secret")
    program = await wardens.run(
        client,
        f"umount {wardens.state_dir}; mount -t proc none /mnt; "
        f"unshare -m umount {wardens.state_dir}; nsenter -t 1 -m true; "
        f"cat {wardens.state_dir}/secret",
    )
    assert (await exit_of(program)).exit_code == 1
    assert "secret: No such file" in program.text


@pytest.mark.parametrize(
    "script",
    [
        "kill -STOP 1",
        "kill -TERM 1",
        "kill -KILL 1",
        "kill -9 -1",
        "kill -STOP -1",
        "kill -INT $PPID; kill -HUP $PPID; kill -CHLD $PPID",
    ],
)
async def test_a_namespace_protects_its_warden_natively(wardens: Wardens, script: str) -> None:
    """The kernel sends an init only signals with a handler. gVisor delivers SIGKILL and SIGSTOP:
    the client replaces a dead warden, and continues a stopped warden."""
    if not wardens.in_namespaces:
        # Here $PPID is the warden and 1 is a foreign init: the script sends only ignored signals.
        script = (
            "kill -INT $PPID; kill -HUP $PPID; kill -CHLD $PPID; kill -TERM $PPID; "
            "kill -USR1 $PPID; kill -RTMIN $PPID"
        )
    is_replaced = is_gvisor() and script == "kill -KILL 1"
    async with wardens.start(ping_seconds=0.1, dead_seconds=20.0) as client:
        program = await wardens.run(client, f"{script}; echo sent; exec sleep 60")
        if is_replaced:
            await wait_until_async(lambda: client.restarts == 1)
        else:
            await program.says("sent")
            program.child.kill(0.1)
        await asyncio.wait_for(program.child.exited, 20)
        assert await exit_of(await wardens.run(client, "exit 3")) == Exit(3, None)
        assert client.restarts == is_replaced


# Sends more real-time signals to the warden than the kernel queues for a user.
FLOOD_OF_SIGNALS = """
import ctypes, os, resource, signal
most = resource.getrlimit(resource.RLIMIT_SIGPENDING)[0]
libc = ctypes.CDLL(None)
for number in (signal.SIGRTMIN, signal.SIGRTMAX):
    for _ in range(min(most, 1 << 20) + 100):
        libc.sigqueue(int(os.environ["WARDEN"]), number, None)
        libc.kill(int(os.environ["WARDEN"]), number)
print("sent")
"""
# Needs room for two signals of its own.
QUEUE_OF_ITS_OWN = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
timer = ctypes.c_void_p()
assert libc.timer_create(1, None, ctypes.byref(timer)) == 0, ctypes.get_errno()
assert libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0, ctypes.get_errno()
print("queued")
"""


async def test_real_time_signals_to_the_warden_take_no_room_from_neighbours(
    wardens: Wardens, client: WardenClient
) -> None:
    warden = "1" if wardens.in_namespaces else str(client.pid)
    for script, said in ((FLOOD_OF_SIGNALS, "sent\n"), (QUEUE_OF_ITS_OWN, "queued\n")):
        argv = [sys.executable, "-I", "-S", "-c", script]
        program = await wardens.run(client, "", argv=argv, env=PATH | {"WARDEN": warden})
        await exit_of(program)
        assert program.text == said
    assert client.restarts == 0


async def test_a_program_may_queue_as_many_signals_as_a_program_beside_the_warden(
    wardens: Wardens, client: WardenClient
) -> None:
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_SIGPENDING))"
    program = await wardens.run(client, "", argv=[sys.executable, "-I", "-S", "-c", script])
    await exit_of(program)
    assert program.text == f"{resource.getrlimit(resource.RLIMIT_SIGPENDING)}\n"


async def test_many_trees_are_killed_at_once_while_the_warden_answers(wardens: Wardens) -> None:
    # A thousand processes take gVisor half a minute, and a busy machine cannot end all in time.
    n_trees = 20 if is_gvisor() else 100
    token, dead_seconds = new_token(), 30.0 if is_gvisor() else 3.0
    async with wardens.start(ping_seconds=0.05, dead_seconds=dead_seconds) as client:
        script = (
            f"for i in 1 2 3 4 5; do sleep {token} & setsid sleep {token} & done; echo ready; wait"
        )
        programs = [await wardens.run(client, script) for _ in range(n_trees)]
        for program in programs:
            await program.says("ready")
        for program in programs:
            program.child.kill(0.1)
        for program in programs:
            killed = await asyncio.wait_for(program.child.killed, 30)
            assert isinstance(killed, Killed)
            await leaves_nothing(killed, token)
        assert client.restarts == 0


async def test_nothing_outlives_the_daemons_end_of_the_socket(wardens: Wardens) -> None:
    token = new_token()
    async with wardens.start() as client:
        program = await wardens.run(client, TREES["double forked"][1].replace("SECONDS", token))
        await program.says("ready")
        await wait_until_async(lambda: len(living(f"sleep {token}")) >= 4)
    if is_gvisor():  # the init of a namespace may be gone before the others are
        await wait_until_async(lambda: living(token) == [])
    assert living(token) == []


async def test_only_the_init_of_a_namespace_has_a_brake(
    wardens: Wardens, client: WardenClient
) -> None:
    """The brake is a thread that stops every process that the warden sees. Without a namespace,
    these are the processes of the user's machine."""
    assert client.pid is not None
    n_helpers = psutil.Process(client.pid).num_threads() - 1
    assert n_helpers == (2 if wardens.in_namespaces else 1), "the brake and the spawn watch"
