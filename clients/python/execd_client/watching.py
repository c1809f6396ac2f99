"""The plan that follows the changes of files."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from execd_client.address import with_query
from execd_client.calls import opened
from execd_client.effects import Close, Cut, Emit, NextEvent, Request
from execd_client.events import Event

if TYPE_CHECKING:
    from execd_client.calls import Patience
    from execd_client.effects import Plan


def follow_changes(
    path: str, recursive: bool, debounce_seconds: float | None, patience: Patience
) -> Plan[None]:
    """Emit ``watching``, ``changes``, ``overflow`` and ``gone``. After a cut execd sends
    ``overflow``, because changes may have been missed."""
    route = f"/v1/watch/{quote(path.strip('/'))}" if path.strip("/.") else "/v1/watch"
    url = with_query(route, {"recursive": recursive, "debounce_seconds": debounce_seconds})
    last = ""
    while True:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        stream = yield from opened(Request("GET", url, headers), patience, "text/event-stream")
        try:
            while (said := (yield NextEvent(stream))) is not None:
                patience.alive()
                kind, number, data = said
                last = number or last
                fields = msgspec.json.decode(data) if data else {}
                sequence = int(number) if number.isdecimal() else 0
                yield Emit(Event(kind=kind, sequence=sequence, fields=fields))
                if kind == "gone":
                    return
            raise Cut("the stream ended", was_sent=True)
        except Cut as cut:
            yield Close(stream)
            yield from patience.after_cut(cut)
