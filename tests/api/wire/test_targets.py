from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.targets import path_below, path_of, raw_path_of, single_slashes


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/download", ""),
        ("/download/", ""),
        ("/download/.", "."),
        ("/download/a/b", "a/b"),
        ("/download/a%2Fb", "a/b"),
        ("/download/a%2fb", "a/b"),
        ("/download//etc/passwd", "/etc/passwd"),
        ("/download/%2Fetc", "/etc"),
        ("/download/100%25.txt", "100%.txt"),
        ("/download/100%2525.txt", "100%25.txt"),
        ("/download/%252F", "%2F"),
        ("/download/a+b%20c", "a+b c"),
        ("/download/a%3Fb?c=d", "a?b"),
        ("/download/a#b", "a#b"),
        ("/download/%C3%A9", "é"),
        ("/download/%ff", "\udcff"),
        ("/download/a%0Ab", "a\nb"),
        ("/download/a%", "a%"),
        ("/download/a%zz", "a%zz"),
        ("/down%6Coad/a", "a"),
        ("http://h:1/download/a%2Fb?x", "a/b"),
        ("/download/http://h/x", "http://h/x"),
        ("/download/..%2Fx", "../x"),
    ],
)
def test_each_escape_is_decoded_once(target: str, path: str) -> None:
    assert path_below(target, "/download") == path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/a?token=x", "/a"),
        ("http://h", "/"),
        ("http://h?x", "/"),
        ("http://h/a?b", "/a"),
        ("*", "*"),
    ],
)
def test_raw_path_has_no_authority_and_no_query(target: str, path: str) -> None:
    assert raw_path_of(target) == path


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/list//a", "/list//a"),
        ("//list", "/list"),
        ("///list?path=//a", "/list?path=//a"),
        ("/v1//executions", "/v1/executions"),
        ("//v1///files//a", "/v1/files//a"),
        ("http://h:1/list", "http://h:1/list"),
        ("http://h:1//list//a", "http://h:1/list//a"),
        ("http://h:1//v1//files", "http://h:1/v1/files"),
        ("*", "*"),
    ],
)
def test_slashes_that_a_base_url_adds_are_one(target: str, seen: str) -> None:
    assert single_slashes(target) == seen


@given(st.binary(min_size=1))
def test_every_name_survives_its_own_quoting(name: bytes) -> None:
    assert path_of("/" + quote(name, safe="")).encode("utf-8", "surrogateescape") == b"/" + name


@given(st.text(st.characters(max_codepoint=0xDFFF)))
def test_any_target_decodes(target: str) -> None:
    text = target.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    path_of(text).encode("utf-8", "surrogateescape")
