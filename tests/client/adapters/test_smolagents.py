"""smolagents, with a session of a sandbox as the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_code_agent_works_in_a_sandbox(drive: Callable[[str], dict[str, Any]]) -> None:
    found = drive("drive_smolagents.py")
    assert found["plain"] == ["10", "printed\n", False]
    assert found["picture"] == [3, 2]
    assert found["failure"].startswith("so far\n")
    assert "NameError" in found["failure"]
    agent = found["agent"]
    assert agent["answer"] == {"x": 42, "here": True}
    assert "x is 42" in agent["observations"][0]
    assert "ZeroDivisionError" in agent["errors"][0]
    assert found["sessions left"] == 0
