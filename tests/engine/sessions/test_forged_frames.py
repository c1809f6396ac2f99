"""A worker's word is a claim. User code sends any frames of hypothesis's invention over the link of
a real worker to a real engine.

User code may falsify the result of the running cell, or end the worker. User code changes no count
and no figure, and no generation without the kernel's word. The neighbour sessions hear of nothing.
The engine can write every accepted frame into an answer, and refuses the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from execd.engine.sessions.session_state import SessionState
from execd.kernel import frames
from execd.model import ExitReason, State
from tests import drawn
from tests.engine.sessions.test_manager import begin, run, sessions_in, value
from tests.profiles import examples
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OWN, NEXT = "<own>", "<next>"
"""Placeholders for the number of the running cell, and of the following cell."""

INTEGERS = st.sampled_from(
    [OWN, NEXT, 0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**400]
) | st.integers(0, 40)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
TEXTS = st.text(max_size=20)
BUNDLES = st.dictionaries(TEXTS, JSON, max_size=3)
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "ready": {"python": TEXTS, "ipython": TEXTS, "warnings": st.lists(TEXTS, max_size=2)},
    "configured": {},
    "failed": {"message": TEXTS},
    "display": {
        "id": INTEGERS,
        "data": BUNDLES,
        "metadata": BUNDLES,
        "display_id": st.none() | TEXTS,
        "update": st.booleans(),
    },
    "result": {"id": INTEGERS, "execution_count": INTEGERS, "data": BUNDLES, "metadata": BUNDLES},
    "error": {
        "id": INTEGERS,
        "name": TEXTS,
        "value": TEXTS,
        "traceback": st.lists(TEXTS, max_size=2),
    },
    "input_request": {"id": INTEGERS, "prompt": TEXTS, "password": st.booleans()},
    "clear_output": {"id": INTEGERS, "wait": st.booleans()},
    "done": {
        "id": INTEGERS,
        "status": st.sampled_from(["success", "error", "maybe"]),
        "execution_count": INTEGERS,
        "exit": st.none() | st.fixed_dictionaries({"code": INTEGERS}),
    },
    "reply": {
        "id": INTEGERS,
        "warnings": st.lists(TEXTS, max_size=2),
        "native_threads": st.lists(TEXTS, max_size=2),
        "total": INTEGERS,
        "variables": st.just([{}]),
    },
    "execute": {
        "id": INTEGERS,
        "code": TEXTS,
        "allow_input": st.booleans(),
        "store_history": st.booleans(),
    },
}


@st.composite
def a_frame(draw: st.DrawFn) -> dict[str, Any]:
    """A frame of the right shape. Now and then a field is wrong, missing or too much."""
    kind = draw(st.sampled_from(sorted(FIELDS)))
    frame = {"type": kind, **{name: draw(values) for name, values in FIELDS[kind].items()}}
    twist = draw(st.sampled_from(["none"] * 6 + ["wrong", "missing", "more"]))
    if twist == "more":
        frame["more"] = draw(JSON)
    elif twist != "none" and len(frame) > 1:
        name = draw(st.sampled_from(sorted(set(frame) - {"type"})))
        if twist == "wrong":
            frame[name] = draw(JSON)
        else:
            del frame[name]
    return frame


COUNTS = range(2**63)

DONE = {"type": "done", "id": OWN, "status": "success", "execution_count": 1, "exit": None}
RESULT = {
    "type": "result",
    "id": OWN,
    "execution_count": 1,
    "data": {"text/plain": "forged"},
    "metadata": {},
}
DEEP = (
    b'{"type":"result","id":1,"execution_count":1,"metadata":{},"data":'
    + b'{"a":' * 20_000
    + b"1"
    + b"}" * 20_001
)
SAID = st.lists(a_frame() | st.binary(max_size=40), min_size=1, max_size=5)


def filled(value: Any, own: int) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, own) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, own) for item in value]
    return {OWN: own, NEXT: own + 1}.get(value, value) if isinstance(value, str) else value


def as_bytes(said: dict[str, Any] | bytes, own: int) -> bytes:
    """Return frames as bytes, even if frames.encode refuses a value as JSON. Return bytes
    unchanged."""
    if isinstance(said, bytes):
        return said
    payload = json.dumps(filled(said, own)).encode()
    return len(payload).to_bytes(frames.HEADER_BYTES, "big") + payload


SPEAK = """
import os, socket
for _fd in range(3, 5000):
    try:
        if not os.readlink(f'/proc/self/fd/{_fd}').startswith('socket:'): continue
        with socket.socket(fileno=os.dup(_fd)) as _end:
            for _data in %r: _end.sendall(_data)
    except OSError: pass
