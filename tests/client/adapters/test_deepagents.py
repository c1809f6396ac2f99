"""deepagents, with a sandbox as the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_deep_agent_works_in_a_sandbox(
    drive: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    found = drive("drive_deepagents.py")
    assert found["is a sandbox"]
    assert found["mixed"] == ["out\nerr\nout again\n", 3, False]
    assert found["late"].startswith("before\n")
    assert found["late"].endswith("[the run time limit of 1 s was over]")
    assert found["large"] == [True, True]
    assert found["async"] == "async\n"
    assert found["sent"] == [True, False]
    assert found["fetched"] == [None, "file_not_found", "is_directory"]
    assert found["bytes"]
    assert (found["write"], found["edit"]) == (None, None)
    assert found["read"].splitlines() == ["one", "three"]
    assert found["ls"] == [f"{tmp_path}/a.bin", f"{tmp_path}/b.txt"]
    assert found["grep"] == [f"{tmp_path}/b.txt"]
    assert [path.rpartition("/")[2] for path in found["glob"]] == ["a.bin"]
    _, executed = found["agent"]
    assert "by the agent" in executed
    assert "4" in executed
