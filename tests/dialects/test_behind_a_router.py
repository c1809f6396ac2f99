"""Long answers of the dialects behind routers. agent-sandbox's Go router gives up on an answer
without headers (``tests/conformance/routing.py``). ``Router`` strips ``Authorization``, as both
routers of agent-sandbox do, keeps answers back, and gives up on idle connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from ..client.proxies import Router, router
from ..conformance.routing import KINDS, LONG_SECONDS, routed
from ..conformance.target import wait_until
from ..patience import patience
from .conftest import DIALECTS, TOKEN
from .test_dialects import executions_of, mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..conformance.routing import RoutedClient
    from ..conformance.target import Target
    from .speakers import V1

BEHIND_ROUTERS = [name for name in DIALECTS if name in ("opensandbox", "e2b")]
IDLE_SECONDS = 30.0
PATIENCE_SECONDS = 8.0
"""Of a router before a run that waits for its turn: OpenSandbox's streams begin after 3 s."""
LONG = f"sleep {LONG_SECONDS}; echo hi"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The Go router: scripted, or the program."""
    found: str = request.param
    return found


@pytest.mark.parametrize("name", BEHIND_ROUTERS)
def test_silent_command_survives_a_router_that_waits_for_headers(
    kind: str, name: str, target: Target, ports: dict[str, int]
) -> None:
    make: Any = DIALECTS[name]
    with routed(kind, target.address[0], ports[name]) as client:
        speaker = make(str(client.base_url), TOKEN, dict(client.headers))
        ran = client.asked(lambda: speaker.run(LONG))
        speaker.close()
    assert (ran.stdout, ran.exit_code) == (b"hi\n", 0)


@pytest.mark.parametrize("name", BEHIND_ROUTERS)
def test_token_and_silent_command_pass_a_router_that_strips_authorization(
    name: str, target: Target, ports: dict[str, int]
) -> None:
    make: Any = DIALECTS[name]
    with router(f"http://{target.address[0]}:{ports[name]}", IDLE_SECONDS) as made:
        speaker = make(f"http://127.0.0.1:{made.port}{Router.PREFIX}", TOKEN)
        ran = speaker.run(LONG)
        speaker.close()
    assert (ran.stdout, ran.exit_code) == (b"hi\n", 0)


def test_silent_cell_of_e2b_survives_a_router_that_waits_for_headers(
    kind: str, target: Target, ports: dict[str, int]
) -> None:
    code = f"import time; time.sleep({LONG_SECONDS}); print('hi')"
    with routed(kind, target.address[0], ports["e2b"]) as client:
        headers = {"X-Access-Token": TOKEN}
        reply = client.asked(lambda: client.post("/execute", json={"code": code}, headers=headers))
    assert reply.status_code == 200, reply.text
    assert '"hi\\n"' in reply.text


@pytest.fixture
def opensandbox(kind: str, target: Target, ports: dict[str, int]) -> Iterator[RoutedClient]:
    """A client of the port for OpenSandbox behind the Go router, with the token."""
    with routed(kind, target.address[0], ports["opensandbox"]) as client:
        client.headers["X-EXECD-ACCESS-TOKEN"] = TOKEN
        yield client


def test_silent_cell_of_opensandbox_survives_a_router_that_waits_for_headers(
    opensandbox: RoutedClient,
) -> None:
    code = f"import time; time.sleep({LONG_SECONDS}); print('hi')"
    body = {"code": code, "context": {"language": "python"}}
    reply = opensandbox.asked(lambda: opensandbox.post("/code", json=body))
    assert reply.status_code == 200, reply.text
    assert '"hi' in reply.text
    assert '"execution_complete"' in reply.text


def test_run_that_waits_for_a_silent_run_of_its_bash_session_survives_such_a_router(
    kind: str, target: Target, ports: dict[str, int], observer: V1
) -> None:
    marked = mark()
    with (
        routed(kind, target.address[0], ports["opensandbox"], PATIENCE_SECONDS) as client,
        ThreadPoolExecutor() as threads,
    ):
        client.headers["X-EXECD-ACCESS-TOKEN"] = TOKEN
        session = client.post("/session", json={}).json()["session_id"]
        path = f"/session/{session}/run"
        command = f"X=1; sleep {PATIENCE_SECONDS + 2}; echo hi{marked}"
        first = threads.submit(client.asked, lambda: client.post(path, json={"command": command}))
        wait_until(lambda: is_running(observer, marked), PATIENCE_SECONDS, "the first run runs")
        second = client.asked(lambda: client.post(path, json={"command": "echo [$X]"}))
        replies = first.result(), second
        client.delete(f"/session/{session}")
    for reply, text in zip(replies, ("hi", "[1]"), strict=True):
        assert reply.status_code == 200, reply.text
        assert f'"{text}' in reply.text


def test_silent_terminal_of_opensandbox_survives_a_router_that_waits_for_headers(
    opensandbox: RoutedClient,
) -> None:
    made = opensandbox.post("/pty", json={}).json()["session_id"]
    address = str(opensandbox.base_url).replace("http:", "ws:").rstrip("/")
    headers = {name: value for name, value in opensandbox.headers.items() if name[:2] == "x-"}
    with connect(f"{address}/pty/{made}/ws", additional_headers=headers) as terminal:
        terminal.send(b"\x00" + f"sleep {LONG_SECONDS}; echo $((40 + 2))\n".encode())
        shown = b""
        while b"42\r\n" not in shown:
            message = terminal.recv(timeout=patience.seconds(30))
            shown += message[1:] if isinstance(message, bytes) else b""
    opensandbox.delete(f"/pty/{made}")


def is_running(observer: V1, marked: str) -> bool:
    return [item["state"] for item in executions_of(observer, marked)] == ["RUNNING"]
