"""The page /docs in Chromium: all operations, nothing from elsewhere, nothing to send. CI installs
Chromium; on a machine without Chromium the tests are skipped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from tests.browser.chromium import asked_hosts, find_program, open_browser
from tests.browser.router import open_router
from tests.conformance.target import TERMINATED, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.chromium import Browser, Page
    from tests.conformance.target import Target

VIEWER = Path(__file__).parents[2] / "execd" / "api" / "docs" / "page" / "viewer.js"
METHODS = {"get", "put", "post", "delete"}

OPERATIONS = """[...document.querySelectorAll('.opblock')].map((block) => [
    block.querySelector('.opblock-summary-method').innerText,
    block.querySelector('.opblock-summary-path').dataset.path,
])"""
SOME = ("POST /v1/executions", "PUT /v1/files/{path}", "GET /v1/executions/{id}/attach")
"""A JSON body and events, a binary body, a WebSocket. A busy browser needs minutes to unfold all
operations."""
EXTENSIONS = "[...document.querySelectorAll('.response details')].map((shown) => shown.textContent)"
WAYS_TO_SEND = (
    "document.querySelectorAll('.try-out, .authorize, .execute, form, input:enabled, "
    "textarea:enabled').length"
)


@pytest.fixture(scope="module")
def program() -> str:
    found = find_program()
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A daemon that wants a token: the page needs none."""
    token_sha256 = hashlib.sha256(b"token").hexdigest()
    started = start(tmp_path_factory.mktemp("daemon"), f"--token-sha256={token_sha256}")
    yield started
    assert started.stop() == TERMINATED, started.log_text()


@pytest.fixture(scope="module")
def operations(daemon: Target) -> list[tuple[str, str]]:
    """Method and path of each operation in the document."""
    document = httpx.get(f"{daemon.url}/openapi.json", trust_env=False).json()
    found = [
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in METHODS & set(item)
    ]
    assert len(found) > 30
    return sorted(found)


async def shown(page: Page) -> list[tuple[str, str]]:
    await page.wait_for("document.querySelector('.opblock')")
    return sorted((method, path) for method, path in await page.evaluate(OPERATIONS))


async def unfold(page: Page) -> None:
    """Unfold a few operations, and wait until each shows its replies."""
    for operation in SOME:
        block = (
            "[...document.querySelectorAll('.opblock')].find((block) => "
            "`${block.querySelector('.opblock-summary-method').innerText} "
            "${block.querySelector('.opblock-summary-path').dataset.path}` === "
            f"{json.dumps(operation)})"
        )
        await page.evaluate(f"{block}.querySelector('.opblock-summary-control').click()")
        await page.wait_for(f"{block}.querySelector('.responses-wrapper')")


@pytest.mark.parametrize(
    ("prefix", "path"), [("", "/docs/"), ("/pods/sandbox-1/8888", "/docs")], ids=["root", "prefix"]
)
async def test_the_page_shows_all_operations_below_any_prefix_and_offers_nothing_to_send(
    program: str,
    daemon: Target,
    operations: list[tuple[str, str]],
    tmp_path: Path,
    prefix: str,
    path: str,
) -> None:
    async with open_router(daemon.url, prefix) as router:
        async with open_browser(program, tmp_path) as browser:
            page = await browser.new_page()
            await page.open(f"{router.url}{prefix}{path}")
            assert await shown(page) == operations
            await unfold(page)
            events, messages = await page.evaluate(EXTENSIONS)
            assert events.startswith("x-events: started, stdout, ")
            assert "#/components/schemas/StartedEvent" in events
            assert messages.startswith("x-websocket: ")
            assert "#/components/schemas/Resize" in messages
            assert await page.evaluate(WAYS_TO_SEND) == 0
            assert page.complaints == []
        files = ("viewer.js", "swagger-ui.css", "swagger-ui-bundle.js")
        passed = {path, "/openapi.json", *(f"/docs/{file}" for file in files)}
        assert sorted(router.passed) == sorted(f"GET {name}" for name in passed)
        assert router.strayed == []
        assert set(page.requested) == {f"{router.url}{prefix}{name}" for name in passed}
        assert asked_hosts(tmp_path / "net.json") == {urlsplit(router.url).netloc}


FAULTS = {
    "document.body.setAttribute('style', 'color: red')": "style-src",
    "try { eval('1') } catch {}": "script-src",
    "fetch('http://elsewhere.invalid/').catch(() => {})": "connect-src",
    "new Image().src = '/outside'": "404",
    "fetch('v1/sessions')": "401",
    "console.error('planted')": "planted",
    "throw Error('planted')": "planted",
}


async def complaints_of(browser: Browser, url: str) -> list[str]:
    page = await browser.new_page()
    await page.open(url)
    await page.wait_until(lambda: page.complaints)
    return page.complaints


async def test_the_judges_find_planted_faults(program: str, daemon: Target, tmp_path: Path) -> None:
    planted = {"/docs/swagger-ui-bundle.js": "", "/docs/viewer.js": ""}
    async with open_router(daemon.url, "/pod", planted) as router:
        url = f"{router.url}/pod/docs"
        async with open_browser(program, tmp_path) as browser:
            page = await browser.new_page()
            await page.open(url)
            assert page.complaints == []
            for fault, complaint in FAULTS.items():
                planted["/docs/viewer.js"] = fault
                complaints = await complaints_of(browser, url)
                assert any(complaint in found for found in complaints), complaints
            # A link is another host's, and no policy forbids links. The name leads nowhere.
            planted["/docs/viewer.js"] = "location = 'http://elsewhere.invalid/'"
            page = await browser.new_page()
            await page.open(url)
            await page.wait_until(lambda: "http://elsewhere.invalid/" in page.requested)
        assert router.strayed == ["GET /outside"]
        hosts = asked_hosts(tmp_path / "net.json")
        assert hosts == {urlsplit(router.url).netloc, "elsewhere.invalid"}


async def test_the_judge_finds_ways_to_send(program: str, daemon: Target, tmp_path: Path) -> None:
    """The page without its setting."""
    script = VIEWER.read_text()
    planted = {"/docs/viewer.js": script.replace("supportedSubmitMethods: [],", "")}
    assert planted["/docs/viewer.js"] != script
    async with (
        open_router(daemon.url, "/pod", planted) as router,
        open_browser(program, tmp_path) as browser,
    ):
        page = await browser.new_page()
        await page.open(f"{router.url}/pod/docs")
        await page.wait_for("document.querySelector('.opblock')")
        await unfold(page)
        assert await page.evaluate(WAYS_TO_SEND) >= len(SOME)
