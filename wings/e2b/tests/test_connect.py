"""Frames, errors and headers of the Connect protocol."""

from __future__ import annotations

import base64
import json
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import ErrorCode, InvalidArgument, NotFound, NotSupported, PayloadTooLarge
from execd_e2b import connect
from execd_e2b.connect import (
    AlreadyExists,
    ConnectCode,
    ConnectDecoder,
    code_of,
    decode_bytes,
    encode_bytes,
    end_frame,
    error_fields,
    frame,
    only_message,
    parse_keepalive,
    parse_timeout,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MESSAGES = st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=5)


@given(messages=MESSAGES, data=st.data())
def test_decoder_finds_the_messages_however_the_bytes_are_cut(
    messages: list[dict[str, str]], data: st.DataObject
) -> None:
    body = b"".join(frame(message) for message in messages)
    decoder, found, at = ConnectDecoder(1 << 20), [], 0
    while at < len(body):
        size = data.draw(st.integers(1, len(body) - at))
        found += decoder.feed(body[at : at + size])
        at += size
    decoder.finish()
    assert [json.loads(message) for message in found] == messages


@given(message=st.dictionaries(TEXTS, TEXTS), missing=st.integers(1, 3))
def test_body_that_ends_in_a_frame_is_refused(message: dict[str, str], missing: int) -> None:
    decoder = ConnectDecoder(1 << 20)
    assert decoder.feed(frame(message)[:-missing]) == []
    with pytest.raises(InvalidArgument, match="middle of a frame"):
        decoder.finish()


def test_frame_has_a_flag_a_length_and_json() -> None:
    assert frame({"a": "é"}) == b"\0\0\0\0\x0a" + '{"a":"é"}'.encode()
    assert end_frame() == b"\2\0\0\0\2{}"
    told = end_frame(NotFound("gone \ud800"))
    assert told[:1] == b"\2"
    assert json.loads(told[5:]) == {"error": {"code": "not_found", "message": "gone ?"}}


def test_compressed_frame_is_refused_before_its_content_has_arrived() -> None:
    with pytest.raises(NotSupported, match="compressed"):
        ConnectDecoder(100).feed(struct.pack(">BI", 1, 50))


def test_frame_with_unknown_flags_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="flags 2"):
        ConnectDecoder(100).feed(struct.pack(">BI", 2, 50))


def test_large_frame_is_refused_by_its_length() -> None:
    assert ConnectDecoder(100).feed(struct.pack(">BI", 0, 100)) == []
    with pytest.raises(PayloadTooLarge, match="100 bytes"):
        ConnectDecoder(100).feed(struct.pack(">BI", 0, 101))


def test_call_with_one_message_takes_exactly_one() -> None:
    assert only_message(frame({}), 100) == b"{}"
    for body in (b"", frame({}) * 2):
        with pytest.raises(InvalidArgument, match="takes one frame"):
            only_message(body, 100)


def test_every_error_has_a_code_and_every_code_a_status() -> None:
    assert set(connect.CODES) == set(get_args(ErrorCode))
    assert set(connect.HTTP_STATUS) == set(get_args(ConnectCode))
    assert all(400 <= status < 600 for status in connect.HTTP_STATUS.values())


def test_existing_directory_has_a_code_of_its_own() -> None:
    assert code_of(AlreadyExists("there; use the directory")) == "already_exists"
    assert error_fields("unknown", "é")["message"] == "é"


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, None), ("1500", 1.5), (" 0 ", 0.0), ("9999999999", 9999999.999)]
)
def test_timeout_is_milliseconds(header: str | None, seconds: float | None) -> None:
    assert parse_timeout(header) == seconds


@pytest.mark.parametrize("header", ["", "-1", "1.5", "1e3", "x", "12345678901", "\u0661"])
def test_timeout_that_is_no_number_is_refused(header: str) -> None:
    with pytest.raises(InvalidArgument, match="Connect-Timeout-Ms"):
        parse_timeout(header)


@pytest.mark.parametrize(
    ("header", "seconds"), [("50", 50.0), (None, 90.0), ("0", 90.0), ("x", 90.0), ("-1", 90.0)]
)
def test_keepalive_is_seconds_and_90_without_a_number(header: str | None, seconds: float) -> None:
    assert parse_keepalive(header) == seconds


@given(data=st.binary(max_size=60))
def test_bytes_survive_base64_of_both_alphabets_with_and_without_padding(data: bytes) -> None:
    assert encode_bytes(data) == base64.b64encode(data).decode()
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        assert decode_bytes(encoded.decode(), "x") == data
        assert decode_bytes(encoded.decode().rstrip("="), "x") == data


@pytest.mark.parametrize("text", ["a", "a b=", "YWJj YWJj", "YW!Jj", "é", "\ud800"])
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="field: not base64"):
        decode_bytes(text, "field")
