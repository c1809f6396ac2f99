"""``/execute`` and ``/contexts``: cells and contexts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from execd_e2b import code_interpreter
from tests.api.conftest import JSON, wait_until
from wings.e2b.tests.conftest import E2B, Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.api.conftest import Answer, Wire


@pytest_asyncio.fixture(loop_scope="session")
async def notebook(serve: Callable[..., Awaitable[Wire]]) -> AsyncIterator[Box]:
    """Sessions need an engine of their own, which ends with the test."""
    yield Box(await serve(dialect=E2B, has_own_engine=True))


async def post(box: Box, path: str, **fields: Any) -> Answer:
    return await box.wire.request("POST", path, json.dumps(fields).encode(), JSON)


async def lines(box: Box, code: str, **fields: Any) -> list[Any]:
    """The lines of a cell, but the first, the number, and the last, the end."""
    answer = await post(box, "/execute", code=code, **fields)
    assert answer.http_status == 200, answer.body
    assert answer.body.isascii()
    *found, rest = answer.body.split(b"\n")
    assert rest == b""
    first, *shown, last = [json.loads(line) for line in found]
    assert first["type"] == "number_of_executions"
    assert first["execution_count"] >= 1
    assert last == {"type": "end_of_execution"}
    return shown


async def test_variables_of_init_reach_new_contexts(notebook: Box) -> None:
    await post(notebook, "/init", envVars={"FROM_INIT": "yes"})
    [value] = await lines(notebook, "import os; os.environ['FROM_INIT']")
    assert value["text"] == "'yes'"


async def test_default_context_is_listed_before_its_first_cell(notebook: Box) -> None:
    [listed] = (await notebook.get("/contexts")).json()
    assert listed["id"] == code_interpreter.DEFAULT_CONTEXT
    assert listed["cwd"] == str(notebook.wire.base_dir)


@pytest.mark.parametrize(
    ("path", "fields", "http_status"),
    [
        ("/execute", {"code": "1", "context_id": "x", "language": "python"}, 400),
        ("/execute", {"code": "1", "context_id": "nothing"}, 404),
        ("/execute", {"code": "1", "language": "r"}, 501),
        ("/execute", {"command": "true"}, 400),
        ("/execute", {"code": "1", "env_vars": {"A=B": "1"}}, 400),
        ("/contexts", {"language": "javascript"}, 501),
        ("/contexts", {"cwd": "/no/such/dir"}, 400),
        ("/contexts/nothing/restart", {}, 404),
    ],
)
async def test_refusal_is_text_that_names_the_reason(
    notebook: Box, path: str, fields: Any, http_status: int
) -> None:
    answer = await post(notebook, path, **fields)
    assert answer.http_status == http_status
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.body
    assert not answer.body.startswith(b"{")


async def test_death_of_the_interpreter_is_an_error_and_the_next_cell_runs(notebook: Box) -> None:
    [error] = await lines(notebook, "import os; os._exit(3)")
    assert (error["type"], error["name"]) == ("error", "UnexpectedEndOfExecution")
    assert error["value"]
    assert [line["text"] for line in await lines(notebook, "6 * 7")] == ["42"]


async def test_silent_cell_is_kept_alive(notebook: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_interpreter, "KEEPALIVE_SECONDS", 0.05)
    gate = notebook.wire.base_dir / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    async with (
        asyncio.timeout(20),
        notebook.wire.client.post("/execute", data=json.dumps({"code": code})) as response,
    ):
        found = []
        async for line in response.content:
            found.append(json.loads(line))
            if found[-1] == {"type": "keepalive"}:
                gate.touch()
    assert gate.exists()
    assert found[-1] == {"type": "end_of_execution"}


async def test_caller_that_leaves_interrupts_the_cell(notebook: Box) -> None:
    body = json.dumps({"code": "print('on'); import time; time.sleep(600)"}).encode()
    async with notebook.wire.client.post("/execute", data=body, headers=JSON) as response:
        async with asyncio.timeout(20):
            while b"on" not in await response.content.readline():
                pass
        response.close()
    await wait_until(lambda: not notebook.wire.live(), "the cell has ended")
    assert [line["text"] for line in await lines(notebook, "6 * 7")] == ["42"]
