"""Code with state, in Python and bash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from wings.opensandbox.tests.conftest import OpenSandbox


async def test_python_keeps_state_and_shows_results_and_errors(
    with_sessions: OpenSandbox,
) -> None:
    ran = await with_sessions.run_code("x = 41\nprint('hi')\nx + 1")
    kinds = [event["type"] for event in ran.events]
    assert kinds == ["init", "stdout", "execution_count", "result", "execution_complete"]
    assert ran.one("result")["results"] == {"text": "42"}
    assert ran.one("execution_count")["execution_count"] == 1
    failed = await with_sessions.run_code("x / 0")
    assert [event["type"] for event in failed.events] == [
        "init", "status", "error", "execution_complete",
    ]  # fmt: skip
    assert failed.one("error")["error"]["ename"] == "ZeroDivisionError"
    assert "x / 0" in "".join(failed.one("error")["error"]["traceback"])
    assert failed.id == ran.id


async def test_displays_are_results_with_all_formats(with_sessions: OpenSandbox) -> None:
    code = (
        "from IPython.display import display, HTML, Image\n"
        "display(HTML('<b>'))\n"
        "display({'image/png': 'iVBORw0KGgo='}, raw=True)\n"
        "HTML('<i>')"
    )
    ran = await with_sessions.run_code(code)
    shown = [event["results"] for event in ran.events if event["type"] == "result"]
    assert [one.get("text/html") for one in shown] == ["<b>", None, "<i>"]
    assert shown[1] == {"image/png": "iVBORw0KGgo="}


async def test_sessions_of_others_are_neither_listed_nor_deleted_with_the_contexts(
    with_sessions: OpenSandbox,
) -> None:
    engine = with_sessions.engine
    other = engine.sessions.declare(session_id="other")
    made = (await with_sessions.post("/session", {}))["session_id"]
    await with_sessions.run_code("1")
    await with_sessions.run_code("true", "bash")
    listed = await with_sessions.get("/code/contexts")
    assert [one["language"] for one in listed] == ["python", "bash"]
    for language in "python", "bash":
        path = f"/code/contexts?language={language}"
        assert (await with_sessions.request("DELETE", path)).http_status == 200
    assert await with_sessions.get("/code/contexts") == []
    assert engine.sessions.get("other") is other
    assert engine.bash_sessions.get(made)
    # By its id every session is a context.
    assert (await with_sessions.get("/code/contexts/other"))["language"] == "python"
    assert (await with_sessions.get(f"/code/contexts/{made}"))["language"] == "bash"


@pytest.mark.parametrize("language", ["java", "javascript", "typescript", "go", "sql", "python3"])
async def test_other_languages_are_refused_by_name(opensandbox: OpenSandbox, language: str) -> None:
    for path, body in (
        ("/code", {"code": "1", "context": {"language": language}}),
        ("/code/context", {"language": language}),
    ):
        http_status, code, message = await opensandbox.refused("POST", path, body)
        assert (http_status, code) == (501, "NOT_SUPPORTED")
        assert language in message
        assert "python and bash" in message


@pytest.mark.parametrize(
    "body",
    [
        {"code": ""},
        {"code": "1"},
        {"code": "1", "context": {}},
        {"context": {"language": "python"}},
    ],
)
async def test_code_without_a_language_or_without_code_is_400(
    opensandbox: OpenSandbox, body: object
) -> None:
    assert (await opensandbox.refused("POST", "/code", body))[0] == 400


async def test_interrupt_of_a_context_ends_the_cell_and_keeps_the_state(
    with_sessions: OpenSandbox,
) -> None:
    ran = await with_sessions.run_code("x = 1")
    path = f"/code?id={ran.id}"
    assert (await with_sessions.refused("DELETE", path))[0] == 409
    running = with_sessions.client.post(
        "/code",
        json={
            "code": "print('here', flush=True)\nimport time\ntime.sleep(1000)",
            "context": {"language": "python"},
        },
    )
    async with running as response:
        await response.content.readuntil(b'"here')
        assert (await with_sessions.request("DELETE", path)).http_status == 200
        assert b"KeyboardInterrupt" in await response.read()
    assert (await with_sessions.run_code("x")).one("result")["results"]["text"] == "1"


async def test_death_of_the_interpreter_is_an_error_event(with_sessions: OpenSandbox) -> None:
    ran = await with_sessions.run_code("import os; os._exit(3)")
    assert ran.one("error")["error"]["ename"] == "CellError"
    assert ran.events[-1]["type"] == "execution_complete"


async def test_cell_in_a_busy_context_is_told_so(
    with_sessions: OpenSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd_opensandbox.event_reply.PING_SECONDS", 0.05)
    context = await with_sessions.post("/code/context", {"language": "python"})
    sessions = with_sessions.engine.sessions  # shorter waits from now on: Python has started
    sessions.config = msgspec.structs.replace(sessions.config, queue_wait_seconds=0.3)
    body = {"code": "print('x', flush=True)\nimport time; time.sleep(1000)", "context": context}
    async with with_sessions.client.post("/code", json=body) as response:
        await response.content.readuntil(b'"x')
        ran = await with_sessions.run_code("1", id=context["id"])
        assert ran.one("error")["error"]["evalue"].startswith("no turn came within 0.3 s")
        assert f"session '{context['id']}' is busy" in ran.one("error")["error"]["evalue"]
        await with_sessions.client.delete(f"/code/contexts/{context['id']}")
        await response.read()
