from __future__ import annotations

import msgspec
import pytest

from execd_opensandbox.pty_messages import (
    MESSAGE,
    PtyInput,
    PtyPing,
    PtyResize,
    PtySignal,
    output_message,
    replay_message,
)


def test_messages_begin_with_their_kind() -> None:
    assert output_message("stdout", b"x") == b"\x01x"
    assert output_message("stderr", b"x") == b"\x02x"
    assert replay_message(258, b"x") == b"\x03\x00\x00\x00\x00\x00\x00\x01\x02x"


def test_messages_of_the_viewer() -> None:
    assert MESSAGE.decode(b'{"type":"stdin","data":"x"}') == PtyInput(data="x")
    assert MESSAGE.decode(b'{"type":"signal","signal":"SIGINT"}') == PtySignal(signal="SIGINT")
    assert MESSAGE.decode(b'{"type":"resize","cols":1,"rows":2}') == PtyResize(cols=1, rows=2)
    assert MESSAGE.decode(b'{"type":"ping","more":1}') == PtyPing()


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"type":"nope"}',
        b'{"type":"signal","signal":"SIGUSR1"}',
        b'{"type":"resize","cols":-1,"rows":1}',
        b'{"type":"stdin"}',
    ],
)
def test_other_messages_are_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        MESSAGE.decode(wrong)
