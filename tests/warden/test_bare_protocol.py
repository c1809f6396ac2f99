"""The bare protocol: messages to a real warden from no client, since no client sends them."""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from execd.kernel import process_name
from execd.proc import message_codec, namespaces, spawn
from execd.proc.channel import Channel, Closed
from execd.proc.messages import (
    NULL_DEVICE,
    CellKilled,
    Exited,
    Kill,
    KillCell,
    Killed,
    Ping,
    Pong,
    Ready,
    Signal,
    Spawn,
    Spawned,
    SpawnFailed,
    StartupDone,
)
from execd.proc.program_block import pack
from tests.proc.conftest import PATH, living, new_token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd.proc.messages import Message


@pytest.fixture(params=["namespaces", "none"])
def bare(request: pytest.FixtureRequest, tmp_path: str) -> Iterator[Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    view = namespaces.View(str(tmp_path), f"{tmp_path}/bin", {})
    with theirs:
        started = namespaces.start(
            theirs, view, "require" if request.param == "namespaces" else "off", "execd.warden.main"
        )
    channel = Channel(ours)
    try:
        (ready,) = receive(channel, 1)
        assert isinstance(ready, Ready)
        assert ready.pid == (1 if request.param == "namespaces" else started.pid)
        yield channel
    finally:
        channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]) == 0, (
            "it ends by itself when its socket does"
        )


def receive(channel: Channel, count: int) -> list[Message]:
    found: list[Message] = []

    def more() -> bool:
        while (received := channel.receive()) is not None:
            assert received[1] == []
            found.append(received[0])
        return len(found) >= count

    wait_until(more, 20)
    return found


def wait_for_exit(channel: Channel) -> Exited:
    """Other messages may come before and after."""
    while True:
        for message in receive(channel, 1):
            if isinstance(message, Exited):
                return message


def request(tag: int, script: str, **fields: object) -> Spawn:
    plain = Spawn(
        tag,
        pack(["/bin/sh", "-c", script], PATH, "/"),
        [NULL_DEVICE] * 3,
        False,
        [],
        0,
        f"M={tag}",
        None,
        None,
        None,
    )
    return plain._replace(**fields)  # type: ignore[arg-type]


def test_a_ping_is_answered_and_a_reply_sent_to_it_ignored(bare: Channel) -> None:
    bare.send(Pong(9, is_quiet=True))
    bare.send(Exited(1, 5, 0.0, 0.0, 0, 0.0, 0.0, 0))
    bare.send(Ping(7))
    assert receive(bare, 1) == [Pong(7, is_quiet=True)]


def test_requests_about_unknown_programs_are_harmless(bare: Channel) -> None:
    bare.send(Signal(99, 15, "leader"))
    bare.send(Kill(98, 0.0))
    bare.send(Ping(1))
    assert receive(bare, 2) == [Killed(98, 0, []), Pong(1, is_quiet=True)]


def test_kill_that_is_for_a_late_program_only_spares_the_tree_of_one_that_had_ended_in_time(
    bare: Channel,
) -> None:
    token = new_token()
    bare.send(request(1, f"sleep {token} & exit 3"))
    ended = wait_for_exit(bare)
    # Until its exec the child is not known by the token.
    wait_until(lambda: len(living(f"sleep {token}")) == 1)
    bare.send(Kill(1, 0.0, ended.at + 0.001))
    assert receive(bare, 1) == [Killed(1, 0, [])]
    assert len(living(f"sleep {token}")) == 1
    bare.send(Kill(1, 0.0, ended.at))
    (killed,) = receive(bare, 1)
    assert killed.killed == 1
    assert living(f"sleep {token}") == []


def test_the_end_of_a_cell_without_a_mark_ends_nothing_else(bare: Channel) -> None:
    """Trees have no marks where an operator has set a hard limit RLIMIT_RSS."""
    token = new_token()
    bare.send(request(1, f"exec sleep {token}", announce=True))
    assert isinstance(receive(bare, 1)[0], Spawned)
    bare.send(KillCell(1, 0, 0.0))
    found = receive(bare, 1)
    while not any(isinstance(message, (CellKilled, Killed)) for message in found):
        found += receive(bare, 1)
    assert found[-1] == CellKilled(1, 0, 0, [])
    assert len(living(f"sleep {token}")) == 1
    bare.send(Kill(1, 0.0))
    wait_for_exit(bare)


def test_lost_descriptors_fail_the_spawn(bare: Channel) -> None:
    """Stated in the header, and not there: as when the receiver had no room for them."""
    datagram = bytes((0, 2)) + message_codec.encode(request(1, "true", stdio=[NULL_DEVICE, 0, 1]))
    bare._socket.send(datagram)
    (failed,) = receive(bare, 1)
    assert isinstance(failed, SpawnFailed)
    assert (failed.tag, failed.step, failed.error) == (1, "request", errno.EMFILE)