"""


def test_whatever_a_worker_says_falsifies_no_more_than_the_result_of_its_own_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with asyncio.Runner() as runner:
        world = sessions_in(tmp_path, interrupt_grace_seconds=0.1, session_pool=1)
        engine = runner.run(world.__aenter__())
        try:
            session = runner.run(engine.sessions.create())
            neighbour = runner.run(engine.sessions.create())
            busy = runner.run(engine.sessions.create())
            runner.run(run(engine, neighbour, "kept = 'kept'"))

            async def occupy() -> Any:
                cell = begin(engine, busy, "import time\nwhile True: time.sleep(0.01)")
                await wait_until_async(lambda: cell.state is State.RUNNING, 20)
                return cell

            occupied = runner.run(occupy())

            @settings(examples(0.6), suppress_health_check=list(HealthCheck))
            @given(SAID)
            @example([DONE, RESULT, DONE])
            @example([{**DONE, "execution_count": 10**30}])
            @example([{**DONE, "status": "error", "exit": {"code": 2**62}}])
            @example([{**RESULT, "data": {"x": float("nan")}}])
            @example([len(DEEP).to_bytes(4, "big") + DEEP])
            @example([b"\xff\xff\xff\xff", DONE])
            @example([b"\0\0\0\x02[]"])
            @example([DONE, b"\0"])
            @example([DONE, b"\0\0\1\0"])
            def speak(said: list[dict[str, Any] | bytes]) -> None:
                drawn.note(said)
                runner.run(hear(said))

            async def hear(said: list[dict[str, Any] | bytes]) -> None:
                generation = session.generation_of_next_cell
                own = session._number + 1
                code = SPEAK % [as_bytes(one, own) for one in said]
                cell = await run(engine, session, code, timeout_seconds=0.5)
                result = cell.result
                assert result is not None
                assert result.exit_reason in {
                    ExitReason.EXITED,
                    ExitReason.WORKER_DIED,
                    ExitReason.TIMEOUT,
                }
                assert result.exit_code in range(256) or result.term_signal is not None
                if result.exit_reason is ExitReason.EXITED:
                    assert (cell.cell.status == "success") is (result.exit_code == 0)
                    assert cell.cell.execution_count in COUNTS
                else:
                    assert cell.cell.status == "error"
                assert result.usage is not None
                if result.exit_reason is not ExitReason.TIMEOUT:  # IPython tells of an interrupt
                    assert result.usage.output_bytes == 0
                assert cell.cell.generation == generation
                # All of the output can be written into an answer, and read again.
                msgspec.json.decode(
                    msgspec.json.encode([dict(rich.fields) for rich in cell.output.rich])
                )
                assert all(
                    rich.fields.get("execution_count", 0) in COUNTS for rich in cell.output.rich
                )
                # The next cell waits for the rest of the forging cell.
                after = await run(engine, session, "None", timeout_seconds=5)
                assert after.cell.generation - generation in (0, 1)
                # A cell may forge the number of its session, and no more.
                assert session.execution_count in COUNTS
                if after.result.exit_reason is not ExitReason.EXITED:  # by half a frame
                    assert after.cell.execution_count is None
                    after = await run(engine, session, "None", timeout_seconds=5)
                    assert after.result.exit_reason is ExitReason.EXITED
                assert session.execution_count == after.cell.execution_count
                assert session.state in (SessionState.IDLE, SessionState.DEAD)
                if result.exit_reason is ExitReason.WORKER_DIED:
                    assert (after.cell.generation, after.cell.state_lost) == (generation + 1, True)
                # The neighbours have not heard of the frames.
                assert await value(engine, neighbour, "kept") == "'kept'"
                assert (neighbour.life.generation, busy.life.generation) == (1, 1)
                assert (occupied.state, occupied.output.rich) == (State.RUNNING, [])

            speak()
        finally:
            runner.run(world.__aexit__(None, None, None))
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
