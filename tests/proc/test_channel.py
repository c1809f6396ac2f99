from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.proc import message_codec
from execd.proc.channel import Channel, Closed, _close
from execd.proc.messages import Fault, MemfdLost, Ping, ProtocolError, Spawn
from execd.proc.program_block import pack
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channels = Channel(first), Channel(second)
    yield channels
    for channel in channels:
        channel.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A channel and a peer. The peer may send anything."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(second)
    yield first, channel
    first.close()
    channel.close()


def open_descriptors() -> set[int]:
    """Return the open descriptors, but for the descriptor of the listing itself."""
    return {
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    }


def pipe_with(data: bytes) -> int:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.write(write_end, data)
    os.close(write_end)
    return read_end


def spawn_request(argv: list[str], env: dict[str, str]) -> Spawn:
    return Spawn(1, pack(argv, env, "/"), [-1, 0, 1], False, [], 0, "A=1", None, None, None)


def test_nothing_is_there_before_anything_was_sent(pair: Pair) -> None:
    assert pair[0].receive() is None


def spawn_of(program: bytes) -> Spawn:
    return Spawn(1, program, [0], False, [], 0, "A=b", None, None, None)


def test_messages_arrive_in_order_and_both_ways(pair: Pair) -> None:
    for number in range(10):
        pair[0].send(Ping(number))
        pair[1].send(Ping(-number))
    assert [pair[1].receive() for _ in range(11)] == [
        *((Ping(number), []) for number in range(10)),
        None,
    ]
    assert [pair[0].receive() for _ in range(11)] == [
        *((Ping(-number), []) for number in range(10)),
        None,
    ]


def test_descriptors_arrive_in_order_and_the_sender_keeps_none(pair: Pair) -> None:
    before = open_descriptors()
    pair[0].send(Ping(1), [pipe_with(b"first"), pipe_with(b"second")])
    received = pair[1].receive()
    assert received is not None
    message, descriptors = received
    assert message == Ping(1)
    assert [os.read(fd, 10) for fd in descriptors] == [b"first", b"second"]
    assert not any(os.get_inheritable(fd) for fd in descriptors)
    for fd in descriptors:
        os.close(fd)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "size_bytes",
    [message_codec.MAX_INLINE_BYTES, 300_000, 2 << 20, message_codec.MAX_MESSAGE_BYTES],
)
def test_messages_of_any_size_travel_up_to_the_bound(pair: Pair, size_bytes: int) -> None:
    for length in size_bytes - 12, size_bytes - 11, size_bytes - 10, size_bytes - 9:
        message = Fault("x" * length)
        if len(message_codec.encode(message)) > message_codec.MAX_MESSAGE_BYTES:
            continue
        pair[0].send(message, [pipe_with(b"file")])
        received = pair[1].receive()
        assert received is not None
        assert received[0] == message
        (fd,) = received[1]
        assert os.read(fd, 10) == b"file"
        os.close(fd)


def test_two_megabytes_of_arguments_and_environment_travel_in_one_message(pair: Pair) -> None:
    request = spawn_request(
        ["x" * 131_071] * 8, {f"V{number}": "\udcff" * 1000 for number in range(1000)}
    )
    pair[0].send(request, [pipe_with(b"out"), pipe_with(b"err")])
    received = pair[1].receive()
    assert received is not None
    assert received[0] == request
    assert [os.read(fd, 10) for fd in received[1]] == [b"out", b"err"]
    for fd in received[1]:
        os.close(fd)


def test_a_message_over_the_bound_is_a_protocol_error_at_the_receiver_and_leaks_nothing(
    pair: Pair,
) -> None:
    before = open_descriptors()
    pair[0].send(Fault("x" * message_codec.MAX_MESSAGE_BYTES), [pipe_with(b"")])
    with pytest.raises(ProtocolError, match="size limit"):
        pair[1].receive()
    assert open_descriptors() == before