def test_more_descriptors_than_a_message_may_have_end_the_warden(bare: Channel) -> None:
    bare._socket.send(bytes((0, 9)) + b'["Ping",1]')
    wait_until(lambda: is_closed(bare), 20)


def test_a_long_request_whose_memfd_was_lost_fails_and_the_next_one_runs(bare: Channel) -> None:
    bare._socket.send(b"\1\00142")
    assert receive(bare, 1) == [
        SpawnFailed(42, "request", errno.EMFILE, "a long message was lost on the way")
    ]
    bare.send(request(2, "read line", stdio=[NULL_DEVICE] * 3))
    exited = wait_for_exit(bare)
    assert os.waitstatus_to_exitcode(exited.wait_status) == 1


@pytest.mark.parametrize("datagram", [b"\0", b"\0\0{}", b'\0\0["Spawn"]', b"\1\0", b"\5\5"])
def test_what_is_no_message_ends_the_warden_and_all_under_it(
    bare: Channel, datagram: bytes
) -> None:
    token = new_token()
    bare.send(request(1, f"(setsid sleep {token} &) ; sleep {token}"))
    receive(bare, 1)
    wait_until(lambda: len(living(f"sleep {token}")) >= 2)
    bare._socket.send(datagram)
    wait_until(lambda: is_closed(bare), 20)
    wait_until(lambda: living(token) == [])


def is_closed(channel: Channel) -> bool:
    try:
        while channel.receive() is not None:
            pass
    except Closed:
        return True
    return False


def exits_of(channel: Channel, count: int) -> list[Message]:
    """All messages until ``count`` programs have ended."""
    found: list[Message] = []

    def more() -> bool:
        channel.flush()
        while (received := channel.receive()) is not None:
            found.append(received[0])
        return sum(isinstance(message, Exited) for message in found) >= count

    wait_until(more, 60)
    return found


def test_exits_wait_for_a_daemon_that_does_not_read(bare: Channel) -> None:
    """More exits than the socket holds: each exit comes once, and no message comes after an exit of
    the same program."""
    count = 400
    for tag in range(count):
        bare.send(request(tag, f"exit {tag % 200}"))
    # flush() always returns None: only the queue's size counts.
    wait_until(lambda: bare.flush() or bare.queued == 0, 60)  # type: ignore[func-returns-value]
    ended: set[int] = set()
    for message in exits_of(bare, count):
        assert isinstance(message, Spawned | StartupDone | Exited)
        assert message.tag not in ended
        if isinstance(message, Exited):
            ended.add(message.tag)
            assert message.wait_status == (message.tag % 200) << 8
    assert ended == set(range(count))


OUT_OF_DESCRIPTORS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from execd.warden.main import main
main()
"""


@pytest.mark.parametrize("padding", [0, 100_000])
def test_a_warden_out_of_descriptors_fails_the_spawn_and_lives(padding: int) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(spawn.__file__)))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        pid = spawn.clone(
            # The warden's own descriptors are 0 to 6 (3 socket, oom_score_adj, /proc/loadavg, the
            # signals of children): there is room for a single further descriptor. gVisor has no
            # oom_score_adj to write, and the warden there has the list of children open.
            argv=[sys.executable, "-I", "-S", "-c", OUT_OF_DESCRIPTORS, root, "8"],
            env={},
            socket=theirs.fileno(),
            clone_flags=0,
            id_maps={},
            unshare_mounts=False,
            covers=[],
            cover_dirs=[],
            cover_links=[],
        )
    channel = Channel(ours)
    receive(channel, 1)
    descriptors = [os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) for _ in range(2)]
    channel.send(request(1, "true " + "x" * padding, stdio=[NULL_DEVICE, 0, 1]), descriptors)
    channel.send(Ping(5))
    failed, pong = receive(channel, 2)
    assert isinstance(failed, SpawnFailed)
    assert (failed.step, failed.error) == ("request", errno.EMFILE)
    assert pong == Pong(5, is_quiet=True)
    channel.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.root
def test_the_wardens_descriptors_do_not_grow(bare: Channel) -> None:
    for tag in range(100):
        bare.send(
            request(tag, "exit 0", stdio=[NULL_DEVICE, 0, 1]),
            [os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) for _ in range(2)],
        )
        exits_of(bare, 1)
    (warden,) = [
        child for child in psutil.Process().children() if child.name() == process_name.WARDEN
    ]
    wait_until(lambda: warden.num_fds() <= 7)  # a scan has /proc open for a moment
