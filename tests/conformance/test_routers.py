"""execd behind agent-sandbox's two routers. The Python router waits 180 s for any byte, so a long
answer that survives the Go router survives the Python router.

The daemon's heartbeat is scaled as the router's patience is: 10 s in the image, 0.5 s here.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.sync.client import connect

from ..client.proxies import serving
from . import routing
from .routing import LONG_SECONDS
from .scripted_routers import PythonRouter
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .routing import RoutedClient
    from .target import Target

    OwnDaemon = Callable[..., Target]

JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=routing.KINDS)
def routed(request: pytest.FixtureRequest) -> Iterator[Callable[[Target], RoutedClient]]:
    """Start a router and return a client of the daemon behind the router."""
    with ExitStack() as ends:
        yield lambda daemon: ends.enter_context(routing.routed(request.param, *daemon.address))


@pytest.fixture
def behind_python(target: Target) -> Iterator[tuple[PythonRouter, httpx.Client]]:
    """A Python router, and a client of the daemon behind the router."""
    host, port = target.address
    headers = {
        "X-Sandbox-ID": "sandbox",
        "X-Sandbox-Port": str(port),
        "X-Sandbox-Pod-IP": host,
        "Authorization": "Bearer of the router",
    }
    with (
        serving(PythonRouter()) as router,
        httpx.Client(
            base_url=f"http://127.0.0.1:{router.port}", headers=headers, trust_env=False
        ) as client,
    ):
        yield router, client


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


def test_path_whose_slash_the_go_router_has_decoded_names_the_same_file(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    client = routed(own_daemon())
    content = b"100 % of the file"
    name = "a b/100%25.txt"
    assert client.post("/upload", files={"file": (name, content)}).status_code == 200
    path = "a%20b%2F100%2525.txt"
    assert client.get(f"/download/{path}").content == content
    assert client.get(f"/exists/{path}").json() == {"path": name, "exists": True}
    assert [item["name"] for item in client.get("/list/a%20b").json()] == ["100%25.txt"]


def test_terminal_passes_the_go_router(
    own_daemon: OwnDaemon, routed: Callable[[Target], RoutedClient]
) -> None:
    client = routed(own_daemon())
    body = {"argv": ["/bin/sh"], "pty": {"cols": 80, "rows": 24}, "detach": True}
    made = client.post("/v1/executions", json=body).json()
    address = str(client.base_url).replace("http:", "ws:").rstrip("/")
    headers = {name: value for name, value in client.headers.items() if name[:2] == "x-"}
    with connect(
        f"{address}/v1/executions/{made['id']}/attach", additional_headers=headers, proxy=None
    ) as terminal:
        terminal.send(b"echo $((40 + 2)); exit 3\n")
        shown = b""
        for message in terminal:
            shown += message if isinstance(message, bytes) else b""
    assert b"42\r\n" in shown
    assert client.get(f"/v1/executions/{made['id']}").json()["exit_code"] == 3


SDK_REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "probe": ("GET", "/", {}),
    "run": ("POST", "/execute", {"json": {"command": "echo hi"}}),
    "write": ("POST", "/upload", {"files": {"file": ("routed/x", b"content")}}),
    "read": ("GET", "/download/routed%2Fx", {}),
    "list": ("GET", "/list/routed", {}),
    "exists": ("GET", "/exists/routed/x", {}),
    "read of sandboxd": ("GET", "/v1/files/routed/x", {}),
    "delete of sandboxd": ("DELETE", "/v1/files/routed/x", {}),
}


def test_request_in_chunks_without_a_byte_is_a_request_without_a_body(
    behind_python: tuple[PythonRouter, httpx.Client],
) -> None:
    router, client = behind_python
    for name, (method, path, options) in SDK_REQUESTS.items():
        answer = client.request(method, path, **options)
        assert answer.status_code in (200, 204), (name, answer.text)
    for (method, _path, _options), seen in zip(SDK_REQUESTS.values(), router.seen, strict=True):
        assert ("transfer-encoding" in seen) == (method != "POST")
        assert not {"authorization", "x-sandbox-id"} & seen.keys()
