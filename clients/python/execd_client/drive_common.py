"""What both drivers share: httpx's requests, replies and errors in the words of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from execd_client.effects import Cut, Reply, Request
from execd_client.errors import EPISODE, EXPECTED_EPISODE, EpisodeEnded, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from execd_client.address import Address

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30.0
NEVER_SENT = (
    *(httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol),
)


class Episode:
    """The time between two resets to which a client belongs: that of its first reply, or of its own
    reset. A request that comes late, after somebody else's reset, then runs nothing."""

    def __init__(self) -> None:
        self.id: str | None = None

    def headers_of(self, address: Address) -> dict[str, str]:
        return {**address.headers, **({EXPECTED_EPISODE: self.id} if self.id else {})}

    def learn(self, headers: Mapping[str, str]) -> None:
        self.id = self.id or headers.get(EPISODE)


def timeouts(request: Request) -> httpx.Timeout:
    silence = request.silence_seconds
    return httpx.Timeout(
        connect=min(CONNECT_SECONDS, silence),
        read=silence,
        write=min(WRITE_SECONDS, silence),
        pool=min(CONNECT_SECONDS, silence),
    )


def client_options(uds: str | None, verify: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the client, and of the transport. No limit of connections: a client may follow
    a thousand streams."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    if uds is not None:
        return {}, {"uds": uds, "limits": limits}
    return {"limits": limits, "verify": verify}, {}


def body_of(request: Request) -> bytes | Iterator[bytes] | None:
    if request.source is not None:
        return request.source()
    return request.content or (b"" if request.method in ("POST", "PUT") else None)


def reply_of(response: httpx.Response) -> Reply:
    """Raises EpisodeEnded, past the plan: no plan goes on in another episode."""
    if response.status_code == 409:
        expected = response.request.headers.get(EXPECTED_EPISODE)
        error = error_of(409, response.headers, response.content, expected)
        if isinstance(error, EpisodeEnded):
            raise error
    return Reply(response.status_code, response.headers, response.content)


def cut_of(error: Exception) -> Cut:
    name = type(error).__name__
    return Cut(
        f"{name}: {error}" if str(error) else name, was_sent=not isinstance(error, NEVER_SENT)
    )
