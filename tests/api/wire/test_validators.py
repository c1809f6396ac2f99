from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from execd.api.wire.validators import (
    body_sha256,
    format_repr_digest,
    is_modified_since,
    parse_precondition,
    sent_sha256,
    wants_sha256,
)
from execd.errors import InvalidArgument, PreconditionFailed
from execd.model import NO_PRECONDITION, Precondition

DIGEST = hashlib.sha256(b"x").digest()
ENCODED = base64.b64encode(DIGEST).decode()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], NO_PRECONDITION),
        ([("If-Match", "*")], Precondition(match="*")),
        (
            [("If-Match", '"a", "b"'), ("If-Match", '"c"')],
            Precondition(match=frozenset({'"a"', '"b"', '"c"'})),
        ),
        ([("If-Match", 'W/"a"')], Precondition(match=frozenset())),
        ([("If-None-Match", 'W/"a"')], Precondition(none_match=frozenset({'"a"'}))),
        ([("If-Match", "")], Precondition(match=frozenset())),
    ],
)
def test_entity_tags_are_read_strong_or_weak_as_the_header_has_it(
    headers: list[tuple[str, str]], expected: Precondition
) -> None:
    assert parse_precondition(CIMultiDict(headers)) == expected


@pytest.mark.parametrize(
    ("condition", "etag", "holds"),
    [
        (Precondition(match="*"), None, False),
        (Precondition(match="*"), '"a"', True),
        (Precondition(match=frozenset({'"a"'})), '"a"', True),
        (Precondition(match=frozenset({'"a"'})), '"b"', False),
        (Precondition(match=frozenset()), '"b"', False),
        (Precondition(none_match="*"), None, True),
        (Precondition(none_match="*"), '"a"', False),
        (Precondition(none_match=frozenset({'"a"'})), '"a"', False),
        (Precondition(none_match=frozenset({'"a"'})), '"b"', True),
    ],
)
def test_a_condition_holds_or_is_the_one_error(
    condition: Precondition, etag: str | None, holds: bool
) -> None:
    if holds:
        condition.check(etag, "x")
    else:
        with pytest.raises(PreconditionFailed):
            condition.check(etag, "x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"sha-256=:{ENCODED}:", DIGEST),
        (f"md5=:AAAA:, sha-256=:{ENCODED}:", DIGEST),
        (f"sha-256=:AAAA:,\tsha-256=:{ENCODED}:;a=1 ,", DIGEST),
        ("sha-512=:AAAA:", None),
        ("", None),
    ],
)
def test_the_sha_256_among_digests_is_found(value: str, expected: bytes | None) -> None:
    assert sent_sha256(CIMultiDict({"Repr-Digest": value}), "Repr-Digest") == expected
    assert (
        sent_sha256(CIMultiDict({"Content-Digest": format_repr_digest(DIGEST)}), "Content-Digest")
        == DIGEST
    )


@pytest.mark.parametrize(
    "value",
    [
        *(
            "sha-256=:AAAA:",
            "sha-256=:?:",
            f"sha-256=:{ENCODED}A:",
            "sha-256=:\xe4:",
            f"sha-256={ENCODED}",
            f'sha-256="{ENCODED}"',
        ),
        *(
            f"SHA-256=:{ENCODED}:",
            f"sha-256 = :{ENCODED}:",
            "sha-256",
            "garbage",
            DIGEST.hex(),
            f"sha-512=:AAAA: sha-256=:{ENCODED}:",
        ),
    ],
)
def test_a_sha_256_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="Repr-Digest"):
        sent_sha256(CIMultiDict({"Repr-Digest": value}), "Repr-Digest")


def test_two_digests_of_one_body_are_the_same() -> None:
    right, wrong = format_repr_digest(DIGEST), format_repr_digest(bytes(32))
    assert body_sha256(CIMultiDict()) is None
    for headers in (
        {"Repr-Digest": right},
        {"Content-Digest": right},
        {"Content-Digest": right, "Repr-Digest": right},
    ):
        assert body_sha256(CIMultiDict(headers)) == DIGEST
    with pytest.raises(InvalidArgument, match="Content-Digest"):
        body_sha256(CIMultiDict({"Content-Digest": wrong, "Repr-Digest": right}))


def test_a_digest_is_wanted_by_a_preference_over_zero() -> None:
    for value, expected in (
        ("sha-256=1", True),
        ("sha-512=3, sha-256=10", True),
        ("sha-256=0", False),
        ("sha-512=1", False),
        ("sha-256=00", False),
        (f"sha-256={'9' * 5000}", True),  # Python converts no more than 4,300 digits
    ):
        assert wants_sha256(CIMultiDict({"Want-Repr-Digest": value})) is expected


@given(st.text(max_size=100))
def test_any_text_in_the_headers_is_taken_or_refused(text: str) -> None:
    headers = CIMultiDict(
        {"If-Match": text, "If-None-Match": text, "Want-Repr-Digest": text, "Repr-Digest": text}
    )
    parse_precondition(headers)
    wants_sha256(headers)
    is_modified_since(text, 0, default=True)
    try:
        sent_sha256(headers, "Repr-Digest")
    except InvalidArgument:
        pass
