from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.errors import Blame, InvalidArgument, PermissionDenied
from execd.files.paths import MAX_PATH_BYTES, blame, decode, encode, readings


@given(st.binary(max_size=40).filter(lambda raw: b"\0" not in raw))
def test_every_name_survives_decoding_and_encoding(raw: bytes) -> None:
    assert encode(decode(raw)) == raw


names = st.sampled_from(["app", "app2", "x", "..", ".", "", "srv"])


@given(st.lists(names, max_size=6).map("/".join), st.sampled_from(["/app", "/srv/app", "/"]))
def test_a_path_means_itself_only_when_it_is_absolute_and_normalises_to_below_the_base(
    path: str, base: str
) -> None:
    raw = path.encode()
    first, *rest = readings(raw, [base.encode()])
    below = (
        path.startswith("/")
        and os.path.commonpath([base, os.path.normpath("/" + path.lstrip("/"))]) == base
    )
    if below:
        assert first.startswith(b"/")
        assert rest == [raw.lstrip(b"/")]
    else:
        assert first == (raw.lstrip(b"/") if path.startswith("/") else raw)
        assert rest == []


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_string_is_either_bytes_or_the_callers_fault(path: str) -> None:
    try:
        raw = encode(path)
    except (InvalidArgument, PermissionDenied) as error:
        assert error.message.encode()  # noqa: PT017  # fit for JSON
        return
    assert decode(raw).encode("utf-8", "surrogateescape") == raw


def test_every_errno_has_somebody_to_act_on_it_and_its_text_in_the_message() -> None:
    for number in errno.errorcode:
        error = blame(OSError(number, "x"), "'path'")
        assert "'path'" in error.message
        assert error.blame in Blame
    sandbox = {
        number
        for number in errno.errorcode
        if blame(OSError(number, ""), "").blame is Blame.SANDBOX
    }
    assert {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE} <= sandbox
    assert not sandbox & {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EISDIR,
    }


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_path_may_have_4095_bytes_and_no_more(surplus: int) -> None:
    path = "d/" * (MAX_PATH_BYTES // 2) + "x" * (1 + surplus)
    assert len(path) == 4095 + surplus
    if surplus:
        with pytest.raises(InvalidArgument, match=f"at most {MAX_PATH_BYTES} bytes"):
            encode(path)
    else:
        assert encode(path) == path.encode()
