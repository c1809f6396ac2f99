from __future__ import annotations

from typing import get_args

from execd.api.sandboxd_grpc.grpc_status import GRPC_STATUS
from execd.errors import ErrorCode


def test_each_error_has_a_status() -> None:
    assert GRPC_STATUS.keys() == set(get_args(ErrorCode))
