from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execd.kernel import frames
from execd.kernel.frames import (
    FROM_ZYGOTE,
    TO_WORKER,
    TO_ZYGOTE,
    FrameDecoder,
    FrameError,
)
from tests.kernel.worker_frames import FROM_WORKER

SOUND = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# A high surrogate and then a low one would become one character on the way.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20).filter(
    lambda text: not re.search("[\ud800-\udbff][\udc00-\udfff]", text)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | SOUND,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOUND, inner, max_size=3),
    max_leaves=10,
)
NATURALS = st.integers(0, 2**63 - 1)
OBJECTS = st.dictionaries(SOUND, JSON, max_size=3)


def of(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


TO_A_WORKER = st.one_of(
    of(
        "configure",
        cwd=ANY_TEXT,
        env=st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3),
        limits=st.lists(st.lists(st.integers(-1, 2**40), min_size=3, max_size=3), max_size=3),
    ),
    of(
        "execute",
        id=NATURALS,
        code=ANY_TEXT,
        allow_input=st.booleans(),
        store_history=st.booleans(),
    ),
    of(
        "execute",
        id=NATURALS,
        code=ANY_TEXT,
        allow_input=st.booleans(),
        store_history=st.booleans(),
        env=st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3),
    ),
    of("input", id=NATURALS, text=ANY_TEXT),
    of("complete", id=NATURALS, code=ANY_TEXT, cursor=NATURALS),
    of("variables", id=NATURALS, limit=NATURALS),
    of("fork", id=NATURALS, count=st.integers(1, frames.MAX_BRANCHES)),
)
FROM_A_WORKER = st.one_of(
    of("ready", python=SOUND, ipython=SOUND, warnings=st.lists(SOUND, max_size=2)),
    of("configured"),
    of("failed", message=SOUND),
    of(
        "display",
        id=NATURALS,
        data=OBJECTS,
        metadata=OBJECTS,
        display_id=st.none() | SOUND,
        update=st.booleans(),
    ),
    of("result", id=NATURALS, execution_count=NATURALS, data=OBJECTS, metadata=OBJECTS),
    of("error", id=NATURALS, name=SOUND, value=SOUND, traceback=st.lists(SOUND, max_size=3)),
    of("input_request", id=NATURALS, prompt=SOUND, password=st.booleans()),
    of("clear_output", id=NATURALS, wait=st.booleans()),
    of(
        "done",
        id=NATURALS,
        status=st.sampled_from(["success", "error"]),
        execution_count=NATURALS,
        exit=st.none() | st.fixed_dictionaries({"code": st.integers(0, 255)}),
    ),
    of("reply", id=NATURALS, matches=st.lists(SOUND, max_size=3)),
    of("reply", id=NATURALS, variables=st.lists(OBJECTS, max_size=3), total=NATURALS),
)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@given(st.lists(TO_A_WORKER, max_size=4), st.data())
def test_every_frame_to_a_worker_survives_its_journey_in_any_pieces(
    sent: list[dict[str, Any]], data: st.DataObject
) -> None:
    assert in_pieces(TO_WORKER, sent, data) == sent


@given(st.lists(FROM_A_WORKER, max_size=4), st.data())
def test_every_frame_from_a_worker_survives_its_journey_in_any_pieces(
    sent: list[dict[str, Any]], data: st.DataObject
) -> None:
    assert in_pieces(FROM_WORKER, sent, data) == sent


def in_pieces(
    direction: Any, sent: list[dict[str, Any]], data: st.DataObject
) -> list[dict[str, Any]]:
    stream = b"".join(map(frames.encode, sent))
    decoder = FrameDecoder(direction)
    received: list[dict[str, Any]] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    return received


def test_frames_arrive_byte_by_byte() -> None:
    stream = frames.encode({"type": "configured"}) * 2
    decoder = FrameDecoder(FROM_WORKER)
    assert [frame for byte in stream for frame in decoder.feed(bytes([byte]))] == [
        {"type": "configured"}
    ] * 2


