"""The reference has all fields of the replies, events and capabilities that a daemon sends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.conformance.target import TERMINATED, start

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = Path(__file__).parent.parent / "docs/reference"
PAGE = (REFERENCE / "http.md").read_text()
OBJECTS = (REFERENCE / "objects.md").read_text()
DISPLAYS = """\
from IPython.display import clear_output, display
display({"text/plain": "1"}, raw=True)
clear_output()
input("name? ")
"""


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replaces the guard of the whole suite: the daemon may keep children, for example workers for
    sessions."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    daemon = start(tmp_path_factory.mktemp("daemon"))
    yield daemon.url
    assert daemon.stop() == TERMINATED, daemon.log_text()
    assert daemon.log_errors() == []


def _rows(heading: str) -> str:
    """The first cells of the tables under a heading of http.md."""
    section = PAGE.partition(f"\n### {heading}\n")[2]
    return "\n".join(re.findall(r"^\| (.*?) \|", re.split(r"\n##", section)[0], re.MULTILINE))


def _fields_of(name: str) -> set[str]:
    """The fields of an object of objects.md."""
    section = OBJECTS.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def test_fields_of_replies_and_events_are_in_the_reference(url: str) -> None:
    kinds, fields = set(), set()
    with httpx.Client(base_url=url, timeout=60) as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        cell = f"/v1/sessions/{session}/execute"
        for path, body in (
            ("/v1/executions", {"command": "echo out; echo err >&2", "detach": True}),
            ("/v1/executions", {"argv": ["true"]}),
            (cell, {"code": "1"}),
            (cell, {"code": "1 / 0"}),
            (cell, {"code": DISPLAYS, "allow_input": True, "timeout_seconds": 3}),
        ):
            headers = {"Accept": "application/x-ndjson"}
            events = [
                json.loads(line)
                for line in client.post(path, json=body, headers=headers).iter_lines()
                if line
            ]
            kinds |= {event["event"] for event in events}
            fields |= events[-1].keys() - {"event", "sequence"}
        client.delete(f"/v1/sessions/{session}")
    missing = {kind for kind in kinds if f"`{kind}`" not in _rows("Events")}
    assert not missing
    assert fields <= _fields_of("ExecutionReply")
    assert {"started", "stdout", "stderr", "display", "result", "error"} < kinds
    assert {"clear_output", "input_request", "exited"} < kinds


def test_fields_of_sessions_are_in_the_reference(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        made = client.post("/v1/sessions", json={"id": "one"}).json()
        forked = client.post("/v1/sessions/one/fork", json={}).json()
        run = {"session_id": "one", "code": "number = 1"}
        assert client.post("/v1/code", json=run).json()["status"] == "success"
        variables = client.get("/v1/sessions/one/variables").json()
        replies = {
            "ForkReply": forked,
            "SessionsReply": client.get("/v1/sessions").json(),
            "InterruptReply": client.post("/v1/sessions/one/interrupt").json(),
            "SessionReply": client.post("/v1/sessions/one/restart").json(),
            "CompleteReply": client.post("/v1/sessions/one/complete", json={"code": "le"}).json(),
            "VariablesReply": variables,
            "VariableReply": variables["variables"][0],
        }
        for session in (made, *forked["sessions"]):
            assert client.delete(f"/v1/sessions/{session['id']}").status_code == 204
    for name, reply in replies.items():
        assert reply.keys() <= _fields_of(name), name


def _capability_names(found: dict[str, Any], above: str = "") -> set[str]:
    """The names of the fields, with the names of the objects above."""
    names: set[str] = set()
    for name, value in found.items():
        is_object = isinstance(value, dict)
        names |= _capability_names(value, f"{above}{name}.") if is_object else {above + name}
    return names


def test_capabilities_and_their_page_have_the_same_fields(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        found = client.get("/v1/capabilities").json()
        client.delete(f"/v1/sessions/{session}")
    assert found["sessions"]["ready"]
    page = (REFERENCE / "capabilities.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(described) == len(set(described))
    in_a_tree_alone = {"protections.tree_unchangeable"}  # see tests/anywhere
    assert set(described) - in_a_tree_alone == _capability_names(found)
