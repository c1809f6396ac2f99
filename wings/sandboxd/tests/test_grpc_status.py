from __future__ import annotations

from typing import get_args

from execd.errors import ErrorCode
from execd_sandboxd.grpc_status import GRPC_STATUS


def test_each_error_has_a_status() -> None:
    assert GRPC_STATUS.keys() == set(get_args(ErrorCode))
