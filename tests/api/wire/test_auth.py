from __future__ import annotations

import hashlib

import pytest
from multidict import CIMultiDict

from execd.api.wire.auth import Guard, TokenGate, presented_tokens
from execd.config import Config
from execd.errors import PermissionDenied, Unauthenticated, Unavailable

TOKEN = "s3cret-tøken"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
OPEN_PATHS = ("/", "/healthz", "/readyz", "/v1/health")


def check(
    path: str = "/execute",
    *,
    method: str = "GET",
    host: str = "0.0.0.0",
    token_sha256: str | None = HASH,
    repeated: list[tuple[str, str]] | None = None,
    **headers: str,
) -> None:
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    named.extend(repeated or [])
    Guard(Config(host=host, token_sha256=token_sha256), OPEN_PATHS).check(method, path, named)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN} "},
        {"X_Access_Token": TOKEN},
        {"X_EXECD_ACCESS_TOKEN": TOKEN},
        {"Sec_WebSocket_Protocol": f"execd.v1, execd.bearer.{TOKEN}"},
        {"Authorization": "Basic Zm9vOmJhcg==", "X_Access_Token": TOKEN},
        {"Authorization": "Bearer of-a-router", "X_Access_Token": TOKEN},
    ],
)
def test_token_opens_from_every_place(headers: dict[str, str]) -> None:
    check(**headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"X_Access_Token": ""},
        {"X_Access_Token": HASH},
        {"X_Access_Token": TOKEN + "x"},
        {"Sec_WebSocket_Protocol": TOKEN},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_anything_else_is_unauthenticated(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        check(**headers)


def test_hash_may_be_written_in_capitals() -> None:
    check(token_sha256=HASH.upper(), X_Access_Token=TOKEN)


def test_token_that_is_not_utf_8_is_compared_by_its_bytes() -> None:
    raw = b"\xff\xfe"
    check(
        token_sha256=hashlib.sha256(raw).hexdigest(),
        X_Access_Token=raw.decode("utf-8", "surrogateescape"),
    )


def test_every_header_of_the_same_name_counts() -> None:
    headers = CIMultiDict([("Authorization", "Bearer a"), ("Authorization", "Bearer b")])
    assert list(presented_tokens(headers)) == ["a", "b"]


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_probes_need_no_token(path: str) -> None:
    check(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/v1/metadata",
        "//",
        "/%2F",
        "/healthz/",
        "/healthz%2F",
        "/%68ealthz",
        "/v1/health/../stats",
    ],
)
def test_nothing_else_is_open(path: str) -> None:
    with pytest.raises(Unauthenticated):
        check(path)


def test_without_a_hash_everybody_may_call() -> None:
    check(token_sha256=None)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "pod:8888"),
        ("null", "pod:8888"),
        ("", "pod:8888"),
        ("http://pod:8889", "pod:8888"),
        ("http://pod", "pod:8888"),
        ("http://pod.evil.example:8888", "pod:8888"),
        ("http://[::1", "pod:8888"),
        ("http://pod:port", "pod:8888"),
        ("file://", "pod:8888"),
    ],
)
def test_foreign_origin_is_refused_even_with_a_token(origin: str, host: str) -> None:
    with pytest.raises(PermissionDenied, match="Origin"):
        check(Origin=origin, Host=host, X_Access_Token=TOKEN)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://pod:8888", "pod:8888"),
        ("http://POD:8888", "pod:8888"),
        ("http://pod", "pod:80"),
        ("https://pod", "pod"),
        ("http://[::1]:8888", "[::1]:8888"),
    ],
)
def test_own_origin_is_let_through(origin: str, host: str) -> None:
    check(Origin=origin, Host=host, X_Access_Token=TOKEN)


OWN, FOREIGN = ("Origin", "http://pod:8888"), ("Origin", "https://evil.example")


@pytest.mark.parametrize("repeated", [[OWN, FOREIGN], [FOREIGN, OWN], [OWN, ("Origin", "")]])
def test_every_origin_header_is_judged(repeated: list[tuple[str, str]]) -> None:
    check(repeated=[OWN, OWN], Host="pod:8888", X_Access_Token=TOKEN)
    with pytest.raises(PermissionDenied, match="Origin"):
        check(repeated=repeated, Host="pod:8888", X_Access_Token=TOKEN)


def test_every_host_header_is_judged() -> None:
    with pytest.raises(PermissionDenied, match="Host"):
        check(
            "/",
            host="127.0.0.1",
            token_sha256=None,
            repeated=[("Host", "localhost"), ("Host", "evil.example")],
        )
    with pytest.raises(PermissionDenied, match="Origin"):
        check(repeated=[OWN, ("Host", "pod:8888"), ("Host", "other:8888")], X_Access_Token=TOKEN)


