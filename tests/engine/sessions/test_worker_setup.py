from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from execd.engine.sessions import worker_setup
from execd.errors import InvalidArgument
from execd.kernel import frames
from execd.model import Limits


class RefusingWorker:
    marker_id = "s"
    limits = Limits()

    async def request(self, frame: dict[str, Any], _: float) -> None:
        raise frames.FrameError("too long")


class Context:
    config = SimpleNamespace(base_dir="/base")
    warden = SimpleNamespace(has_namespace=True)

    async def ensure_base_dir(self) -> None:
        pass

    async def build_environment(self, *_: object) -> tuple[dict[str, str], None]:
        return {}, None


@pytest.mark.parametrize(("cwd", "field"), [(None, "env"), ("/long", "cwd")])
async def test_a_configuration_over_the_size_of_a_frame_is_blamed_on_what_the_caller_gave(
    cwd: str | None, field: str
) -> None:
    worker, context = cast("Any", RefusingWorker()), cast("Any", Context())
    with pytest.raises(InvalidArgument) as refused:
        await worker_setup._configure(worker, context, cwd, {})
    assert refused.value.details["field"] == field
