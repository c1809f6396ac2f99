"""multipart/form-data, decoded from chunks of any size as they arrive (RFC 2046 §5.1, RFC 7578).
Pure: no I/O.

``feed`` takes bytes and returns events: a Part, pieces of its content, PartEnd. A content is never
collected here, so memory is bounded by one chunk plus one delimiter or one block of headers, and
nothing is spooled to a file.

    PREAMBLE --delimiter--> HEADERS --blank line--> CONTENT --delimiter--> HEADERS ...
        a delimiter with "--" behind it, in PREAMBLE or CONTENT --> EPILOGUE (ignored)

Why not aiohttp's BodyPartReader: not for speed (1 GiB costs the server 1.0 s of CPU with it, 0.95 s
with this one), but it takes at most 8,190 bytes of a header, too little for a percent-encoded path,
reads from a live connection only, so that it cannot be fed by hand cut after cut, and hands out
names already decoded. python-multipart is as fast (it was measured too) and would be one more
dependency for what is a hundred lines here.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from urllib.parse import unquote_to_bytes

import msgspec

from execd.errors import InvalidArgument

# A part has a Content-Disposition and two or three short headers more; a name may be a whole path,
# percent-encoded.
MAX_HEADER_BYTES = 32 * 1024
# RFC 2046 lets transports pad a delimiter line with white space. A longer run of it is content.
MAX_PADDING_BYTES = 64
# As many as Starlette takes files. Each part costs more than its bytes.
MAX_PARTS = 1000
# A chunk in which the delimiter's text occurs more often is decoded in pieces, so that other
# connections get their turns in between.
FEW_DELIMITERS, PIECE_BYTES = 64, 64 * 1024
# What makes the delimiter's text a delimiter: the closing dashes, or padding up to the end of the
# line.
_DELIMITER_END = rb"(?:--|[ \t]{0,%d}(?=\r\n))" % MAX_PADDING_BYTES
# All that is there, when it is too little to tell.
_DELIMITER_END_SO_FAR = re.compile(rb"(?:-|[ \t]{0,%d}\r?)\Z" % MAX_PADDING_BYTES)


class Part(msgspec.Struct, frozen=True):
    """A part begins. Both names come from its Content-Disposition; undecodable bytes as surrogate
    escapes."""

    name: str | None
    filename: str | None


class PartEnd(msgspec.Struct, frozen=True):
    """The part that began last is complete."""


Event = Part | bytes | PartEnd


class _MultipartState(Enum):
    PREAMBLE = auto()
    HEADERS = auto()
    CONTENT = auto()
    EPILOGUE = auto()


class MultipartDecoder:
    """Chunks in, events out. Raises InvalidArgument when the body is malformed; the decoder is of
    no use after that."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # One search in C. Text that looks like the delimiter, and is none, may fill the body.
        self._find_delimiter = re.compile(re.escape(self._delimiter) + _DELIMITER_END).search
        self._n_parts = 0
        self._state = _MultipartState.PREAMBLE
        self._buffer = b"\r\n"  # the first delimiter has no line end before it: lend it one

    @property
    def is_complete(self) -> bool:
        """Whether the closing delimiter was seen."""
        return self._state is _MultipartState.EPILOGUE

    def pieces(self, chunk: bytes) -> list[bytes]:
        """The chunk as ``feed`` is to take it. A piece costs a millisecond at most."""
        if chunk.count(self._delimiter) <= FEW_DELIMITERS:
            return [chunk]
        return [chunk[at : at + PIECE_BYTES] for at in range(0, len(chunk), PIECE_BYTES)]

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        self._buffer = self._buffer + chunk if self._buffer else chunk
        at, is_more = 0, True
        while is_more:
            if self._state is _MultipartState.HEADERS:
                at, is_more = self._take_headers(at, events)
            else:
                at, is_more = self._take_content(at, events)
        # Once for all parts of the chunk: a copy of the rest for each part would take quadratic
        # time.
        self._buffer = self._buffer[at:]
        return events

    def _take_headers(self, at: int, events: list[Event]) -> tuple[int, bool]:
        """The buffer begins, at ``at``, with the line end of the delimiter, so that a part without
        headers is no special case. Returns where the rest begins, and whether to go on."""
        end = self._buffer.find(b"\r\n\r\n", at)
        if (end if end >= 0 else len(self._buffer)) - at > MAX_HEADER_BYTES:
            raise InvalidArgument(
                f"a part of the multipart body has over {MAX_HEADER_BYTES} bytes of headers"
            )
        if end < 0:
            return at, False
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise InvalidArgument(f"the multipart body has over {MAX_PARTS} parts")
        events.append(_part(self._buffer[at:end]))
        self._state = _MultipartState.CONTENT
        return end + 4, True

    def _take_content(self, at: int, events: list[Event]) -> tuple[int, bool]:
        """Content, or the preamble, up to the next delimiter. Returns as ``_take_headers`` does."""
        buffer = self._buffer
        if self._state is _MultipartState.EPILOGUE:
            return len(buffer), False
        found = self._find_delimiter(buffer, at)
        if found is None:
            start = self._undecided(at)
            self._emit(buffer[at:start], events)
            return start, False
        self._emit(buffer[at : found.start()], events)
        if self._state is _MultipartState.CONTENT:
            events.append(PartEnd())
        is_last = found[0].endswith(b"--") and len(found[0]) == len(self._delimiter) + 2
        self._state = _MultipartState.EPILOGUE if is_last else _MultipartState.HEADERS
        return found.end(), True

    def _undecided(self, at: int) -> int:
        """Where the buffer ends in something that the next chunk may complete to a delimiter; else
        its length."""
        buffer, delimiter = self._buffer, self._delimiter
        longest = len(delimiter) + MAX_PADDING_BYTES + 1
        start = buffer.find(b"\r", max(at, len(buffer) - longest))
        while start >= 0:
            rest = buffer[start:]
            if delimiter.startswith(rest) or (
                rest.startswith(delimiter) and _DELIMITER_END_SO_FAR.match(rest, len(delimiter))
            ):
                return start
            start = buffer.find(b"\r", start + 1)
        return len(buffer)

    def _emit(self, data: bytes, events: list[Event]) -> None:
        if data and self._state is _MultipartState.CONTENT:
            events.append(data)


