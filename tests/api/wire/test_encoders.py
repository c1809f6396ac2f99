from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.encoders import (
    NewlineDelimitedJson,
    ServerSentEvents,
    WireEvent,
    choose_encoder,
    choose_stream_encoder,
)
from tests.event_stream import EventStreamParser

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        *("\n", "\r", "\r\n\r\n", "data: x\n\n", "id: 9\nevent: exited\n\n", "\0", ":", " "),
        # str.splitlines ends lines here as well.
        *("\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
names = st.text(max_size=8, alphabet="abcdefgh").filter(
    lambda name: name not in ("event", "sequence")
)
wire_events = st.builds(
    WireEvent,
    sequence=st.integers(1, 2**63 - 1),
    kind=st.sampled_from(["started", "stdout", "stderr", "dropped", "exited"]),
    fields=st.dictionaries(names, values, max_size=4),
)
streams = st.lists(wire_events | st.none(), max_size=8)  # None: a heartbeat


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(borders)]


@given(streams, st.lists(st.integers(0, 10**6), max_size=10))
def test_event_stream_reads_back_as_it_was_written_in_any_pieces(
    events: list[WireEvent | None], cuts: list[int]
) -> None:
    encoder = ServerSentEvents()
    data = b"".join(
        encoder.heartbeat if event is None else encoder.encode(event) for event in events
    )
    parser = EventStreamParser()
    found = [event for piece in pieces(data, cuts) for event in parser.feed(piece)]
    sent = [event for event in events if event is not None]
    assert [(int(event.id), event.kind, event.fields) for event in found] == [
        tuple(event) for event in sent
    ]
    assert parser.comments == events.count(None)


@given(st.lists(wire_events, max_size=8))
def test_readers_that_split_with_splitlines_see_whole_lines(events: list[WireEvent]) -> None:
    text = b"".join(NewlineDelimitedJson().encode(event) for event in events).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines == [
        {"event": event.kind, "sequence": event.sequence, **event.fields} for event in events
    ]
    text = b"".join(ServerSentEvents().encode(event) for event in events).decode()
    data = [line.removeprefix("data: ") for line in text.splitlines() if line[:5] == "data:"]
    assert [json.loads(line) for line in data] == [event.fields for event in events]
    assert len(text.splitlines()) == 4 * len(events)


def test_line_end_between_tokens_of_a_bundle_tears_no_event() -> None:
    bundle = msgspec.Raw(b'{"a":\r\n1}')
    encoded = ServerSentEvents().encode(WireEvent(1, "display", {"data": bundle}))
    assert encoded.splitlines()[2] == b'data: {"data":{"a":  1}}'


@given(wire_events)
def test_event_stream_is_cut_anywhere_and_says_nothing_false(event: WireEvent) -> None:
    data = ServerSentEvents().encode(event)
    for end in range(len(data)):
        assert EventStreamParser().feed(data[:end]) == []


@given(streams)
def test_ndjson_is_one_object_a_line(events: list[WireEvent | None]) -> None:
    encoder = NewlineDelimitedJson()
    data = b"".join(
        encoder.heartbeat if event is None else encoder.encode(event) for event in events
    )
    lines = data.split(b"\n")
    assert lines.pop() == b""
    sent = [
        None if event is None else {"event": event.kind, "sequence": event.sequence, **event.fields}
        for event in events
    ]
    assert [json.loads(line) if line else None for line in lines] == sent


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("text/event-stream", "text/event-stream"),
        ("Text/Event-Stream; charset=utf-8", "text/event-stream"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/json;q=0.4, application/x-ndjson;q=0.5", "application/x-ndjson"),
        ("application/json, application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson, text/event-stream;q=0.9", "application/x-ndjson"),
        ("text/*", "text/event-stream"),
        ("text/*;q=0.5, */*;q=0.1", "text/event-stream"),
        ("text/event-stream, */*", "text/event-stream"),
        ("application/x-ndjson, */*;q=0.1", "application/x-ndjson"),
        ("application/x-ndjson, text/event-stream", "text/event-stream"),
        ("application/x-ndjson, text/event-stream;q=0", "application/x-ndjson"),
        ("text/event-stream;q=0.001", "text/event-stream"),
        ("text/event-stream; charset=utf-8; q=1.0", "text/event-stream"),
    ],
)
def test_stream_is_what_accept_asks_for(accept: str, content_type: str) -> None:
    encoder = choose_encoder(accept)
    assert encoder is not None
    assert encoder.content_type == content_type


@pytest.mark.parametrize(
    "accept",
    [
        *("", "*/*", "application/json", "application/*", "text/event-streams"),
        "*/*;q=0.5, image/png",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8",
        "application/json, application/x-ndjson;q=0.5",
        "application/json, text/event-stream;q=0.999",
        "application/json;q=0.2, text/*;q=0.1",
        "application/*, text/event-stream;q=0.5",
        "text/event-stream;q=0, */*",
        "*/*;q=0",
        "text/event-stream;q=0, application/json",
        "text/event-stream ; charset=utf-8 ; Q=0.000",
        "application/x-ndjson;q=0.0,text/event-stream;q=0",
    ],
)
def test_plain_reply_is_what_other_callers_get(accept: str) -> None:
    assert choose_encoder(accept) is None


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        *(("", "text/event-stream"), ("*/*", "text/event-stream")),
        ("application/json", "text/event-stream"),
        ("application/json, application/x-ndjson;q=0.1", "application/x-ndjson"),
        ("application/*", "application/x-ndjson"),
        ("text/event-stream;q=0, */*", "application/x-ndjson"),
        ("text/event-stream;q=0", "text/event-stream"),
        ("application/x-ndjson;q=0", "text/event-stream"),
        ("application/*;q=0", "text/event-stream"),
        ("application/x-ndjson, text/event-stream", "text/event-stream"),
    ],
)
def test_a_route_that_always_streams_takes_the_better_form(accept: str, content_type: str) -> None:
    assert choose_stream_encoder(accept).content_type == content_type
