from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wires import Grpc, Http11, UnexpectedReply, Wire, frame

SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nServer: x\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n0\r\n\r\nz\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM = 1


def replies(wire: Wire, pieces: list[bytes]) -> list[bytes]:
    return [reply for piece in pieces if (reply := wire.receive(piece)[1]) is not None]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize(
    ("reply", "body"), [(SIZED, b"hello"), (CHUNKED, b"hello0\r\n\r\nz"), (EMPTY, b"")]
)
@given(places=st.lists(st.integers(0, 200), max_size=6))
def test_an_http_reply_ends_where_it_ends_however_it_is_cut(
    reply: bytes, body: bytes, places: list[int]
) -> None:
    wire = Http11()
    assert replies(wire, cut(reply, places)) == [body]
    assert replies(wire, [reply]) == [body]  # on the same connection


@pytest.mark.parametrize("http_status", [b"400 Bad Request", b"500 Oops", b"302 Found"])
def test_an_http_error_is_never_counted_as_work(http_status: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        Http11().receive(b"HTTP/1.1 " + http_status + b"\r\nContent-Length: 0\r\n\r\n")


def grpc_reply(stream: int, message: bytes) -> bytes:
    data = b"\0" + len(message).to_bytes(4, "big") + message
    half = len(data) // 2
    return (
        frame(HEADERS, 4, stream, b"\x88")
        + frame(DATA, 0, stream, data[:half])
        + frame(DATA, 0, stream, data[half:])
        + frame(HEADERS, 4 | END_STREAM, stream, b"\x88")
    )


@given(places=st.lists(st.integers(0, 200), max_size=6), message=st.binary(max_size=40))
def test_a_grpc_reply_is_the_message_of_all_data_frames(places: list[int], message: bytes) -> None:
    wire = Grpc("/a.B/C")
    for number in range(2):
        wire.request(b"x")
        assert replies(wire, cut(grpc_reply(2 * number + 1, message), places)) == [message]


def test_each_grpc_call_has_the_next_odd_stream() -> None:
    wire = Grpc("/a.B/C")
    streams = [int.from_bytes(wire.request(b"")[5:9], "big") for _ in range(3)]
    assert streams == [1, 3, 5]


def test_a_ping_and_settings_of_the_server_are_acknowledged() -> None:
    wire = Grpc("/a.B/C")
    assert wire.receive(frame(PING, 0, 0, b"12345678")) == (frame(PING, 1, 0, b"12345678"), None)
    assert wire.receive(frame(SETTINGS, 0, 0, b"")) == (frame(SETTINGS, 1, 0, b""), None)
    assert wire.receive(frame(SETTINGS, 1, 0, b"")) == (b"", None)


def test_a_grpc_error_is_never_counted_as_work() -> None:
    wire = Grpc("/a.B/C")
    wire.request(b"")
    with pytest.raises(UnexpectedReply, match="without a message"):
        wire.receive(frame(HEADERS, 4 | END_STREAM, 1, b"\x88"))
    with pytest.raises(UnexpectedReply, match="type 3"):
        wire.receive(frame(RST_STREAM, 0, 1, b"\0\0\0\1"))
