from __future__ import annotations

import hashlib

import pytest

from execd.errors import InvalidArgument
from execd.files.write import DigestCheck

WANTED = hashlib.sha256(b"whole").digest()


def test_pieces_with_the_digest_of_the_whole_are_accepted() -> None:
    check = DigestCheck(WANTED)
    for piece in (b"wh", b"", b"ole"):
        check.update(piece)
    check.check("x")


def test_other_bytes_are_refused_with_the_digest_that_they_have() -> None:
    check = DigestCheck(WANTED)
    check.update(b"hole")
    with pytest.raises(InvalidArgument, match="x: what arrived has another sha-256") as refused:
        check.check("x")
    assert refused.value.details == {"sha256": hashlib.sha256(b"hole").hexdigest()}
