"""The tools after a reset, with a daemon of their own: a reset ends what other tests have."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from execd_client import Execd
from tests.client.mcp_server.conftest import call, refused, stdio
from tests.conformance.target import TERMINATED, start

if TYPE_CHECKING:
    from pathlib import Path


async def test_model_goes_on_after_somebody_elses_reset(tmp_path: Path) -> None:
    target = start(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(target.stop)
        sandbox = stack.enter_context(Execd(target.url))
        sandbox.files.write("task/notes.txt", "as before")
        sandbox.checkpoint("task", roots=["task"])
        async with stdio(target) as client:
            await call(client, "write_file", path="task/made.txt", content="x")
            assert "clean" in await call(client, "reset", checkpoint="task")
            assert await call(client, "list_files", path="task") == "notes.txt  9"
            with Execd(target.url) as somebody:
                await asyncio.to_thread(somebody.reset, "task")
            shown = await refused(client, "list_files", path="task")
            assert "Next: The sandbox was reset" in shown
            assert await call(client, "list_files", path="task") == "notes.txt  9"
    assert target.stop() == TERMINATED, target.log_text()
