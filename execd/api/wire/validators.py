"""Headers with conditions: entity tags (RFC 9110 §13.1) and digests (RFC 9530). Pure."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from execd.errors import InvalidArgument
from execd.model import Precondition

if TYPE_CHECKING:
    from multidict import MultiMapping

    from execd.model import Tags

SHA256_BYTES = 32
_TAG = re.compile(r'(W/)?("[^"]*")')
# A digest is a member of a structured dictionary (RFC 8941): algorithm=:base64:, then parameters
# without a meaning here.
_DIGEST = re.compile(r"[ \t]*([a-z*][a-z0-9_.*-]*)=:([^:]*):(?:;[^,]*)?[ \t]*")


def parse_precondition(headers: MultiMapping[str]) -> Precondition:
    """Parse If-Match, by strong comparison (a weak tag matches nothing), and If-None-Match, by weak
    comparison."""
    return Precondition(
        _tags(headers, "If-Match", is_strong=True), _tags(headers, "If-None-Match", is_strong=False)
    )


def _tags(headers: MultiMapping[str], name: str, *, is_strong: bool) -> Tags:
    values = headers.getall(name, None)
    if values is None:
        return None
    text = ",".join(values).strip()
    if text == "*":
        return "*"
    return frozenset(tag for weak, tag in _TAG.findall(text) if not (weak and is_strong))


def is_modified_since(header: str | None, modified_at: float, *, default: bool) -> bool:
    """Return whether a file is later than the header's date, in whole seconds. ``default``: the
    answer without a readable date."""
    try:
        # RFC 9110 has no other time zone
        since = parsedate_to_datetime(header or "").replace(tzinfo=UTC)
        return max(modified_at, 0) // 1 > since.timestamp()
    except (ValueError, OverflowError):
        return default


def refuse_unmodified_since(headers: MultiMapping[str]) -> None:
    """Refuse the header for a change of a file. Raises InvalidArgument: two changes within one
    second have the same date. If-Match tells them apart."""
    if "If-Unmodified-Since" in headers and "If-Match" not in headers:
        raise InvalidArgument(
            "If-Unmodified-Since: too coarse to change a file by; If-Match does it",
            field="If-Unmodified-Since",
        )


def sent_sha256(headers: MultiMapping[str], name: str) -> bytes | None:
    """Return the sha-256 in Repr-Digest or Content-Digest, or None if the header has no sha-256.

    Raises InvalidArgument for a malformed sha-256 or header. RFC 8941 would ignore a malformed
    header, but the sender wants a check and would believe that the check had happened.
    """
    encoded: str | None = None
    for member in ",".join(headers.getall(name, ())).split(","):
        match = _DIGEST.fullmatch(member)
        if match is None and member.strip():
            raise InvalidArgument(f"{name}: must be a list like sha-256=:BASE64:", field=name)
        if match is not None and match[1] == "sha-256":
            encoded = match[2]  # the last sha-256 counts
    if encoded is None:
        return None
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != SHA256_BYTES:
        raise InvalidArgument(
            f"{name}: sha-256 must be {SHA256_BYTES} bytes in base64, between colons", field=name
        )
    return digest


def body_sha256(headers: MultiMapping[str]) -> bytes | None:
    """Return the sha-256 of a body that is the whole file. For such a body Content-Digest and
    Repr-Digest mean the same. Raises InvalidArgument."""
    whole, content = sent_sha256(headers, "Repr-Digest"), sent_sha256(headers, "Content-Digest")
    if whole is not None and content is not None and whole != content:
        raise InvalidArgument(
            "Content-Digest: is not the same as Repr-Digest", field="Content-Digest"
        )
    return whole or content


def wants_sha256(headers: MultiMapping[str]) -> bool:
    """Return whether Want-Repr-Digest names sha-256, with a preference above 0 ("not
    acceptable")."""
    match = re.search(
        r"(?:^|,)\s*sha-256\s*=\s*([0-9]+)", ",".join(headers.getall("Want-Repr-Digest", ()))
    )
    return match is not None and match[1].strip("0") != ""


def format_repr_digest(sha256: bytes) -> str:
    assert len(sha256) == SHA256_BYTES
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"
