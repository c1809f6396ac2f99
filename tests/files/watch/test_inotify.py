from __future__ import annotations

import ctypes
import errno

import pytest

from execd.files.watch.inotify import _checked


def test_only_a_negative_result_is_an_error() -> None:
    """A process without a standard input may get a queue with the number 0."""
    assert _checked(0) == 0
    ctypes.set_errno(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        _checked(-1)
