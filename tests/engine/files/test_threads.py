from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from execd.engine.files import threads
from execd.engine.files.threads import FileThreads, as_user
from execd.proc.spawn import KEEP_IDENTITY, Identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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


@pytest.mark.root
def test_a_call_as_another_user_is_judged_as_that_users_and_leaves_the_daemon_root(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(PermissionError):
        as_user(Identity(1234, 1234, ()), lambda: os.listdir(tmp_path))
    assert as_user(Identity(1234, 1234, ()), os.geteuid) == 1234
    assert as_user(KEEP_IDENTITY, os.geteuid) == os.geteuid() == 0
