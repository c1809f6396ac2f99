"""One notion has one shape on every route: docs/reference/notions.md. Each check below holds a
notion for one subject: a route that runs something, or a resource."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

ENOUGH_SECONDS = 60.0


@dataclass
class Route:
    """A route that runs a program. A subject of checks."""

    name: str
    path: str
    field: str
    """The field with the program's text."""
    is_python: bool

    def __str__(self) -> str:
        return self.name

    def body(self, shell: str, python: str, **fields: Any) -> dict[str, Any]:
        """The body with the program in the language of the route."""
        return {self.field: python if self.is_python else shell, **fields}


@dataclass
class Wire:
    """How checks reach the daemon."""

    client: httpx.Client
    folder: str
    """A directory of the test below the base dir."""

    def post(self, route: Route, body: dict[str, Any], **headers: str) -> httpx.Response:
        path = route.path.format(session=f"notions-{self.folder}")
        return self.client.post(path, json=body, headers=headers)

    def run(self, route: Route, shell: str, python: str, **fields: Any) -> dict[str, Any]:
        answer = self.post(route, route.body(shell, python, **fields))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, route: Route, **fields: Any) -> dict[str, Any]:
        answer = self.post(route, route.body("true", "1", **fields))
        assert answer.status_code == 400, answer.text
        return answer.json()


COMMAND = Route("command", "/v1/executions", "command", is_python=False)
PYTHON_COMMAND = Route("python command", "/v1/executions", "command", is_python=True)
CELL = Route("cell", "/v1/sessions/{session}/execute?create=true", "code", is_python=True)
CODE = Route("code", "/v1/code", "code", is_python=True)
CELLS = (CELL, CODE)
RUNS = (COMMAND, *CELLS)

NOTIONS: dict[str, list[Any]] = {}
"""The subjects and checks of each notion, by the name in the page's table."""


def notion(name: str, *subjects: Any) -> Callable[[Any], Any]:
    def add(check: Any) -> Any:
        for subject in subjects:
            label = getattr(subject, "__name__", subject)
            case = f"{name}: {check.__name__}: {label}"
            NOTIONS.setdefault(name, []).append(pytest.param(check, subject, id=case))
        return check

    return add


@notion("id", *RUNS)
def name_finds_the_run_again(route: Route, wire: Wire) -> None:
    name = secrets.token_hex(8)
    count = f"{wire.folder}/count"
    once = route.body(
        f"echo ran >> {count}; echo out", f"print('ran', file=open('{count}', 'a')); print('out')"
    )
    first = wire.post(route, {**once, "id": name})
    again = wire.post(route, {**once, "id": name})
    assert (first.status_code, first.json()["id"]) == (200, name)
    assert first.json()["stdout"] == "out\n"
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert wire.client.get(f"/v1/executions/{name}").json()["stdout"] == "out\n"
    assert wire.client.get(f"/v1/files/{count}").text == "ran\n"
    assert wire.post(route, route.body("other", "other", id=name)).status_code == 422


def leave(wire: Wire, route: Route, fields: dict[str, Any], headers: dict[str, str]) -> str:
    """Hang up on a program that runs. Return the path of the execution."""
    body = route.body("sleep 4000.25", "import time; time.sleep(4000.25)", **fields)
    path = route.path.format(session=f"notions-{wire.folder}")
    accept = {"Accept": "application/x-ndjson", **headers}
    with wire.client.stream("POST", path, json=body, headers=accept) as stream:
        assert '"started"' in next(filter(None, stream.iter_lines()))
        return str(stream.headers["location"])


@notion("id", *RUNS)
def run_with_a_name_waits_for_its_caller(route: Route, wire: Wire) -> None:
    waits_for_its_caller(route, wire, {"id": secrets.token_hex(8)}, {})


@notion("Idempotency-Key", *RUNS)
def run_with_a_key_waits_for_its_caller(route: Route, wire: Wire) -> None:
    waits_for_its_caller(route, wire, {}, {"Idempotency-Key": secrets.token_hex(8)})


