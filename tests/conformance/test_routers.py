"""Long answers behind agent-sandbox's Go router. The Python router waits 180 s for any byte, so an
answer that survives the Go router survives the Python router.

The daemon's heartbeat is scaled as the router's patience is: 10 s in the image, 0.5 s here.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from . import routing
from .routing import LONG_SECONDS
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .routing import RoutedClient
    from .target import Target

    OwnDaemon = Callable[..., Target]

JSON = {"Content-Type": "application/json"}

pytestmark = routing.needs_router


@pytest.fixture
def routed() -> Iterator[Callable[[Target], RoutedClient]]:
    """Start a router and return a client of the daemon behind the router."""
    with ExitStack() as ends:
        yield lambda daemon: ends.enter_context(routing.routed(*daemon.address))


LONG_ANSWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "execute": ("/execute", {"command": f"sleep {LONG_SECONDS}; echo hi"}, {"exit_code": 0}),
    "execution": (
        "/v1/executions",
        {"command": f"sleep {LONG_SECONDS}; echo hi"},
        {"exit_reason": "exited", "stdout": "hi\n"},
    ),
    "soft timeout": (
        "/v1/executions",
        {"command": "sleep 60", "soft_timeout_seconds": LONG_SECONDS, "timeout_seconds": 8},
        {"state": "RUNNING"},
    ),
    "code": (
        "/v1/code",
        {"code": f"import time; time.sleep({LONG_SECONDS}); print('hi')"},
        {"status": "success", "stdout": "hi\n"},
    ),
    "cell": (
        "/v1/sessions/routed/execute?create=true",
        {"code": f"import time; time.sleep({LONG_SECONDS}); print('hi')"},
        {"status": "success", "stdout": "hi\n"},
    ),
}


@pytest.mark.parametrize("name", LONG_ANSWERS)
def test_long_answers_survive_a_router_that_waits_for_headers(
    name: str, own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    path, body, expected = LONG_ANSWERS[name]
    daemon = own_daemon("--execute-heartbeat-seconds=0.5")
    client = routed(daemon)
    if "code" in body:
        # Headers are early only after the start of a cell. A first cell also waits for the zygote.
        assert daemon.request("POST", "/v1/code", b'{"code": "1"}', JSON).http_status == 200
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert {field: reply[field] for field in expected} == expected


def test_without_a_heartbeat_the_router_gives_up_and_the_command_ends(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    daemon = own_daemon("--execute-heartbeat-seconds=0")
    assert routed(daemon).post("/execute", json={"command": "sleep 60"}).status_code == 502

    def ended() -> bool:
        items = json.loads(daemon.request("GET", "/v1/executions").content)["items"]
        return [item["exit_reason"] for item in items] == ["client_disconnected"]

    wait_until(ended, 20, "the command has ended")


def test_kill_with_a_long_grace_survives_a_router_that_waits_for_headers(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    client = routed(own_daemon("--execute-heartbeat-seconds=0.5"))
    begun = client.post(
        "/v1/executions",
        json={"command": "trap '' TERM; echo ready; sleep 60; sleep 60", "detach": True},
    ).json()
    url = f"/v1/executions/{begun['id']}"
    wait_until(lambda: client.get(url).json()["stdout"] == "ready\n", 20, "the trap is set")
    answer = client.post(f"{url}/kill", json={"grace_seconds": LONG_SECONDS})
    assert (answer.status_code, answer.json()["exit_reason"]) == (200, "canceled")


def test_silent_streams_survive_a_router_that_waits_for_headers(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    client = routed(own_daemon("--stream-heartbeat-seconds=0.5"))

    def events() -> list[dict[str, Any]]:
        with client.stream(
            "POST",
            "/v1/executions",
            json={"command": f"sleep {LONG_SECONDS}; echo hi"},
            headers={"Accept": "application/x-ndjson"},
        ) as stream:
            return [json.loads(line) for line in stream.iter_lines() if line]

    assert [event["event"] for event in client.asked(events)] == ["started", "stdout", "exited"]


def test_the_page_passes_the_go_router(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    daemon = own_daemon()
    client = routed(daemon)
    files = ("", "/", "/viewer.js", "/swagger-ui.css", "/swagger-ui-bundle.js")
    for path in (f"/docs{file}" for file in files):
        answer = client.get(path, headers={"Accept-Encoding": "gzip"})
        direct = daemon.request("GET", path)
        assert (answer.status_code, answer.content) == (200, direct.content)
        policy = "content-security-policy"
        assert answer.headers[policy] == direct.headers[policy]
