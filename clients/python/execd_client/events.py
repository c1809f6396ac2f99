"""Events of a stream, and the bookkeeping that makes a resumed stream exact. No I/O here."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from execd_client import models
from execd_client.results import Bundle, Result, decode_json, result_of

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUTS = ("stdout", "stderr")
BUNDLES = ("display", "result")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a command, a cell or a session.

    Example:
        for event in sandbox.stream("make"):
            if event.kind == "stdout":
                sys.stdout.buffer.write(event.data)

    ``kind`` is ``started``, ``stdout``, ``stderr``, ``dropped`` (bytes that execd no longer has),
    ``display``, ``result``, ``error``, ``clear_output``, ``input_request``, ``exited``; and
    ``gone``, after which a stream that execd cannot resume begins anew: displays in between may be
    missing, and output follows in full.
    """

    kind: str
    sequence: int = 0
    """The number of the event in its stream."""
    data: bytes = b""
    """The output of ``stdout`` and ``stderr``."""
    fields: dict[str, Any] = {}
    """All fields of the event, as execd sent them."""

    @property
    def text(self) -> str:
        """The output as UTF-8. A character whose bytes come in two events is replaced: join
        ``data`` to keep such characters."""
        return self.data.decode("utf-8", "replace")

    @property
    def bundle(self) -> Bundle | None:
        """What a ``display`` or ``result`` shows."""
        return msgspec.convert(self.fields, Bundle) if self.kind in BUNDLES else None

    @property
    def changes(self) -> list[models.FileChange]:
        """The changes that an event ``changes`` of ``files.watch`` tells."""
        return msgspec.convert(self.fields.get("changes", []), list[models.FileChange])

    @property
    def result(self) -> Result | None:
        """The result that ``exited`` brings."""
        return result_of(self.fields) if self.kind == "exited" else None


class Assembler:
    """Turns the events of one or several connections into each event once and each byte once.

    A reader that is cut off between two pieces of a long event gets bytes again; ``offset`` tells
    which. After an event that an earlier reader has seen (``after``), the first output of a stream
    tells where that reader was.

    A long event that is no output comes in parts, where the connections end too soon for the whole.
    """

    def __init__(self, after: int = 0) -> None:
        self.last_sequence = after
        """Where the next connection resumes; 0: at the beginning."""
        self._told = 0
        """The highest number of the events that are not output."""
        self._received: dict[str, int] = {} if after else dict.fromkeys(OUTPUTS, 0)
        self.has_begun = False
        self._part = bytearray()
        """The beginning of the next event."""

    @property
    def progress(self) -> tuple[int, int]:
        """Where the next connection resumes: the number of the last event, and the bytes of the
        next event."""
        return self.last_sequence, len(self._part)

    def restart(self, why: str) -> Event:
        """execd cannot resume at ``last_sequence``: begin anew. Returns the event that says so."""
        lost, self.last_sequence = self.last_sequence, 0
        self._part.clear()
        return Event(kind="gone", sequence=lost, fields={"message": why})

    def take(self, kind: str, number: str, data: str) -> Iterator[Event]:
        """The new part of an event, as events of the caller's."""
        self.has_begun = True
        before = self.last_sequence
        if number.isdecimal():
            self.last_sequence = int(number)
        fields = decode_json(data) if data else {}
        if kind == "part":
            del self._part[fields["offset"] :]
            self._part += base64.b64decode(fields["base64"])
            if len(self._part) < fields["size_bytes"]:
                return
            kind, fields = fields["of"], decode_json(bytes(self._part))
        self._part.clear()
        if kind in OUTPUTS:
            yield from self._output(kind, fields, before)
        elif kind == "dropped":
            yield from self._hole(fields["stream"], fields["offset"], fields["size_bytes"])
        elif self.last_sequence > self._told or kind == "exited":
            self._told = self.last_sequence
            yield Event(kind=kind, sequence=self.last_sequence, fields=fields)

    def _output(self, stream: str, fields: dict[str, Any], before: int) -> Iterator[Event]:
        offset, content = int(fields["offset"]), base64.b64decode(fields["base64"])
        received = self._received.setdefault(stream, offset)
        if offset > received:
            # Not this event's number: a reader that stops here goes on with the output.
            said = {"stream": stream, "offset": received, "size_bytes": offset - received}
            yield Event(kind="dropped", sequence=before, fields=said)
            received = offset
        new = content[received - offset :]
        if new:
            self._received[stream] = received + len(new)
            said = {"offset": received, "size_bytes": len(new)}
            yield Event(kind=stream, sequence=self.last_sequence, data=new, fields=said)

    def _hole(self, stream: str, offset: int, size_bytes: int) -> Iterator[Event]:
        start, end = self._received.setdefault(stream, offset), offset + size_bytes
        if end > start:
            self._received[stream] = end
            said = {"stream": stream, "offset": start, "size_bytes": end - start}
            yield Event(kind="dropped", sequence=self.last_sequence, fields=said)