@pytest.mark.parametrize(
    "value", ["cross-site", "Cross-Site", "same-origin, cross-site", " cross-site "]
)
@pytest.mark.parametrize("path", ["/", "/execute", "/v1/capabilities"])
def test_request_that_another_site_causes_is_refused(path: str, value: str) -> None:
    with pytest.raises(PermissionDenied, match="Sec-Fetch-Site"):
        check(path, Sec_Fetch_Site=value, X_Access_Token=TOKEN)


def test_every_sec_fetch_site_header_is_judged() -> None:
    repeated = [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")]
    with pytest.raises(PermissionDenied, match="Sec-Fetch-Site"):
        check("/", repeated=repeated, X_Access_Token=TOKEN)


@pytest.mark.parametrize("value", ["same-origin", "same-site", "none", ""])
def test_request_of_no_other_site_is_let_through(value: str) -> None:
    check(Sec_Fetch_Site=value, Sec_Fetch_Mode="cors", X_Access_Token=TOKEN)


NAVIGATION = {
    "Sec_Fetch_Site": "cross-site",
    "Sec_Fetch_Mode": "navigate",
    "Sec_Fetch_Dest": "document",
}


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_navigation_to_a_probe_is_let_through(path: str) -> None:
    check(path, **NAVIGATION)


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/download/secret", {}),
        ("GET", "/v1/capabilities", {}),
        ("POST", "/", {}),
        ("GET", "/", {"Sec_Fetch_Mode": "no-cors"}),
        ("GET", "/", {"Sec_Fetch_Mode": "navigate, cors"}),
        ("GET", "/", {"Sec_Fetch_Dest": "iframe"}),
    ],
)
def test_any_other_navigation_from_another_site_is_refused(
    method: str, path: str, more: dict[str, str]
) -> None:
    with pytest.raises(PermissionDenied, match="Sec-Fetch-Site"):
        check(path, method=method, token_sha256=None, **NAVIGATION | more)


@pytest.mark.parametrize("listener", ["127.0.0.1", "::1", "localhost", "127.0.0.7"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8888", "localhost.evil.example", "[::1", "10.0.0.1", ""]
)
def test_loopback_listener_refuses_names_that_are_not_its_own(listener: str, host: str) -> None:
    with pytest.raises(PermissionDenied, match="Host"):
        check("/", host=listener, token_sha256=None, Host=host)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8888", "[::1]:8888", "127.0.0.7:80"]
)
def test_loopback_listener_answers_to_its_own_names(host: str) -> None:
    check(host="127.0.0.7", token_sha256=None, Host=host)


@pytest.mark.parametrize("listener", ["0.0.0.0", "::", "10.1.2.3"])
def test_other_listeners_answer_to_any_name(listener: str) -> None:
    check(host=listener, token_sha256=None, Host="sandbox.ns.svc.cluster.local:8888")


def test_before_an_awaited_init_only_early_paths_are_served() -> None:
    gate = TokenGate(None)
    gate.await_init()
    guard = Guard(Config(), OPEN_PATHS, gate=gate, early_paths={"/ping"})
    headers: CIMultiDict[str] = CIMultiDict(Host="localhost")
    guard.check("GET", "/ping", headers)
    for path in (*OPEN_PATHS, "/execute"):
        with pytest.raises(Unavailable):
            guard.check("GET", path, headers)


def test_the_hash_of_init_holds_for_every_guard_of_the_gate() -> None:
    gate = TokenGate(None)
    gate.await_init()
    guards = [Guard(Config(), (), gate=gate) for _ in range(2)]
    gate.init(hashlib.sha256(b"secret").hexdigest().upper())
    right = CIMultiDict({"Host": "localhost", "X-Access-Token": "secret"})
    for guard in guards:
        guard.check("GET", "/execute", right)
        with pytest.raises(Unauthenticated):
            guard.check("GET", "/execute", CIMultiDict(Host="localhost"))


def test_the_token_of_a_restored_pod_takes_the_place_of_the_old_token() -> None:
    gate = TokenGate(hashlib.sha256(b"old").hexdigest())
    gate.replace(hashlib.sha256(b"new").hexdigest().upper())
    assert gate.matches("new")
    assert not gate.matches("old")


def test_an_init_without_a_hash_keeps_the_hash_of_the_settings() -> None:
    gate = TokenGate(hashlib.sha256(b"secret").hexdigest())
    gate.await_init()
    gate.init(None)
    assert gate.matches("secret")
    assert not gate.matches("other")
