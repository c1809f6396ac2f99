from __future__ import annotations

import pytest

from execd.proc import message_codec
from execd.proc.messages import Spawn

FLAGS = ("terminal", "is_idle", "announce")


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_of_a_spawn_arrives_alone(flag: str) -> None:
    flags = dict.fromkeys(FLAGS, False) | {flag: True}
    spawn = Spawn(1, b"x", [-1], False, [], 0, "A=b", None, None, None)._replace(**flags)
    decoded = message_codec.decode(message_codec.encode(spawn))
    assert isinstance(decoded, Spawn)
    assert {name: getattr(decoded, name) for name in FLAGS} == flags
