"""Bytes that are not HTTP: the rule that they break, and the remedy. Pure.

aiohttp's parser tells the broken rule only in the class and the text of its error. The text goes on
with bytes of the request, which may be secret: so each rule is named here in words of its own, and
nothing of the request is shown but the name of a header.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aiohttp import http_exceptions

from execd.errors import HeadersTooLarge, InvalidArgument

if TYPE_CHECKING:
    from execd.errors import ExecdError

MAX_HEADERS = 128
"""aiohttp's default, which execd keeps. The same of ``MAX_HEADER_BYTES``."""
MAX_HEADER_BYTES = 8190

# A name of a header in a message of the parser, with or without quotes.
_DUPLICATE = re.compile(r"Duplicate '?(?P<name>[A-Za-z-]+)'?")

# Text of the parser, and the rule. The first text that is found counts.
_RULES = (
    (
        "Received HTTPS",
        "this port speaks HTTP without TLS: use an address that begins with http://",
    ),
    ("PRI/Upgrade", "this port speaks HTTP/1.1, and not HTTP/2 with prior knowledge"),
    (
        "Invalid method",
        "request line: begins with an unknown method; methods are upper case, for example GET, "
        "HEAD, POST, PUT, DELETE",
    ),
    ("Missing 'Host'", "Host: required in HTTP/1.1, once"),
    # "Transfer-Encoding can't be present with Content-Length", or the other way round.
    (
        "can't be present with",
        "Transfer-Encoding: does not go with Content-Length; send one of the two",
    ),
    ("Content-Length", "Content-Length: must be a single decimal number, at least 0"),
    (
        "`Transfer-Encoding`",
        "Transfer-Encoding: must end in chunked, the only transfer coding of this server",
    ),
    (
        "Invalid header token",
        "headers: a line is not of the form 'Name: value', or its name has a forbidden character",
    ),
    (
        "Invalid header value",
        "headers: a value has a control character; only visible ASCII, UTF-8, blanks and tabs may "
        "be sent",
    ),
    (
        "whitespace",
        "headers: a line begins with a blank; a header is one line, without a continuation",
    ),
    (
        "chunk",
        "body: not chunked; a chunk is its size in hexadecimal digits, CR LF, its bytes, CR LF",
    ),
    ("CRLF", "each line of the head must end in CR LF, not in LF alone"),
)


def explain(error: BaseException | None) -> ExecdError:
    """Return the error that the peer gets for an error of aiohttp's parser."""
    text = str(getattr(error, "message", ""))
    if isinstance(error, http_exceptions.LineTooLong):
        return _too_long(text)
    if isinstance(error, http_exceptions.InvalidURLError):
        return InvalidArgument(
            "request line: the target is not a URL; characters other than visible ASCII are "
            "percent-encoded"
        )
    if "Too many headers" in text:
        return HeadersTooLarge(f"headers: more than {MAX_HEADERS}; send fewer")
    duplicate = _DUPLICATE.search(text)
    if duplicate is not None:
        name = duplicate["name"]
        return InvalidArgument(f"{name}: given more than once; send the header once", field=name)
    for part, rule in _RULES:
        if part in text:
            return InvalidArgument(rule)
    if isinstance(error, http_exceptions.BadStatusLine):
        return InvalidArgument(
            "request line: must be METHOD TARGET HTTP/1.1; a blank in the target is written %20"
        )
    return InvalidArgument("the request is not well-formed HTTP/1.1 (RFC 9112)")


def _too_long(text: str) -> ExecdError:
    match = re.search(r"more than (\d+) bytes", text)
    limit_bytes = MAX_HEADER_BYTES if match is None else int(match[1])
    if limit_bytes == MAX_HEADER_BYTES:
        return HeadersTooLarge(
            f"headers: name and value of each have at most {limit_bytes} bytes; send long values "
            "in the body"
        )
    return HeadersTooLarge(
        f"request line: the target has at most {limit_bytes} bytes; send long values in the body"
    )