@given(st.binary(max_size=300))
@example(framed(b""))
@example(framed(b"null"))
@example(framed(b"[]"))
@example(framed(b"{}"))
@example(framed(b'{"type":[]}'))
@example(framed(b'{"type":{}}'))
@example(framed(b'{"type":"execute"}'))
@example(framed(b"[" * 100_000))
@example(framed(b'{"type":"done","id":' + b"9" * 5000 + b"}"))
@example(b"\xff\xff\xff\xff")
def test_garbage_is_a_frame_that_could_have_been_sent_or_a_frame_error(data: bytes) -> None:
    for direction in (TO_WORKER, FROM_WORKER, TO_ZYGOTE, FROM_ZYGOTE):
        try:
            received = FrameDecoder(direction).feed(data)
        except FrameError:
            continue
        for frame in received:
            assert FrameDecoder(direction).feed(frames.encode(frame)) == [frame]


@given(FROM_A_WORKER, st.data())
def test_a_frame_with_one_field_of_another_kind_is_refused_or_still_a_frame(
    frame: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(frame)))
    frame = {**frame, name: data.draw(JSON)}
    try:
        received = FrameDecoder(FROM_WORKER).feed(framed(json.dumps(frame).encode()))
    except FrameError:
        return
    assert received == [frame]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"configured","more":1}',
        # fields of the opposite direction
        b'{"type":"execute","id":1,"code":"","allow_input":false,"store_history":true}',
        b'{"type":"failed"}',
        b'{"type":"failed","message":null}',
        b'{"type":"done","id":-1,"status":"success","execution_count":1,"exit":null}',
        b'{"type":"done","id":true,"status":"success","execution_count":1,"exit":null}',
        b'{"type":"done","id":1.0,"status":"success","execution_count":1,"exit":null}',
        b'{"type":"done","id":1,"status":"fine","execution_count":1,"exit":null}',
        b'{"type":"done","id":1,"status":"success","execution_count":1,"exit":{"code":256}}',
        b'{"type":"done","id":1,"status":["success"],"execution_count":1,"exit":null}',
        b'{"type":"display","id":1,"data":{"a":NaN},"metadata":{},"display_id":null,"update":false}',
        b'{"type":"failed","message":"\xff"}',
    ],
)
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder(FROM_WORKER).feed(framed(payload))


def test_a_frame_ends_at_its_limit() -> None:
    fitting = {
        "type": "failed",
        "message": "x" * (frames.FRAME_BYTES - len('{"type":"failed","message":""}')),
    }
    assert FrameDecoder(FROM_WORKER).feed(frames.encode(fitting)) == [fitting]
    with pytest.raises(FrameError):
        frames.encode({**fitting, "message": fitting["message"] + "x"})
    with pytest.raises(FrameError):
        FrameDecoder(FROM_WORKER).feed((frames.FRAME_BYTES + 1).to_bytes(4, "big"))


def test_text_from_a_worker_can_be_written_as_utf_8() -> None:
    frame = {"type": "failed", "message": "\ud800 and \ude00\U0001f600"}
    [received] = FrameDecoder(FROM_WORKER).feed(frames.encode(frame))
    assert received["message"] == "\ufffd and \ufffd\U0001f600"


def test_undecodable_bytes_reach_the_worker() -> None:
    frame = {
        "type": "configure",
        "cwd": b"/\xff".decode(errors="surrogateescape"),
        "env": {},
        "limits": [],
    }
    assert FrameDecoder(TO_WORKER).feed(frames.encode(frame)) == [frame]


@pytest.mark.parametrize("code", [0, 1, 255])
def test_an_exit_with_any_code_of_a_process_is_a_frame(code: int) -> None:
    frame = {
        "type": "done",
        "id": 1,
        "status": "success",
        "execution_count": 1,
        "exit": {"code": code},
    }
    assert FrameDecoder(FROM_WORKER).feed(frames.encode(frame)) == [frame]