def boundary(content_type: str) -> bytes | None:
    """The boundary that a multipart/form-data Content-Type names; ``None`` for every other type.

    Raises InvalidArgument when it names none.
    """
    value, parameters = _parameters(content_type.encode("utf-8", "surrogateescape"))
    if value != b"multipart/form-data":
        return None
    if not parameters.get(b"boundary"):
        raise InvalidArgument("Missing boundary in multipart.")
    return parameters[b"boundary"]


def _part(headers: bytes) -> Part:
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            _, parameters = _parameters(value)
            return Part(_text(parameters.get(b"name")), _filename(parameters))
    return Part(None, None)


# One ``; name=value``. The value is a quoted string with backslash escapes or goes on to the next
# semicolon; the latter also takes a quoted string that ends in a lone backslash, which clients that
# escape the HTML way do send.
_PARAMETER = re.compile(rb';\s*([^\s=;]+)\s*=\s*("(?:\\.|[^"\\])*"(?=\s*(?:;|$))|[^;]*)', re.DOTALL)


def _parameters(header: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    value, semicolon, rest = header.partition(b";")
    found: dict[bytes, bytes] = {}
    for match in _PARAMETER.finditer(semicolon + rest):
        key, text = match[1].lower(), match[2].strip()
        if text.startswith(b'"'):
            # Go and old curl escape a quote and a backslash with a backslash. Any other backslash
            # stands for itself: that is how browsers and requests send it, and how the
            # python-runtime reads it.
            text = re.sub(rb'\\(["\\])', rb"\1", text[1:].removesuffix(b'"'))
        found.setdefault(key, text)
    return value.strip().lower(), found


def _filename(parameters: dict[bytes, bytes]) -> str | None:
    extended = parameters.get(b"filename*")
    if extended is not None:
        return _extended_value(extended)
    plain = parameters.get(b"filename")
    if plain is None:
        return None
    # HTML ("multipart form data", step "escape") turns exactly these three into percent escapes and
    # leaves "%" alone.
    for escaped, raw in ((b"%22", b'"'), (b"%0D", b"\r"), (b"%0A", b"\n")):
        plain = plain.replace(escaped, raw)
    return _text(plain)


def _extended_value(value: bytes) -> str:
    """RFC 8187: ``charset'language'percent-encoded``."""
    charset, _, rest = value.partition(b"'")
    _, quote, encoded = rest.partition(b"'")
    raw = unquote_to_bytes(encoded)
    try:
        if not quote:
            raise LookupError
        if charset.lower() in (b"utf-8", b"us-ascii"):
            return raw.decode("utf-8", "surrogateescape")
        return raw.decode(charset.decode("ascii"))
    except (LookupError, ValueError):
        raise InvalidArgument("filename* of the part must be UTF-8''… as RFC 8187 has it") from None


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "surrogateescape")
