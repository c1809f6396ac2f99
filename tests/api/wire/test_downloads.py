from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from execd.api.wire.downloads import (
    content_disposition,
    http_date,
    is_not_modified,
    parse_range,
    range_applies,
)
from execd.errors import RangeNotSatisfiable


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-9", (0, 10)),
        ("bytes=0-99", (0, 10)),
        ("bytes=3-", (3, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("BYTES = 1 - 2 ", (1, 3)),
        ("bytes=9-99999999999999999999", (9, 10)),
    ],
)
def test_single_range_is_cut_to_the_file(header: str, expected: tuple[int, int]) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(
    "header",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-3",
        "bytes=0-1,3-4",
        "items=0-1",
        "bytes=a-b",
        "bytes=+1-2",
        "bytes=\u0661-\u0662",
    ],
)
def test_what_is_no_single_range_means_the_whole(header: str) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)],
)
def test_range_with_nothing_in_it_is_refused_with_the_size(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as caught:
        parse_range(header, size)
    assert caught.value.details == {"size_bytes": size}


@given(
    st.text(max_size=30) | st.from_regex(r"bytes=[0-9]{0,25}-[0-9]{0,25}"), st.integers(0, 2**63)
)
def test_any_header_gives_a_part_of_the_file_or_none(header: str, size: int) -> None:
    try:
        part = parse_range(header, size)
    except RangeNotSatisfiable:
        return
    if part is not None:
        assert 0 <= part[0] < part[1] <= size


@pytest.mark.parametrize("header", ["*", '"tag"', 'W/"tag"', '"other", "tag"', '"other",W/"tag"'])
def test_known_tag_is_not_modified(header: str) -> None:
    assert is_not_modified(CIMultiDict({"If-None-Match": header}), '"tag"', 0)


@pytest.mark.parametrize("header", [None, "", '"other"', "tag", '"TAG"', '"tag'])
def test_unknown_tag_is_modified(header: str | None) -> None:
    headers = CIMultiDict({} if header is None else {"If-None-Match": header})
    assert not is_not_modified(headers, '"tag"', 0)


def test_date_counts_in_whole_seconds_and_after_tags() -> None:
    for modified_at, expected in (
        (1_000_000_000.0, True),
        (1_000_000_000.9, True),
        (1_000_000_001.0, False),
        (-5.0, True),
    ):
        headers = CIMultiDict({"If-Modified-Since": "Sun, 09 Sep 2001 01:46:40 GMT"})
        assert is_not_modified(headers, '"tag"', modified_at) is expected
        headers["If-None-Match"] = '"other"'
        assert not is_not_modified(headers, '"tag"', modified_at)
    for text in (
        "",
        "yesterday",
        "Sun, 99 Sep 2001 01:46:40 GMT",
        "Sun, 09 Sep 99999 01:46:40 GMT",
        "0",
    ):
        assert not is_not_modified(CIMultiDict({"If-Modified-Since": text}), '"tag"', 0)


@pytest.mark.parametrize(
    ("header", "applies"),
    [
        (None, True),
        ('"tag"', True),
        ('W/"tag"', False),
        ('"old"', False),
        ("Thu, 01 Jan 1970 00:00:01 GMT", True),
        ("Thu, 01 Jan 1970 00:00:02 GMT", False),
    ],
)
def test_range_applies_to_the_version_it_was_meant_for(header: str | None, applies: bool) -> None:
    headers = CIMultiDict({} if header is None else {"If-Range": header})
    assert range_applies(headers, '"tag"', http_date(1.9)) is applies


@pytest.mark.parametrize("seconds", [-1e12, -1, 0, 1.5, 2**31, 1e15])
def test_any_time_has_a_date(seconds: float) -> None:
    assert http_date(seconds).endswith(" GMT")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.txt", 'attachment; filename="a.txt"'),
        ("a b;c.txt", 'attachment; filename="a b;c.txt"'),
        (
            'say "hi".txt',
            "attachment; filename=\"say _hi_.txt\"; filename*=UTF-8''say%20%22hi%22.txt",
        ),
        ("é.txt", "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"),
        (
            "a\r\nSet-Cookie: x",
            "attachment; filename=\"a__Set-Cookie: x\"; filename*=UTF-8''a%0D%0ASet-Cookie%3A%20x",
        ),
        ("\udcff", "attachment; filename=\"_\"; filename*=UTF-8''%FF"),
        ("100%.txt", "attachment; filename=\"100_.txt\"; filename*=UTF-8''100%25.txt"),
    ],
)
def test_disposition_names_the_file_safely(name: str, header: str) -> None:
    assert content_disposition(name) == header


@given(st.binary(max_size=40))
def test_no_name_breaks_the_header(name: bytes) -> None:
    header = content_disposition(name.decode("utf-8", "surrogateescape"))
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
