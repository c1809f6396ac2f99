"""A daemon elsewhere after all other tests of the suite (aftermath.py says why only elsewhere).

conftest.py puts these tests last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import aftermath

if TYPE_CHECKING:
    from .target import Target


def test_log_of_the_daemon_holds_no_error(target: Target) -> None:
    if not target.log:
        pytest.skip("the log of the daemon is not known (EXECD_LOG)")
    assert '"message":"request"' in target.log_text(), "this is the log of a daemon that worked"
    aftermath.log_holds_no_error(target)


def test_no_process_of_user_code_and_no_zombie_is_left(target: Target) -> None:
    aftermath.end_sessions(target)
    aftermath.no_process_is_left_elsewhere(target)