def test_what_the_kernel_does_not_take_waits_in_order_with_its_descriptors(pair: Pair) -> None:
    before = open_descriptors()
    sent = 0
    while pair[0].queued < 20:
        pair[0].send(Ping(sent), [pipe_with(b"%d" % sent)])
        sent += 1
    assert len(open_descriptors() - before) == 20, (
        "what is queued holds its descriptors, what is sent does not"
    )
    for number in range(sent):
        received = pair[1].receive()
        if received is None:
            pair[0].flush()
            received = pair[1].receive()
        assert received is not None
        message, (fd,) = received
        assert message == Ping(number)
        assert os.read(fd, 20) == b"%d" % number
        os.close(fd)
    assert pair[0].queued == 0
    assert open_descriptors() == before


def test_closing_closes_what_waits_in_the_queue() -> None:
    before = open_descriptors()
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(first)
    while channel.queued < 5:
        channel.send(Ping(1), [pipe_with(b"")])
    second.close()
    channel.close()
    assert open_descriptors() == before


def test_a_peer_that_is_gone_is_closed_for_both_directions_and_leaks_nothing(pair: Pair) -> None:
    before = open_descriptors()
    pair[1].close()
    with pytest.raises(Closed):
        pair[0].receive()
    with pytest.raises(Closed):
        pair[0].send(Ping(1), [pipe_with(b"")])
    pair[0].close()
    assert not open_descriptors() - before


def test_what_was_sent_before_the_peer_closed_is_still_received(pair: Pair) -> None:
    pair[0].send(Ping(1))
    pair[0].send(Ping(2))
    pair[0].close()
    assert pair[1].receive() == (Ping(1), [])
    assert pair[1].receive() == (Ping(2), [])
    with pytest.raises(Closed):
        pair[1].receive()


def send_raw(end: socket.socket, datagram: bytes, descriptors: list[int]) -> None:
    """Send, and close the descriptors as a Channel does."""
    socket.send_fds(end, [datagram], descriptors)
    for fd in descriptors:
        os.close(fd)


@pytest.mark.parametrize(
    ("datagram", "n_descriptors"),
    [
        (b"\0", 1),
        (b"\7\0[]", 2),
        (b"\0\xff[]", 1),
        (b'\0\2["Ping",true]', 2),
        (b"\0\1not JSON", 1),
        (b"\1\0", 0),
        (b"\1\1", 0),
        (b"\1\2garbage after the header", 2),
    ],
)
def test_bytes_that_no_channel_sends_are_a_protocol_error_and_leak_nothing(
    raw: tuple[socket.socket, Channel], datagram: bytes, n_descriptors: int
) -> None:
    before = open_descriptors()
    send_raw(raw[0], datagram, [pipe_with(b"") for _ in range(n_descriptors)])
    with pytest.raises(ProtocolError):
        raw[1].receive()
    assert open_descriptors() == before


@examples(2)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 4))
def test_any_datagram_is_a_message_or_a_protocol_error_and_leaks_nothing(
    datagram: bytes, n_descriptors: int
) -> None:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(second)
    before = open_descriptors()
    send_raw(first, datagram, [pipe_with(b"") for _ in range(n_descriptors)])
    try:
        received = channel.receive()
    except ProtocolError:
        pass
    else:
        assert received is not None
        for fd in received[1]:
            if fd >= 0:
                os.close(fd)
    assert open_descriptors() == before
    first.close()
    channel.close()


def memfd_with(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


@pytest.mark.parametrize("kind", ["pipe", "directory", "write-only", "garbage"])
def test_a_payload_descriptor_that_holds_no_message_is_a_protocol_error_and_leaks_nothing(
    raw: tuple[socket.socket, Channel], kind: str
) -> None:
    before = open_descriptors()
    payload = {
        "pipe": lambda: pipe_with(b'["Ping",1]'),
        "directory": lambda: os.open("/", os.O_RDONLY | os.O_CLOEXEC),
        "write-only": lambda: os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC),
        "garbage": lambda: memfd_with(b"garbage"),
    }[kind]()
    send_raw(raw[0], b"\1\0027", [payload, pipe_with(b"")])
    with pytest.raises(ProtocolError) as caught:
        raw[1].receive()
    assert not isinstance(caught.value, MemfdLost)
    assert open_descriptors() == before


