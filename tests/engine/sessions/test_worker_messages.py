"""How the daemon reads a worker's bytes: any bytes give a claim or a FrameError, and never take
more memory than the bytes themselves."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.sessions import worker_messages
from execd.kernel import frames
from tests.kernel.worker_frames import FROM_WORKER

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FRAMES = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("display"),
            "id": st.integers(0, 9),
            "data": st.dictionaries(st.text(), JSON),
            "metadata": st.just({}),
            "display_id": st.none() | st.text(),
            "update": st.booleans(),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("result"),
            "id": st.integers(0, 9),
            "execution_count": st.integers(0, 9),
            "data": st.dictionaries(st.text(), JSON),
            "metadata": st.just({}),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("error"),
            "id": st.integers(0, 9),
            "name": st.text(),
            "value": st.text(),
            "traceback": st.lists(st.text()),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("done"),
            "id": st.integers(0, 9),
            "status": st.sampled_from(["success", "error"]),
            "execution_count": st.integers(0, 9),
            "exit": st.none() | st.just({"code": 3}),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("reply"),
            "id": st.integers(0, 9),
            "matches": st.lists(st.text()),
            "cursor_start": st.integers(0, 9),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("input_request"),
            "id": st.integers(0, 9),
            "prompt": st.text(),
            "password": st.booleans(),
        }
    ),
)


@given(FRAMES)
def test_what_a_worker_says_is_taken_and_passed_on_unchanged(frame: dict[str, object]) -> None:
    claim = worker_messages.decode(frames.encode(frame)[4:])
    (shared,) = frames.FrameDecoder(FROM_WORKER).feed(frames.encode(frame))
    again = msgspec.json.decode(msgspec.json.encode(claim))
    assert {name: again[name] for name in shared} == shared


@given(
    st.binary()
    | FRAMES.map(lambda frame: frames.encode(frame)[4:]).flatmap(
        lambda good: st.integers(0, len(good)).map(lambda cut: good[:cut] + b"\xff" + good[cut:])
    )
)
def test_other_bytes_are_a_frame_error_and_nothing_else(payload: bytes) -> None:
    try:
        worker_messages.decode(payload)
    except frames.FrameError:
        return


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"configure"}',
        b'{"type":"done","id":1,"status":"maybe","execution_count":1,"exit":null}',
        b'{"type":"done","id":1,"status":"success","execution_count":1,"exit":null,"more":1}',
        b'{"type":"done","id":1,"status":"error","execution_count":1,"exit":{"code":256}}',
        b'{"type":"done","id":1,"status":"error","execution_count":1,"exit":{"code":-1}}',
        b'{"type":"done","id":-1,"status":"error","execution_count":1,"exit":null}',
        b'{"type":"done","id":1,"status":"success","execution_count":1'
        + b"0" * 400
        + b',"exit":null}',
        b'{"type":"done","id":1,"status":"success","execution_count":1.5,"exit":null}',
        b'{"type":"result","id":1,"execution_count":9223372036854775808,"data":{},"metadata":{}}',
        b'{"type":"result","id":1,"execution_count":1,"data":[],"metadata":{}}',
        b'{"type":"result","id":1,"execution_count":1,"data":{},"metadata":[]}',
        b'{"type":"display","id":1,"data":[],"metadata":{},"display_id":null,"update":false}',
        b'{"type":"display","id":1,"data":{},"metadata":[],"display_id":null,"update":false}',
        b'{"type":"display","id":1,"data":{},"metadata":null,"display_id":null,"update":false}',
        b'{"type":"reply","id":1,"matches":{}}',
        b'{"type":"reply","id":1,"matches":"text"}',
        b'{"type":"reply","id":1,"variables":{}}',
        b'{"type":"reply","id":1,"variables":null}',
        b'{"type":"reply","id":1,"warnings":"text"}',
        b'{"type":"reply","id":1,"cursor_start":-1}',
        b'{"type":"reply","id":1,"cursor_end":"1"}',
        b'{"type":"reply","id":1,"total":-1}',
        b'{"type":"reply","id":1,"error":1}',
        b'{"type":"error","id":1,"name":"E","value":"v","traceback":"text"}',
        b'{"type":"result","id":1,"execution_count":1,"data":{"a":"\xff"},"metadata":{}}',
        b'{"type":"result","id":1,"execution_count":1,"data":{"a":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b'},"metadata":{}}',
        b'{"type":"result","id":1,"execution_count":1,"data":{"a":NaN},"metadata":{}}',
    ],
)
def test_malformed_claims_are_refused(payload: bytes) -> None:
    with pytest.raises(frames.FrameError):
        worker_messages.decode(payload)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud800\ud800x", "\ufffd\ufffdx"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\U0001f600", "\U0001f600"),
        ("\ud800\U0001f600\udc00", "\ufffd\U0001f600\ufffd"),
        ("\\ud800", "\\ud800"),
        ("\\\\\ud800", "\\\\\ufffd"),
    ],
)
def test_lone_surrogates_become_replacement_characters(said: str, meant: str) -> None:
    frame = {
        "type": "display",
        "id": 1,
        "data": {"text/plain": said},
        "metadata": {},
        "display_id": None,
        "update": False,
    }
    claim = worker_messages.decode(frames.encode(frame)[4:])
    assert isinstance(claim, worker_messages.Display)
    assert msgspec.json.decode(claim.data) == {"text/plain": meant}


def test_a_bundle_of_many_small_things_takes_no_more_memory_than_its_bytes() -> None:
    payload = (
        b'{"type":"result","id":1,"execution_count":1,"data":{"a":['
        + b"[]," * 3_000_000
        + b"0"
        + b']},"metadata":{}}'
    )
    tracemalloc.start()
    try:
        claim = worker_messages.decode(payload)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(claim, worker_messages.CellResult)
    assert peak_bytes < 2 * len(payload)
