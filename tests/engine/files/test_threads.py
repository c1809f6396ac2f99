from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from execd.engine.files import threads
from execd.engine.files.threads import FileThreads
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize("identity", [KEEP_IDENTITY, Identity(1234, 5678, ())])
async def test_threads_act_as_another_user_and_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, identity: Identity
) -> None:
    """Acting as oneself would lose the groups of a root daemon, and fail for any other user."""
    acted: list[Identity] = []
    monkeypatch.setattr(threads, "act_as", acted.append)
    made = FileThreads(identity)
    try:
        await made.run(lambda: None)
    finally:
        made.close()
        made._executor.shutdown(wait=True)
    expected: Sequence[Identity] = [] if identity == KEEP_IDENTITY else [identity]
    assert acted == expected
