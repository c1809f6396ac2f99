"""Access control: the token, and the requests of web pages. Pure: headers in, an exception or
nothing out.

* With a token hash configured, every path but the open paths needs the token. The daemon knows only
  the SHA-256, so the token is nowhere in the pod. All listeners share the hash (``TokenGate``): a
  hash that arrives after the start, by a dialect's init route, holds on every listener at once.
* Until an awaited init has arrived, every listener answers 503 to everything but probes and the
  init route. Otherwise code in the sandbox could claim the token first.
* A web page that a user of this machine visits must not drive the daemon. Browsers send ``Origin``
  with each POST and with each read by a script, so a foreign ``Origin`` is refused. With an image,
  a frame or a link browsers send no ``Origin``, but ``Sec-Fetch-Site`` (W3C Fetch Metadata);
  "cross-site" is refused. Exception: a link to an open path, since open paths show no data.
* A page can make its own host name resolve to 127.0.0.1 (DNS rebinding) and thus share the daemon's
  origin. But then ``Host`` holds the page's name, so a loopback listener refuses names that are not
  its own. Other listeners are reached under names that execd cannot know.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from execd.errors import PermissionDenied, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from multidict import MultiMapping

    from execd.config import Config

# Alternatives to Authorization, which routers strip.
TOKEN_HEADERS = ("X-Access-Token", "X-EXECD-ACCESS-TOKEN")
# Browsers cannot set headers on a WebSocket, but can offer subprotocols.
TOKEN_SUBPROTOCOL = "execd.bearer."
DEFAULT_PORTS = {"http": 80, "https": 443}


class TokenGate:
    """The token's hash, shared by the guards of all listeners."""

    def __init__(self, token_sha256: str | None) -> None:
        self.token_sha256 = _normalized(token_sha256)
        self.awaits_init = False
        """Nothing is served but probes, until ``init`` brings the hash."""

    def await_init(self) -> None:
        """Have a dialect bring the hash. Call before a port is open."""
        self.awaits_init = True

    def init(self, token_sha256: str | None) -> None:
        """The init route has taken its one request. None keeps the hash of the settings."""
        assert self.awaits_init, "init happens once"
        self.token_sha256 = _normalized(token_sha256) or self.token_sha256
        self.awaits_init = False

    def replace(self, token_sha256: str) -> None:
        """The pod has another token."""
        self.token_sha256 = _normalized(token_sha256)

    def refuse_before_init(self) -> None:
        """Raises Unavailable while the init is awaited."""
        if self.awaits_init:
            raise Unavailable(
                "execd waits for the init of this sandbox, and serves only probes; repeat the "
                "request after the init"
            )

    def matches(self, token: str) -> bool:
        """Compare in constant time. Without a hash no token matches."""
        return self.token_sha256 is not None and hmac.compare_digest(
            _sha256(token), self.token_sha256
        )


class Guard:
    """The rules of a listener for one configuration. ``open_paths`` need no token, and
    ``early_paths`` are served before an awaited init."""

    def __init__(
        self,
        config: Config,
        open_paths: Iterable[str],
        *,
        gate: TokenGate | None = None,
        early_paths: Iterable[str] = (),
        tokens_of: Callable[[MultiMapping[str]], Iterator[str]] | None = None,
        opens: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``opens``: whether a setting frees the path from the token. Such a path is not open to
        other sites."""
        self._open_paths = frozenset(open_paths)
        self._early_paths = frozenset(early_paths)
        self._gate = gate or TokenGate(config.token_sha256)
        self._tokens_of = tokens_of or presented_tokens
        self._opens = opens
        self._host_names = (
            {"localhost", "127.0.0.1", "::1", config.host.lower()}
            if _is_loopback(config.host)
            else None
        )

    def check(self, method: str, path: str, headers: MultiMapping[str]) -> None:
        """Check a request. Raises PermissionDenied (foreign Origin, Host or Sec-Fetch-Site) or
        Unauthenticated.

        ``path`` is the path as sent, not decoded. Every header of these names is checked: a proxy
        may have added the first.
        """
        hosts = headers.getall("Host", ())
        for host in hosts:
            if self._host_names is not None and _host_name(host) not in self._host_names:
                raise PermissionDenied(
                    "Host: this listener answers to localhost and its own address only"
                )
        if "Origin" in headers:  # hardly any client is a browser
            for origin in headers.getall("Origin"):
                if not hosts or not all(_is_same_origin(origin, host) for host in hosts):
                    raise PermissionDenied("Origin: requests from other sites are refused")
        is_open = path in self._open_paths
        if (
            "Sec-Fetch-Site" in headers
            and "cross-site" in _values(headers, "Sec-Fetch-Site")
            and not (is_open and _is_plain_navigation(method, headers))
        ):
            raise PermissionDenied("Sec-Fetch-Site: requests from other sites are refused")
        if path not in self._early_paths:
            self._gate.refuse_before_init()
        # An escaped spelling of an open path is a different string here, so the request needs a
        # token. The difference errs on the safe side.
        if self._gate.token_sha256 is None or is_open or self._opens(path):
            return
        # All tokens are compared, in constant time. So the time of the answer tells neither which
        # header held the right token nor how many characters were right.
        matches = [self._gate.matches(token) for token in self._tokens_of(headers)]
        if not any(matches):
            raise Unauthenticated(
                "a valid access token is required" if matches else "an access token is required"
            )


def presented_tokens(headers: MultiMapping[str]) -> Iterator[str]:
    """Yield every token that a request presents."""
    for value in headers.getall("Authorization", ()):
        scheme, _, token = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()
    for name in TOKEN_HEADERS:
        yield from (value.strip() for value in headers.getall(name, ()))
    for value in headers.getall("Sec-WebSocket-Protocol", ()):
        for protocol in value.split(","):
            if protocol.strip().startswith(TOKEN_SUBPROTOCOL):
                yield protocol.strip().removeprefix(TOKEN_SUBPROTOCOL)


def _normalized(token_sha256: str | None) -> str | None:
    assert token_sha256 is None or len(token_sha256) == 64
    return token_sha256.lower() if token_sha256 else None


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@functools.lru_cache(maxsize=64)
def _host_name(host: str) -> str | None:
    """Return the name in a Host header, in lower case, without port and brackets; None for a
    malformed header."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _values(headers: MultiMapping[str], name: str) -> set[str]:
    """Return all values of all headers of this name, in lower case."""
    return {value.strip().lower() for line in headers.getall(name, ()) for value in line.split(",")}


def _is_plain_navigation(method: str, headers: MultiMapping[str]) -> bool:
    """Return whether a person followed a link."""
    return (
        method == "GET"
        and _values(headers, "Sec-Fetch-Mode") == {"navigate"}
        and _values(headers, "Sec-Fetch-Dest") <= {"document"}
    )


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether name and port are the same. The scheme is ignored: TLS may end at a router."""
    try:
        origin_parts = urlsplit(origin)
        host_parts = urlsplit(f"//{host}")
        default_port = DEFAULT_PORTS.get(origin_parts.scheme)
        same_port = (origin_parts.port or default_port) == (host_parts.port or default_port)
        return (
            origin_parts.hostname is not None
            and origin_parts.hostname == host_parts.hostname
            and same_port
        )
    except ValueError:
        return False
