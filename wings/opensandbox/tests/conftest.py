"""The OpenSandbox dialect in this process, with the engine that the tests of the api share."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest_asyncio

from execd.engine.engine import Engine
from execd_opensandbox.opensandbox_dialect import make_service
from execd_opensandbox.settings import Settings
from tests.api.conftest import (
    DEADLINE_SECONDS,
    JSON,
    LIMITS,
    OWN_HEADERS,
    ExecdServer,
    Wire,
    make_config,
    share_loop,
)
from tests.api.conftest import guarded_loop as guarded_loop
from tests.api.conftest import one_loop as one_loop
from tests.api.conftest import serve as serve
from tests.api.conftest import shared_engine as shared_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest
    from pytest_aiohttp.plugin import AiohttpClient

    from execd.api.wire.auth import TokenGate
    from tests.api.shared_engine import SharedEngine

    Serve = Callable[..., Awaitable["OpenSandbox"]]

DEFAULTS = Settings()

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_loop(items, FOLDER)


def decode_frames(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream. Each is a line of ASCII and a blank line."""
    assert body.isascii()
    assert body.endswith(b"\n\n")
    return [json.loads(one) for one in body.removesuffix(b"\n\n").split(b"\n\n")]


@dataclass
class Ran:
    """The events of something that ran, without pings."""

    events: list[dict[str, Any]]

    @property
    def id(self) -> str:
        assert self.events[0]["type"] == "init"
        return str(self.events[0]["text"])

    def texts(self, kind: str) -> list[str]:
        return [event["text"] for event in self.events if event["type"] == kind]

    @property
    def stdout(self) -> str:
        return "".join(self.texts("stdout"))

    @property
    def stderr(self) -> str:
        return "".join(self.texts("stderr"))

    def one(self, kind: str) -> dict[str, Any]:
        [event] = [event for event in self.events if event["type"] == kind]
        return event

    @property
    def exit_code(self) -> int:
        """As the SDK reads the exit code."""
        errors = [event["error"] for event in self.events if event["type"] == "error"]
        if errors:
            return int(errors[0]["evalue"])
        assert self.events[-1]["type"] == "execution_complete"
        return 0


@dataclass
class OpenSandbox(Wire):
    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """Send JSON, and return the JSON of the answer, or None for an empty answer."""
        answer = await self.request("POST", path, json.dumps(body).encode(), JSON | (headers or {}))
        assert answer.http_status in (200, 201), answer
        return answer.json() if answer.body else None

    async def get(self, path: str) -> Any:
        answer = await self.request("GET", path)
        assert answer.http_status == 200, answer
        return answer.json()

    async def refused(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        """The HTTP status, the code and the message of a refusal."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self.request(method, path, data, (JSON if data else {}) | (headers or {}))
        assert answer.http_status >= 400, answer
        refusal = answer.json()
        assert refusal.keys() >= {"code", "message"}
        return answer.http_status, refusal["code"], refusal["message"]

    async def stream(self, path: str, body: Any) -> Ran:
        answer = await self.request("POST", path, json.dumps(body).encode(), JSON)
        assert answer.http_status == 200, answer
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = decode_frames(answer.body)
        assert [event["type"] for event in events[:2]] == ["init", "ping"]
        assert all(isinstance(event["timestamp"], int) for event in events)
        return Ran([event for event in events if event["type"] != "ping"])

    async def run(self, command: str, **fields: Any) -> Ran:
        return await self.stream("/command", {"command": command, **fields})

    async def run_code(self, code: str, language: str = "python", **context: str) -> Ran:
        return await self.stream(
            "/code", {"code": code, "context": {"language": language, **context}}
        )


@pytest_asyncio.fixture(loop_scope="session")
async def serve_opensandbox(
    tmp_path: Path, shared_engine: SharedEngine, aiohttp_client: AiohttpClient
) -> AsyncIterator[Serve]:
    """Start the app of the dialect; a test starts a single app. With settings, or if the test asks,
    the engine is the test's own."""
    async with contextlib.AsyncExitStack() as ends:

        async def start(
            *,
            has_own_engine: bool = False,
            gate: TokenGate | None = None,
            wing_settings: Settings = DEFAULTS,
            **settings: Any,
        ) -> OpenSandbox:
            dialect = make_service(wing_settings)
            if settings or has_own_engine:
                config = make_config(tmp_path, **settings)
                engine = await ends.enter_async_context(Engine.open(config))
                ends.push_async_callback(engine.drain)
            else:
                engine = shared_engine.engine
                ends.push_async_callback(shared_engine.reset)
            ends.push_async_callback(engine.bash_sessions.close)
            ends.push_async_callback(engine.terminals.close)
            client = await aiohttp_client(
                ExecdServer(engine, LIMITS, is_narrow=False, dialect=dialect, gate=gate),
                skip_auto_headers=OWN_HEADERS,
                timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
            )
            started = OpenSandbox(engine, client, dialect)
            ends.push_async_callback(started.close)
            return started

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def opensandbox(serve_opensandbox: Serve) -> OpenSandbox:
    return await serve_opensandbox()


@pytest_asyncio.fixture(loop_scope="session")
async def with_sessions(serve_opensandbox: Serve) -> OpenSandbox:
    """With an engine of its own, for Python."""
    return await serve_opensandbox(has_own_engine=True)
