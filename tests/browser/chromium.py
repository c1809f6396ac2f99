"""A headless Chromium, driven by the DevTools protocol.

A page records all that a person would see in the developer tools: requests, errors of the console,
and violations of the Content-Security-Policy. Chromium's own log of the network (``--log-net-log``)
also has the connections that no page asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
DEADLINE_SECONDS = 300.0  # for a busy machine
WIDTH, HEIGHT = 1280, 900

FLAGS = (
    "--headless",
    # Chromium's sandbox needs a setuid helper or user namespaces. The pages are execd's own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
    # No name leads anywhere, so a request to another host fails, and is on record.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    f"--window-size={WIDTH},{HEIGHT}",
)


def find_program() -> str | None:
    """Return the path of a Chromium, or None if the machine has none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@dataclass
class Page:
    """A tab, and all that happened in the tab."""

    browser: Browser
    session: str
    requested: list[str] = field(default_factory=list)
    """URLs, without data: URLs."""
    complaints: list[str] = field(default_factory=list)
    """Errors, warnings and CSP violations."""
    loaded: int = 0

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self.browser.call(method, session=self.session, **parameters)

    async def open(self, url: str) -> None:
        """Navigate, and wait for the event ``load``."""
        before = self.loaded
        await self.call("Page.navigate", url=url)
        await self.wait_until(lambda: self.loaded > before)

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until events have made ``condition`` true."""
        async with asyncio.timeout(DEADLINE_SECONDS), self.browser.changed:
            await self.browser.changed.wait_for(condition)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        reply = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        await self.evaluate(
            "new Promise((resolve) => { const look = () => "
            f"{{ ({condition}) ? resolve() : setTimeout(look, 20) }}; look(); }})"
        )

    def receive(self, event: dict[str, Any]) -> None:
        match event["method"], event["params"]:
            case "Network.requestWillBeSent", {"request": {"url": str(url)}}:
                if not url.startswith("data:"):
                    self.requested.append(url)
            case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                self.complaints.append(json.dumps(details))
            case "Runtime.consoleAPICalled", {"type": "error" | "warning" | "assert", "args": args}:
                self.complaints.append(json.dumps(args))
            case "Log.entryAdded", {"entry": {"level": "error" | "warning", "text": str(text)}}:
                self.complaints.append(text)
            case "Audits.issueAdded", {"issue": {"code": "ContentSecurityPolicyIssue"} as issue}:
                self.complaints.append(json.dumps(issue))
            case "Page.loadEventFired", _:
                self.loaded += 1


class Browser:
    """The connection to a running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.changed = asyncio.Condition()
        self._socket = socket
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await reply

    async def new_page(self) -> Page:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            await page.call(f"{domain}.enable")
        return page

    async def receive(self) -> None:
        async for received in self._socket:
            message = received.json()
            if "id" in message:
                reply = self._replies.pop(message["id"])
                if "error" in message:
                    reply.set_exception(RuntimeError(str(message["error"])))
                else:
                    reply.set_result(message["result"])
            elif page := self._pages.get(message.get("sessionId", "")):
                page.receive(message)
                async with self.changed:
                    self.changed.notify_all()


@contextlib.asynccontextmanager
async def open_browser(program: str, folder: Path) -> AsyncIterator[Browser]:
    """Start a Chromium with a profile of its own in ``folder``; end Chromium and all its processes
    at the end. The log of the network is ``folder / "net.json"``."""
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={folder / 'net.json'}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr
    tasks: list[asyncio.Task[Any]] = []
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"DevTools listening on " not in (line := await process.stderr.readline()):
                assert line, "Chromium ended"
        url = line.split()[-1].decode()
        tasks.append(asyncio.create_task(process.stderr.read()))  # Chromium never has to wait
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=1 << 28) as socket,
        ):
            browser = Browser(socket)
            tasks.append(asyncio.create_task(browser.receive()))
            yield browser
            await browser.call("Browser.close")  # writes the rest of the log of the network
            async with asyncio.timeout(DEADLINE_SECONDS):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.gather(*tasks)  # both end with Chromium


def asked_hosts(net_log: Path) -> set[str]:
    """Return host and port of each request and of each connection, of pages and of Chromium itself.

    UDP is left out: Chromium opens a UDP socket to a public address to learn whether the machine
    has a route, and sends nothing.
    """
    log = json.loads(net_log.read_text())
    names = {number: name for name, number in log["constants"]["logEventTypes"].items()}
    found: set[str] = set()
    for event in log["events"]:
        match names[event["type"]], event.get("params", {}):
            case "URL_REQUEST_START_JOB", {"url": str(url)} if not url.startswith("data:"):
                found.add(urlsplit(url).netloc)
            case "TCP_CONNECT", {"address_list": addresses}:
                found |= set(addresses)
    return found
