from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execd.proc import message_codec, messages
from execd.proc.messages import Exited, Kill, Message, Ping, ProtocolError, Signal, Spawn
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGERS = st.integers(-(2**63), 2**64 - 1)
# These surrogates stand for undecodable bytes of arguments and file names (os.fsdecode).
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.sampled_from(list(map(chr, range(0xDC80, 0xDD00)))),
    max_size=20,
)
VALUES: dict[object, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: TEXTS,
    list[str]: st.lists(TEXTS, max_size=5),
    list[int]: st.lists(INTEGERS, max_size=5),
}
I32 = st.integers(-(2**31), 2**31 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(0, 2**32 - 2)
SPAWN_VALUES = (
    U64,
    st.binary(max_size=20),
    st.lists(I32, max_size=5),
    st.booleans(),
    st.lists(st.tuples(I32, U64, U64).map(list), max_size=5),
    U64,
    st.text(max_size=20) | st.binary(max_size=20).map(os.fsdecode),
    st.none() | IDS,
    st.none() | IDS,
    st.none() | st.lists(IDS, max_size=5),
    U64,
    st.booleans(),
    st.booleans(),
)
"""Numbers that system calls take, by field."""
TYPES: tuple[Any, ...] = (*get_args(messages.Request), *get_args(messages.Reply))


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    return draw_message(draw, draw(st.sampled_from(TYPES)))


def draw_message(draw: Callable[[st.SearchStrategy[Any]], Any], cls: Any) -> Message:
    values = (VALUES[cls.__annotations__[name]] for name in cls._fields if cls is not Spawn)
    message: Message = cls(*map(draw, SPAWN_VALUES if cls is Spawn else values))
    return message


MESSAGES = any_message()


@given(MESSAGES)
def test_every_message_survives_its_journey(message: Message) -> None:
    decoded = message_codec.decode(message_codec.encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize("cls", TYPES)
@given(data=st.data())
@examples(0.05)
def test_every_message_type_is_known_to_the_decoder(cls: Any, data: st.DataObject) -> None:
    assert type(message_codec.decode(message_codec.encode(draw_message(data.draw, cls)))) is cls


def checked_decode(payload: bytes) -> None:
    """Decode to a possible message of ``encode``, or raise only ProtocolError."""
    try:
        message = message_codec.decode(payload)
    except ProtocolError:
        return
    assert message_codec.decode(message_codec.encode(message)) == message


@given(st.binary(max_size=300))
@example(b"")
@example(b"[]")
@example(b"null")
@example(b"[[]]")
@example(b"[{}]")
@example(b'["Ping"]')
@example(b'["Ping",true]')
@example(b'["Ping",1,2]')
@example(b'["Ping",1.0]')
@example(b'["Ping",18446744073709551616]')
@example(b'["Kill",1,NaN]')
@example(b'["Kill",1,Infinity]')
@example(b'["Kill",1,1e999]')
@example(b'["Kill",1,-1e999]')
@example(b'["Exited",1,0,0,0,0,1e400,0,0,0,0]')
@example(b'["Exited",7,8,9007199254740993,2,0,1,2,3,4,5,6,false]')
@example(b'["Fault","\\ud800"]')
@example(b'["Fault","\xff"]')
@example(b'["Ping",' + b"9" * 5000 + b"]")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'"\\')
def test_any_bytes_are_a_message_or_a_protocol_error(payload: bytes) -> None:
    checked_decode(payload)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.sampled_from([cls.__name__ for cls in TYPES]), st.lists(JSON, max_size=13))
def test_any_json_under_a_known_name_is_a_message_or_a_protocol_error(
    name: str, fields: list[Any]
) -> None:
    checked_decode(json.dumps([name, *fields]).encode())


@given(MESSAGES, st.data())
def test_a_message_with_one_field_of_another_kind_is_a_protocol_error_or_still_a_message(
    message: Message, data: st.DataObject
) -> None:
    fields: list[Any] = [repr(one) if isinstance(one, bytes) else one for one in message]
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(JSON)
    checked_decode(json.dumps([type(message).__name__, *fields]).encode())


@given(MESSAGES, st.data())
def test_a_truncated_message_is_a_protocol_error(message: Message, data: st.DataObject) -> None:
    payload = message_codec.encode(message)
    with pytest.raises(ProtocolError):
        message_codec.decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


def test_a_whole_number_that_no_float_holds_is_no_float() -> None:
    payload = b'["Exited",7,8,%d,2,0,1,2,3,4,5,6,false]'
    message_codec.decode(payload % 2**53)
    with pytest.raises(ProtocolError):
        message_codec.decode(payload % (2**53 + 1))


def test_the_number_that_stands_for_no_group_is_no_group() -> None:
    payload = message_codec.encode(Spawn(7, b"", [], False, [], 0, "", 1, 2, [2**32 - 2]))
    assert payload.count(b"\xfe\xff\xff\xff") == 1
    with pytest.raises(ProtocolError):
        message_codec.decode(payload.replace(b"\xfe\xff\xff\xff", b"\xff\xff\xff\xff"))


@given(MESSAGES, st.data())
def test_a_message_with_one_byte_changed_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    payload = bytearray(message_codec.encode(message))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    checked_decode(bytes(payload))


PLAIN = Spawn(7, b"program", [-1, 0, 1], False, [[7, 1, 2]], 0, "M=1", 1, 2, [3])


