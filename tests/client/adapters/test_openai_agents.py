"""The OpenAI Agents SDK, with the tools of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def test_an_agent_calls_the_tools_of_a_sandbox(drive: Callable[[str], dict[str, Any]]) -> None:
    found = drive("drive_openai_agents.py")
    assert found["final"] == "done"
    for name, parameters in found["schemas"].items():
        assert all(schema["description"] for schema in parameters.values()), name
    command, place, setup, value, error, plot = found["outputs"]
    assert command == "exit code 3\nstdout:\nout\n\nstderr:\nerr\n"
    assert place.startswith("exit code 0\nstdout:\n/")
    assert [part["type"] for part in setup] == ["input_text"]
    assert value[0]["text"] == "exit code 0\nvalue:\n42"
    assert "ZeroDivisionError: division by zero" in error[0]["text"]
    assert [part["type"] for part in plot] == ["input_text", "input_image"]
    assert plot[1]["image_url"].startswith("data:image/png;base64,iVBOR")