def waits_for_its_caller(
    route: Route, wire: Wire, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    """A run without a name, which its caller leaves later, ends earlier."""
    named = leave(wire, route, fields, headers)
    other = leave(wire, COMMAND, {}, {})
    wait_until(
        lambda: wire.client.get(other).json()["state"] == "EXITED",
        ENOUGH_SECONDS,
        "the run without a name has ended",
    )
    assert wire.client.get(other).json()["exit_reason"] == "client_disconnected"
    assert wire.client.get(named).json()["state"] == "RUNNING"
    wire.client.post(f"{named}/kill", json={"grace_seconds": 0})


@notion("Idempotency-Key", *RUNS)
def key_finds_the_run_again(route: Route, wire: Wire) -> None:
    key = {"Idempotency-Key": secrets.token_hex(8)}
    first = wire.post(route, route.body("echo $$", "import uuid; uuid.uuid4()"), **key)
    again = wire.post(route, route.body("echo $$", "import uuid; uuid.uuid4()"), **key)
    assert first.status_code == 200, first.text
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert wire.post(route, route.body("other", "other"), **key).status_code == 422


@notion("execution_id", *CELLS)
def alias_is_the_id(route: Route, wire: Wire) -> None:
    name = secrets.token_hex(8)
    done = wire.run(route, "", "1", execution_id=name)
    assert done["id"] == done["execution_id"] == name
    assert wire.run(route, "", "1", id=name) == wire.run(route, "", "1", id=name, execution_id=name)
    refused = wire.refusal(route, id=name, execution_id="another")
    assert refused["message"].startswith("execution_id: ")


@notion("detach", *RUNS)
def detached_run_is_answered_at_once(route: Route, wire: Wire) -> None:
    answer = wire.post(
        route, route.body("sleep 4000.25", "import time; time.sleep(4000.25)", detach=True)
    )
    assert answer.status_code == 202, answer.text
    path = answer.headers["location"]
    assert path == f"/v1/executions/{answer.json()['id']}"
    wait_until(
        lambda: wire.client.get(path).json()["state"] == "RUNNING", ENOUGH_SECONDS, "it runs"
    )
    ended = wire.client.post(f"{path}/kill", json={"grace_seconds": 0}).json()
    assert (ended["state"], ended["exit_reason"]) == ("EXITED", "canceled")


@notion("language", PYTHON_COMMAND, *CELLS)
def python_is_a_language(route: Route, wire: Wire) -> None:
    assert wire.run(route, "", "print(6 * 7)", language="python")["stdout"] == "42\n"
    assert wire.run(route, "", "print(1)  #" + " " * 200_000, language="python")["stdout"] == "1\n"


@notion("language", *RUNS)
def another_language_is_refused_with_the_choices(route: Route, wire: Wire) -> None:
    message = wire.refusal(route, language="javascript")["message"]
    assert message == "language: invalid enum value 'javascript', not one of 'python'"


@notion("env", *RUNS)
def variables_are_for_the_run(route: Route, wire: Wire) -> None:
    shell, python = "echo $COLOUR", "import os; print(os.environ.get('COLOUR', ''))"
    assert wire.run(route, shell, python)["stdout"] == "\n"
    assert wire.run(route, shell, python, env={"COLOUR": "blue"})["stdout"] == "blue\n"
    assert wire.run(route, shell, python)["stdout"] == "\n"
    assert wire.refusal(route, env={"A=B": ""})["message"].startswith("env: ")


@notion("language", COMMAND)
def session_takes_the_language_of_its_cells(_: Route, wire: Wire) -> None:
    name = f"language-{wire.folder}"
    made = wire.client.post("/v1/sessions", json={"id": name, "language": "python"})
    assert made.status_code == 201, made.text
    wire.client.delete(f"/v1/sessions/{name}")
    refused = wire.client.post("/v1/sessions", json={"id": name, "language": "r"})
    assert (refused.status_code, refused.json()["message"]) == (
        400,
        "language: invalid enum value 'r', not one of 'python'",
    )


@notion("truncated", *RUNS)
def reply_without_a_hole_has_null_and_else_an_object(route: Route, wire: Wire) -> None:
    assert wire.run(route, "echo x", "print('x')")["truncated"] is None
    size = 3 << 20
    long = wire.run(route, f"head -c {size} /dev/zero", f"print('x' * {size}, end='')")
    assert long["truncated"].keys() == {"stdout"}
    assert long["truncated"]["stdout"]["total_bytes"] == size


def search_is_cut(limit: int, wire: Wire) -> None:
    for name in "ab":
        wire.client.put(f"/v1/files/{wire.folder}/truncated/{name}", content=b"")
    asked = {"path": f"{wire.folder}/truncated", "glob": "*", "limit": limit}
    truncated = wire.client.post("/v1/fs/search", json=asked).json()["truncated"]
    assert truncated == (None if limit > 2 else {"by": "limit"})


notion("truncated", 1, 3)(search_is_cut)


@notion("pty", COMMAND, PYTHON_COMMAND)
def terminal_has_a_size(route: Route, wire: Wire) -> None:
    more = {"language": "python"} if route.is_python else {}
    programs = ("stty size", "import os; print(*reversed(os.get_terminal_size(0)))")
    for pty, size in (
        (True, "24 80\r\n"),
        ({}, "24 80\r\n"),
        ({"cols": 100, "rows": 30}, "30 100\r\n"),
        ({"cols": 0, "rows": 0}, "24 80\r\n"),
    ):
        assert wire.run(route, *programs, pty=pty, **more)["stdout"] == size
    assert wire.run(route, "tty", "import os; print(os.isatty(0))", pty=False, **more)[
        "stdout"
    ] in ("not a tty\n", "False\n")


@notion("user", COMMAND)
def user_is_a_number_or_a_name(route: Route, wire: Wire) -> None:
    entry = wire.client.get("/v1/fs/file?path=/etc/passwd").text.partition("\nnobody:")[2]
    _, uid, gid, *_ = entry.split(":")
    is_root = wire.run(route, "id -u", "")["stdout"] == "0\n"
    for user, group in (("nobody", gid), (int(uid), uid), (uid, uid), (f"{uid}:{gid}", gid)):
        answer = wire.post(route, route.body("id -u; id -g", "", cwd="/", user=user))
        if is_root:
            assert answer.json()["stdout"] == f"{uid}\n{group}\n"
        else:
            assert answer.json()["message"].startswith("user: only a root daemon")
    message = wire.refusal(route, user="nobody-has-this-name")["message"]
    assert message.startswith("user: /etc/passwd has no user")


def paths_of_a_search(wire: Wire, path: str) -> tuple[str, list[str]]:
    found = wire.client.post("/v1/fs/search", json={"path": path, "glob": "**"}).json()
    return found["path"], [item["path"] for item in found["items"]]


def paths_of_a_watch(wire: Wire, path: str) -> tuple[str, list[str]]:
    headers = {"Accept": "application/x-ndjson"}
    url = f"/v1/watch/{path}?recursive=true&debounce_seconds=0"
    with wire.client.stream("GET", url, headers=headers) as stream:
        events = map(json.loads, filter(None, stream.iter_lines()))
        top = next(events)["path"]
        wire.client.put(f"/v1/files/{wire.folder}/folder/a/b", content=b"changed")
        return top, [change["path"] for change in next(events)["changes"]]


def names_of_a_listing(wire: Wire, path: str) -> tuple[str, list[str]]:
    found = wire.client.get(f"/v1/files/{path}").json()
    return found["path"], [entry["name"] for entry in found["entries"]]


@notion("path", paths_of_a_search, paths_of_a_watch, names_of_a_listing)
def paths_are_relative_to_the_path_of_the_request(
    ask: Callable[[Wire, str], tuple[str, list[str]]], wire: Wire
) -> None:
    above, folder = wire.folder, f"{wire.folder}/folder"
    wire.client.put(f"/v1/files/{folder}/a/b", content=b"x")
    top, found = ask(wire, folder)
    assert top.endswith(f"/{above}/folder")
    assert set(found) <= {"a", "a/b"}
    assert found
    top, found = ask(wire, f"{folder}/a" if ask is not paths_of_a_watch else above)
    assert set(found) == ({"folder/a/b"} if ask is paths_of_a_watch else {"b"})


def execution(wire: Wire) -> str:
    body = {"command": "sleep 4000.25", "detach": True}
    return str(wire.client.post("/v1/executions", json=body).headers["location"])


def session(wire: Wire) -> str:
    return str(wire.client.post("/v1/sessions", json={}).headers["location"])


def file(wire: Wire) -> str:
    return put(wire, f"/v1/files/{wire.folder}/deleted")


def file_of_the_tree(wire: Wire) -> str:
    return put(wire, f"/v1/fs/file?path={wire.folder}/deleted")


def put(wire: Wire, path: str) -> str:
    assert wire.client.put(path, content=b"x").status_code == 204
    return path


RESOURCES = (execution, session, file, file_of_the_tree)


@notion("DELETE", *RESOURCES)
def deletion_is_204_and_complete(make: Callable[[Wire], str], wire: Wire) -> None:
    path = make(wire)
    deleted = wire.client.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert wire.client.get(path).status_code == 404
    assert wire.client.delete(path).status_code == 404


READS = (
    "head -n 1; sleep 4000.25",
    "print('got', input()); import time; time.sleep(4000.25)",
)


def begin_to_read(wire: Wire, route: Route) -> str:
    more = {"allow_input": True} if route in CELLS else {"stdin_open": True}
    answer = wire.post(route, route.body(*READS, detach=True, **more))
    assert answer.status_code == 202, answer.text
    if route in CELLS:
        session = f"/v1/sessions/{answer.json()['session_id']}"
        wait_until(
            lambda: wire.client.get(session).json()["state"] == "WAITING_INPUT",
            ENOUGH_SECONDS,
            "the cell waits for input",
        )
    return str(answer.headers["location"])


def has_read(wire: Wire, path: str) -> None:
    wait_until(
        lambda: "Ada\n" in wire.client.get(f"{path}/stdout").text,
        ENOUGH_SECONDS,
        "the program has its input",
    )
    wire.client.post(f"{path}/kill", json={"grace_seconds": 0})


@notion("input", *RUNS)
def bytes_and_text_are_input(route: Route, wire: Wire) -> None:
    for action, body in (
        ("stdin", {"content": b"Ada\n"}),
        ("input", {"json": {"text": "Ada\n"}}),
    ):
        path = begin_to_read(wire, route)
        given = wire.client.post(f"{path}/{action}", **body)
        assert (given.status_code, given.json()) == (200, {"written_bytes": 4}), action
        has_read(wire, path)
        assert wire.client.post(f"{path}/{action}", **body).status_code == 409


@notion("input", *CELLS)
def what_a_cell_cannot_read_is_refused_and_the_question_stays(route: Route, wire: Wire) -> None:
    path = begin_to_read(wire, route)
    assert wire.client.post(f"{path}/stdin", content=b"\xff").status_code == 400
    assert wire.client.post(f"{path}/stdin?eof=true", content=b"x").status_code == 409
    assert wire.client.post(f"{path}/input", json={"text": "Ada"}).status_code == 200
    has_read(wire, path)


@notion("input", CELL)
def session_takes_the_same_input(route: Route, wire: Wire) -> None:
    path = begin_to_read(wire, route)
    session = wire.client.get(path).json()["session_id"]
    given = wire.client.post(f"/v1/sessions/{session}/input", json={"text": "Ada"})
    assert (given.status_code, given.json()) == (200, {"written_bytes": 3})
    has_read(wire, path)


@notion("bundle", *CELLS)
def bundles_are_the_same_in_replies_and_streams(route: Route, wire: Wire) -> None:
    body = route.body("", "display({'text/plain': 'x'}, raw=True, display_id='d'); 6 * 7")
    shown = {"data": {"text/plain": "x"}, "metadata": {}, "display_id": "d"}
    result = {"data": {"text/plain": "42"}, "metadata": {}, "display_id": None}
    done = wire.post(route, body).json()
    assert (done["displays"], done["result"]) == ([shown], result)
    told = wire.post(route, body, Accept="application/x-ndjson").text
    events = {event["event"]: event for event in map(json.loads, told.splitlines())}
    assert shown.items() <= events["display"].items()
    assert result.items() <= events["result"].items()
    assert (events["exited"]["displays"], events["exited"]["result"]) == ([shown], result)


@pytest.mark.parametrize(
    ("check", "subject"), [case for cases in NOTIONS.values() for case in cases]
)
@pytest.mark.any_kernel
def test_routes_have_one_shape_for_one_notion(
    check: Callable[[Any, Wire], None], subject: Any, client: httpx.Client, folder: str
) -> None:
    try:
        check(subject, Wire(client, folder))
    finally:
        client.delete(f"/v1/sessions/notions-{folder}")
