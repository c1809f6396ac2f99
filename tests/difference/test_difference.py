"""docs/reference/upstream.md lists every difference with a reason, and nothing but differences."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from benchmarks.servers import Place

from .exchanges import EXCHANGES, Exchange, line, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference/upstream.md"
READ_SECONDS = 60.0


def replies(kind: str) -> tuple[dict[str, httpx.Response], str]:
    """The replies of a fresh server by the name of the exchange, and the server's base dir."""
    with (
        Place().serving(kind) as server,
        httpx.Client(
            base_url=f"http://127.0.0.1:{server.port}",
            # The upstream server closes a connection after a reply that failed.
            headers={"Connection": "close"},
            timeout=READ_SECONDS,
            trust_env=False,
        ) as client,
    ):
        where = client.post("/execute", json={"command": "pwd"}).json()
        base_dir = where["stdout"].strip()
        found: dict[str, httpx.Response] = {}
        etag = ""
        for exchange in EXCHANGES:
            reply = found[exchange.name] = _send(client, exchange, base_dir, etag)
            etag = reply.headers.get("etag", etag)
    return found, base_dir


def _send(client: httpx.Client, exchange: Exchange, base_dir: str, etag: str) -> httpx.Response:
    more = _with_base_dir(exchange.more, base_dir)
    if exchange.etag_header:
        more["headers"] = {**more.get("headers", {}), exchange.etag_header: etag}
    # The path as written: httpx would resolve the dots and encode the signs.
    target = exchange.path.replace("BASE", base_dir).encode("ascii")
    return client.request(exchange.method, "/", extensions={"target": target}, **more)


def _with_base_dir(value: Any, base_dir: str) -> Any:
    match value:
        case str():
            return value.replace("BASE", base_dir)
        case dict():
            return {name: _with_base_dir(item, base_dir) for name, item in value.items()}
        case tuple():
            return tuple(_with_base_dir(item, base_dir) for item in value)
        case _:
            return value


def differences() -> dict[str, tuple[str, str]]:
    """By the name of the exchange: upstream's line and execd's line."""
    upstream, base_of_upstream = replies("baseline")
    execd, base_of_execd = replies("execd")
    found = {}
    for name, reply in upstream.items():
        ours = line(execd[name], base_of_execd, only=reply)
        theirs = line(reply, base_of_upstream)
        if ours != theirs:
            found[name] = theirs, ours
    return found


DIFFERENCE = re.compile(r"\* (.+)\n  \* upstream: (.+)\n  \* execd: (.+)(?:\n|$)")


def rows() -> Iterator[tuple[str, str, str, str]]:
    """The request, both answers and the reason: a reason is the paragraph above its list."""
    reason = ""
    for paragraph in PAGE.read_text().split("\n\n"):
        if paragraph.startswith("* "):
            for name, theirs, ours in DIFFERENCE.findall(paragraph):
                yield name, theirs, ours, reason
        reason = "" if paragraph.startswith("#") else paragraph


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[str, str]]:
    return differences()


def test_each_difference_to_upstream_is_listed_with_its_reason(
    found: dict[str, tuple[str, str]],
) -> None:
    expected = {name: (shown(theirs), shown(ours)) for name, (theirs, ours) in found.items()}
    listed = {name: (theirs, ours) for name, theirs, ours, _ in rows()}
    if os.environ.get("EXECD_WRITE_DIFFERENCES"):
        reasons = {name: reason for name, _, _, reason in rows()}
        for name, (theirs, ours) in expected.items():
            print(
                f"{reasons.get(name, '')}\n\n* {name}\n  * upstream: {theirs}\n  * execd: {ours}\n"
            )
    assert listed == expected
    assert all(reason for *_, reason in rows())


def test_most_replies_are_the_same(found: dict[str, tuple[str, str]]) -> None:
    """A server that answered nothing as upstream does would be all rows."""
    assert len(found) < len(EXCHANGES) / 2


def test_pages_count_the_requests() -> None:
    assert len({exchange.name for exchange in EXCHANGES}) == len(EXCHANGES), "a name is used twice"
    for page in (PAGE, DOCS / "testing.md"):
        assert re.findall(r"the same (\d+)\s+requests", page.read_text()) == [str(len(EXCHANGES))]