def test_a_long_message_without_its_memfd_says_whose_it_was_and_the_next_one_is_read(
    raw: tuple[socket.socket, Channel],
) -> None:
    send_raw(raw[0], b"\1\00442", [])
    send_raw(raw[0], b'\0\0["Ping",7]', [])
    with pytest.raises(MemfdLost) as caught:
        raw[1].receive()
    assert caught.value.tag == 42
    assert raw[1].receive() == (Ping(7), [])


@pytest.mark.parametrize(("stated", "sent"), [(2, 1), (2, 0), (1, 2), (0, 1)])
def test_a_wrong_number_of_descriptors_leaves_the_message_and_none_of_them(
    raw: tuple[socket.socket, Channel], stated: int, sent: int
) -> None:
    before = open_descriptors()
    send_raw(
        raw[0],
        bytes((message_codec.INLINE, stated)) + b'["Ping",7]',
        [pipe_with(b"") for _ in range(sent)],
    )
    assert raw[1].receive() == (Ping(7), [-1] * stated)
    assert open_descriptors() == before


RECEIVER_WITHOUT_ROOM = """
import os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
from execd.proc.channel import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[2])))
lowest_free = os.dup(0)
os.close(lowest_free)
limit = lowest_free + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
before = sorted(os.listdir("/proc/self/fd")) if int(sys.argv[3]) else None
while True:
    received = channel.receive()
    if received is not None:
        break
print(received, before is None or sorted(os.listdir("/proc/self/fd")) == before)
"""


@pytest.mark.parametrize(("room", "expected"), [(1, [-1, -1]), (0, [-1, -1])])
def test_a_receiver_out_of_descriptors_gets_the_message_and_no_files(
    room: int, expected: list[int]
) -> None:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender = Channel(first)
    with second:
        sender.send(Ping(3), [pipe_with(b""), pipe_with(b"")])
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                RECEIVER_WITHOUT_ROOM,
                root,
                str(second.fileno()),
                str(room),
            ],
            pass_fds=[second.fileno()],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    sender.close()
    assert done.stdout.strip() == f"{(Ping(3), expected)} True"


SENDER_WITH_TOO_MANY_IN_FLIGHT = """
import os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
from execd.proc.channel import Channel
from execd.proc.messages import Fault, MemfdLost, Ping
if os.getuid() == 0:
    os.setuid(65534)  # the kernel lets root exceed the limit
first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sender, receiver = Channel(first), Channel(second)
other, peer = socket.socketpair()
socket.send_fds(other, [b"x"], [0] * 100)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sender.send(Ping(1), list(os.pipe()))
sender.send(Fault("x" * 100_000))
sender.send(Ping(2))
print(receiver.receive())
try:
    receiver.receive()
except MemfdLost:
    print("lost")
print(receiver.receive(), sender.queued)
"""


@pytest.mark.linux_only("gVisor has no limit of descriptors in flight")
def test_with_too_many_descriptors_in_flight_a_message_arrives_without_its_files() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SENDER_WITH_TOO_MANY_IN_FLIGHT, root],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.splitlines() == [
        repr((Ping(1), [-1, -1])),
        "lost",
        f"{(Ping(2), [])} 0",
    ]


def test_a_sender_without_a_descriptor_for_the_memfd_says_so_and_leaks_nothing(pair: Pair) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptor = pipe_with(b"")
    before = open_descriptors()
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            pair[0].send(Fault("x" * 100_000), [descriptor])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert before - open_descriptors() == {descriptor}
    assert pair[0].queued == 0
    pair[0].send(Ping(1))
    assert pair[1].receive() == (Ping(1), [])


def test_every_descriptor_that_came_is_closed_number_0_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process without a standard input a received descriptor may have the number 0. -1 is a
    descriptor that somebody has taken over."""
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    _close([0, -1, 7])
    monkeypatch.undo()
    assert closed == [0, 7]