@pytest.mark.parametrize(
    "fields",
    [
        {"tag": -1},
        {"tag": 2**64},
        {"stdio": [2**31]},
        {"stdio": [0] * 256},
        {"limits": [[7, 1]]},
        {"limits": [[7, -1, 1]]},
        {"limits": [[2**31, 1, 1]]},
        {"processes": -1},
        {"memory_bytes": 2**64},
        {"uid": -1},
        {"uid": 2**32 - 1},
        {"gid": 2**32},
        {"groups": [2**32 - 1]},
        {"marker": "\ud800"},
        {"marker": "x" * 65_536},
    ],
)
def test_a_spawn_with_a_value_that_no_system_call_takes_is_refused(fields: dict[str, Any]) -> None:
    assert message_codec.decode(message_codec.encode(PLAIN)) == PLAIN
    with pytest.raises(ValueError, match=r"number|id|encode"):
        message_codec.encode(PLAIN._replace(**fields))


@pytest.mark.parametrize("flags", [8, 128, 255])
def test_a_spawn_with_an_unknown_flag_is_refused(flags: int) -> None:
    payload = bytearray(message_codec.encode(PLAIN))
    payload[1] = flags
    with pytest.raises(ProtocolError, match="Spawn"):
        message_codec.decode(bytes(payload))


def test_a_spawn_in_json_is_unknown() -> None:
    with pytest.raises(ProtocolError, match="unknown"):
        message_codec.decode(json.dumps(["Spawn", 1]).encode())


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name", ["spawned_at", "at", "user_seconds", "system_seconds", "spawn_seconds"]
)
def test_an_exit_at_no_time_is_refused(name: str, seconds: float) -> None:
    ended = Exited(1, 2, 3.0, 4.0, 0, 0.5, 0.25, 100)
    payload = message_codec.encode(ended)
    assert message_codec.decode(payload) == ended
    with pytest.raises(ProtocolError, match="Exited"):
        message_codec.decode(message_codec.encode(ended._replace(**{name: seconds})))


def test_an_exit_whose_numbers_have_no_room_of_fixed_size_survives_as_well() -> None:
    ended = Exited(2**64 - 1, 2**63, 3.0, 4.0, 0, 0.5, 0.25, 100)
    assert message_codec.decode(message_codec.encode(ended)) == ended


@pytest.mark.parametrize(
    "fields",
    [
        [1, 8, 0.0, 0.0, 0, 0, 0, 0, 0, 0],
        [1, 8, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 8, 0, 0, 0.5, 0, 0, 0, 0, 0, 0],
        [None] * 11,
    ],
)
def test_an_exit_with_wrong_fields_is_refused(fields: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="Exited"):
        message_codec.decode(json.dumps(["Exited", *fields]).encode())


def test_whole_numbers_may_stand_for_seconds() -> None:
    assert message_codec.decode(b'["Kill",7,2,0]') == Kill(7, 2)
    assert message_codec.decode(b'["Exited",7,8,1,2,0,1,2,3,4,5,6,false]') == Exited(
        7, 8, 1, 2, 0, 1, 2, 3, 4, 5, 6
    )


def test_a_payload_over_the_bound_is_refused_unread() -> None:
    payload = message_codec.encode(messages.Fault("x" * message_codec.MAX_MESSAGE_BYTES))
    with pytest.raises(ProtocolError, match="size limit"):
        message_codec.decode(payload)


@given(st.booleans(), st.integers(0, message_codec.MAX_DESCRIPTORS), MESSAGES)
def test_a_header_says_what_was_put_into_it(
    in_memfd: bool, n_descriptors: int, message: Message
) -> None:
    payload = message_codec.encode_tag(message) if in_memfd else message_codec.encode(message)
    datagram = message_codec.header(in_memfd=in_memfd, n_descriptors=n_descriptors) + payload
    if in_memfd and n_descriptors == 0:
        with pytest.raises(ProtocolError):
            message_codec.split(datagram)
    else:
        assert message_codec.split(datagram) == (in_memfd, n_descriptors, payload)


@given(MESSAGES)
def test_a_tag_is_read_as_it_was_written(message: Message) -> None:
    tag = getattr(message, "tag", 0)
    if tag >= 0:
        assert message_codec.decode_tag(message_codec.encode_tag(message)) == tag


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"1 ", "\u0661".encode(), b"9" * 21])
def test_what_is_no_tag_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        message_codec.decode_tag(text)


@given(st.binary(max_size=50))
@example(b"")
@example(b"\0")
@example(b"\0\xff")
@example(b"\2\0")
@example(b"\1\1x")
def test_any_datagram_is_split_or_a_protocol_error(datagram: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        in_memfd, n_descriptors, payload = message_codec.split(datagram)
        assert (
            datagram
            == message_codec.header(in_memfd=in_memfd, n_descriptors=n_descriptors) + payload
        )


def test_requests_and_replies_are_apart() -> None:
    assert not set(get_args(messages.Request)) & set(get_args(messages.Reply))
    assert message_codec.encode(Ping(1)) == b'["Ping",1]'
    assert message_codec.encode(Signal(1, 15, True)) == b'["Signal",1,15,true,0]'


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**64])
def test_a_number_that_no_64_bits_hold_is_refused(number: int) -> None:
    message = message_codec.encode(Ping(7))
    assert message_codec.decode(message) == Ping(7)
    with pytest.raises(ProtocolError):
        message_codec.decode(message.replace(b"7", str(number).encode()))
