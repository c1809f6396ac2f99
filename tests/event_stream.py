"""Reading an event stream as the HTML standard says, from bytes in any pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    id: str
    kind: str
    data: str

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.data)


@dataclass
class EventStreamParser:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation."""

    comments: int = 0
    last_event_id: str = ""
    _rest: bytes = b""
    _kind: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Event]:
        """The newly complete events. A line may end with CR, LF or both; a CR at the very end may
        be half of a CR LF."""
        events = []
        self._rest += data
        while True:
            ends = [at for at in (self._rest.find(b"\n"), self._rest.find(b"\r")) if at >= 0]
            if not ends or (self._rest[min(ends)] == 13 and min(ends) + 1 == len(self._rest)):
                return events
            line, rest = self._rest[: min(ends)], self._rest[min(ends) :]
            self._rest = rest[2:] if rest.startswith(b"\r\n") else rest[1:]
            event = self._line(line.decode())
            if event is not None:
                events.append(event)

    def _line(self, line: str) -> Event | None:
        if not line:
            kind, data = self._kind or "message", self._data
            self._kind, self._data = "", []
            return Event(self.last_event_id, kind, "\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                self.comments += 1
            case "id" if "\0" not in value:
                self.last_event_id = value
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
        return None


def text_of(events: list[Event], kind: str = "stdout") -> str:
    return "".join(event.fields["text"] for event in events if event.kind == kind)
