from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.multipart import (
    MAX_HEADER_BYTES,
    MAX_PADDING_BYTES,
    MAX_PARTS,
    PATTERN_BYTES,
    Event,
    MultipartDecoder,
    Part,
    PartEnd,
    boundary,
)
from execd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUNDARY = b"b0undary"
DELIMITER = b"\r\n--" + BOUNDARY


def encoded(*parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> bytes:
    """A body of (Content-Disposition parameters, content) parts."""
    body = b""
    for parameters, content in parts:
        body += b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; " + parameters + b"\r\n"
        body += b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n"
    return body + b"--" + BOUNDARY + end


def fed(decoder: MultipartDecoder, chunk: bytes) -> Iterator[Event]:
    yield from decoder.feed(chunk)
    while decoder.is_behind:
        yield from decoder.feed(b"")


def decoded(body: bytes, piece_bytes: int) -> tuple[list[Event], bool]:
    """The events of ``body`` with adjacent content joined, and whether the body was complete."""
    decoder = MultipartDecoder(BOUNDARY)
    events: list[Event] = []
    for start in range(0, len(body), piece_bytes):
        for event in fed(decoder, body[start : start + piece_bytes]):
            if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
                events[-1] += event
            else:
                events.append(event)
    return events, decoder.is_complete


def parts_of(body: bytes) -> list[Event]:
    """The events of ``body``. The events must not depend on the size of the pieces."""
    whole = decoded(body, len(body) or 1)
    for piece_bytes in (1, 2, 3, 7):
        assert decoded(body, piece_bytes) == whole
    return whole[0]


def filename_of(parameters: bytes) -> str | None:
    (part, *_) = parts_of(encoded((b'name="file"; ' + parameters, b"x")))
    assert isinstance(part, Part)
    assert part.name == "file"
    return part.filename


def test_parts_come_in_order_with_their_content() -> None:
    body = encoded((b'name="a"', b"one"), (b'name="file"; filename="f"', b"two\r\n\r\nlines"))
    assert parts_of(body) == [
        Part("a", None),
        b"one",
        PartEnd(),
        Part("file", "f"),
        b"two\r\n\r\nlines",
        PartEnd(),
    ]


def test_empty_content_is_a_part_without_data() -> None:
    assert parts_of(encoded((b'name="a"', b""))) == [Part("a", None), PartEnd()]


def test_part_without_headers_has_no_name() -> None:
    assert parts_of(b"--" + BOUNDARY + b"\r\n\r\nx" + DELIMITER + b"--") == [
        Part(None, None),
        b"x",
        PartEnd(),
    ]


def test_preamble_and_epilogue_are_ignored() -> None:
    body = b"preamble\r\n" + encoded((b'name="a"', b"x")) + b"epilogue" + DELIMITER + b"\r\n\r\n"
    assert parts_of(body) == [Part("a", None), b"x", PartEnd()]


def test_body_may_have_no_parts() -> None:
    assert decoded(b"--" + BOUNDARY + b"--", 1) == ([], True)


def test_padding_after_a_delimiter_is_no_content() -> None:
    body = encoded((b'name="a"', b"x")).replace(BOUNDARY + b"\r\n", BOUNDARY + b" \t \r\n")
    assert parts_of(body) == [Part("a", None), b"x", PartEnd()]


@pytest.mark.parametrize(
    "content",
    [
        DELIMITER + b"-",
        DELIMITER + b"x",
        DELIMITER + b"more\r\n",
        DELIMITER + b" " * (MAX_PADDING_BYTES + 1) + b"\r\n",
        DELIMITER[:-1],
        b"\r\n--",
        b"\r",
        b"\r\r\n",
        b"--" + BOUNDARY + b"--",
    ],
)
def test_what_only_looks_like_a_delimiter_is_content(content: bytes) -> None:
    body = encoded((b'name="a"', b"before" + content + b"after"))
    assert parts_of(body) == [Part("a", None), b"before" + content + b"after", PartEnd()]


@pytest.mark.parametrize("cut", [1, 3, 5, 12, 40])
def test_body_that_breaks_off_is_not_complete(cut: int) -> None:
    body = encoded((b'name="a"', b"x" * 20), end=b"--")
    assert decoded(body, 5)[1]
    assert not decoded(body[:-cut], 5)[1]


def test_endless_headers_are_refused() -> None:
    line = b"X: " + b"x" * 93 + b"\r\n"
    for ending in (b"", b"\r\n"):
        body = b"--" + BOUNDARY + b"\r\n" + line * (MAX_HEADER_BYTES // len(line) + 1) + ending
        for piece_bytes in (100, len(body)):
            with pytest.raises(InvalidArgument, match="headers"):
                decoded(body, piece_bytes)


def test_content_is_handed_out_as_it_comes() -> None:
    decoder = MultipartDecoder(BOUNDARY)
    decoder.feed(encoded((b'name="a"', b""), end=b"")[: -len(DELIMITER)])
    for chunk in (b"x" * 1000, b"\r\n" * 1000, b"y" * 10):
        handed_out = sum(len(event) for event in decoder.feed(chunk) if isinstance(event, bytes))
        assert handed_out >= len(chunk) - len(DELIMITER)


@given(st.lists(st.binary(max_size=60), max_size=3), st.integers(1, 40))
def test_any_content_survives_any_cutting(contents: list[bytes], piece_bytes: int) -> None:
    events, is_complete = decoded(
        encoded(*((b'name="a"', content) for content in contents)), piece_bytes
    )
    assert is_complete
    assert b"".join(event for event in events if isinstance(event, bytes)) == b"".join(contents)
    assert sum(isinstance(event, PartEnd) for event in events) == len(contents)


@given(
    st.lists(
        st.sampled_from([b"\r", b"\n", b"-", b"--", BOUNDARY, DELIMITER, b" ", b"a"]), max_size=12
    ),
    st.integers(1, 9),
)
def test_content_made_of_delimiter_shards_reads_the_same_however_it_is_cut(
    shards: list[bytes], piece_bytes: int
) -> None:
    body = encoded((b'name="a"', b"".join(shards)))
    assert decoded(body, piece_bytes) == decoded(body, len(body))


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_decoded_or_refused(body: bytes, piece_bytes: int) -> None:
    for prefix in (
        b"",
        b"--" + BOUNDARY + b"\r\n",
        b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; ",
    ):
        with contextlib.suppress(InvalidArgument):
            decoded(prefix + body, piece_bytes)


@pytest.mark.parametrize(
    ("parameters", "filename"),
    [
        (b'filename="a.txt"', "a.txt"),
        (b"filename=a.txt", "a.txt"),
        (b'filename=""', ""),
        (b'filename="a;b=c.txt"', "a;b=c.txt"),
        (b'FileName="a.txt"', "a.txt"),
        (b'filename="dir/sub/a.txt"', "dir/sub/a.txt"),
        ('filename="日本.txt"'.encode(), "日本.txt"),
        (b'filename="\xff\xfe.bin"', "\udcff\udcfe.bin"),
        # requests, httpx and browsers escape the quote, CR and LF, and nothing else.
        (b'filename="say %22hi%22%0D%0A.txt"', 'say "hi"\r\n.txt'),
        (b'filename="100%25 %41.txt"', "100%25 %41.txt"),
        # Go and old curl.
        (rb'filename="say \"hi\".txt"', 'say "hi".txt'),
        (rb'filename="back\\slash.txt"', "back\\slash.txt"),
        (rb'filename="back\slash.txt"', "back\\slash.txt"),
        (rb'filename="ends in \"', "ends in \\"),
        # RFC 8187. urllib3 before 2.0 sends this form for names beyond ASCII.
        (b"filename*=UTF-8''%e2%82%ac%20rates", "€ rates"),
        (b"filename*=utf-8'en'100%25.txt", "100%.txt"),
        (b"filename*=iso-8859-1''%a3", "£"),
        (b"filename*=UTF-8''%ff", "\udcff"),
        (b"filename=\"plain\"; filename*=UTF-8''extended", "extended"),
        (b'filename="first"; filename="second"', "first"),
        (b"filename*=UTF-8''first; filename*=UTF-8''second", "first"),
        (b'other="x"', None),
    ],
)
def test_filename_is_what_the_client_meant(parameters: bytes, filename: str | None) -> None:
    assert filename_of(parameters) == filename


@pytest.mark.parametrize("value", [b"x", b"nonsense''x", b"''x", b"utf-16''%ff"])
def test_extended_filename_that_breaks_its_rule_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match="filename"):
        filename_of(b"filename*=" + value)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; Boundary="a b;c"', b"a b;c"),
        ("multipart/mixed; boundary=abc", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_boundary_is_read_from_the_content_type(content_type: str, expected: bytes | None) -> None:
    assert boundary(content_type) == expected


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary=""'],
)
def test_missing_boundary_is_the_callers_fault(content_type: str) -> None:
    with pytest.raises(InvalidArgument, match="boundary"):
        boundary(content_type)


def test_text_that_looks_like_the_delimiter_is_content() -> None:
    lookalikes = (DELIMITER + b"A") * 500
    assert parts_of(encoded((b'name="a"', lookalikes))) == [Part("a", None), lookalikes, PartEnd()]


def test_a_chunk_full_of_near_delimiters_is_decoded_in_pieces_and_others_whole() -> None:
    decoder = MultipartDecoder(BOUNDARY)
    decoder.feed(b"--" + BOUNDARY + b"\r\n\r\n")
    plain = bytes(PATTERN_BYTES * 4) + DELIMITER + b"A"
    assert decoder.feed(plain) == [plain]
    assert not decoder.is_behind
    many = (DELIMITER + b"A") * (PATTERN_BYTES // 2)
    first = decoder.feed(many)
    assert decoder.is_behind
    pieces = [*first, *fed(decoder, b"")]
    assert max(map(len, pieces)) <= PATTERN_BYTES + len(DELIMITER + b"A")
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == many


@pytest.mark.parametrize("distance", [-80, -70, -64, -20, -11, -2, -1, 0, 1, 20])
@pytest.mark.parametrize("padding", [0, 1, MAX_PADDING_BYTES])
def test_delimiter_at_the_end_of_a_piece_is_found(distance: int, padding: int) -> None:
    lookalike = DELIMITER + b"A"
    content = lookalike.ljust(PATTERN_BYTES + MAX_PADDING_BYTES + len(DELIMITER) + distance, b"x")
    body = encoded((b'name="a"', content + DELIMITER + b" " * padding + b"\r\n\r\nmore"))
    events, is_complete = decoded(body + bytes(PATTERN_BYTES), 1 << 20)
    assert events == [
        Part("a", None), content, PartEnd(), Part(None, None), b"more", PartEnd()
    ]  # fmt: skip
    assert is_complete


def test_a_body_has_at_most_a_thousand_parts() -> None:
    part = (b'name="a"', b"")
    events, _ = decoded(encoded(*[part] * MAX_PARTS), 1 << 20)
    assert events == [Part("a", None), PartEnd()] * MAX_PARTS
    with pytest.raises(InvalidArgument, match="1000 parts"):
        decoded(encoded(*[part] * (MAX_PARTS + 1)), 1 << 20)
