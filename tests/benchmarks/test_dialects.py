from __future__ import annotations

import base64
import json

import pytest

from benchmarks.dialects import DIALECTS


def stream(*events: object) -> bytes:
    """Messages of the Connect protocol."""
    messages = [json.dumps(event).encode() for event in events]
    return b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)


OUT = {"data": {"stdout": base64.b64encode(b"hi\n").decode()}}
REPLIES = {
    "python_runtime": (
        b'{"stdout":"hi\\n","stderr":"","exit_code":0}',
        b'{"stdout":"hi\\n","stderr":"","exit_code":1}',
    ),
    "sandboxd": (b"\x12\x03hi\n\x1a\x01e", b"\x08\x01\x12\x03hi\n"),
    "opensandbox": (
        b'{"type":"init"}\n\n{"type":"stdout","text":"hi\\n"}\n\n{"type":"execution_complete"}\n\n',
        b'{"type":"stdout","text":"hi\\n"}\n\n{"type":"error","error":{"evalue":"1"}}\n\n',
    ),
    "e2b": (
        stream({"event": OUT}, {"event": {"end": {"status": "exit status 0"}}}),
        stream({"event": OUT}, {"event": {"end": {"exitCode": 1, "status": "exit status 1"}}}),
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_reply_of_each_dialect_has_the_output_and_tells_success_from_failure(name: str) -> None:
    success, failure = REPLIES[name]
    dialect = DIALECTS[name]
    assert dialect.is_success(success)
    assert dialect.output(success) == b"hi\n"
    assert not dialect.is_success(failure)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_request_of_each_dialect_carries_the_command_line(name: str) -> None:
    assert b"printf %s" in DIALECTS[name].payload("printf %s")


def test_the_request_to_sandboxd_is_a_message_of_the_shells_words() -> None:
    words = b"\n\x07/bin/sh\n\x02-c\n\x04true"
    assert DIALECTS["sandboxd"].payload("true") == b"\n" + bytes([len(words)]) + words


def test_a_long_command_has_a_length_of_several_bytes() -> None:
    payload = DIALECTS["sandboxd"].payload("x" * 300)
    assert b"\n\xac\x02" + b"x" * 300 in payload
