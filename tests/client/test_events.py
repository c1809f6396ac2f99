"""A stream over several connections: each byte once, each event once, and holes are told."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from execd_client.events import Assembler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execd_client import Event


def output(offset: int, data: bytes) -> str:
    content = base64.b64encode(data).decode()
    fields = {"offset": offset, "size_bytes": len(data), "base64": content}
    return msgspec.json.encode(fields).decode()


def taken(assembler: Assembler, *said: tuple[str, str, str]) -> list[tuple[str, Any]]:
    found: list[Event] = []
    for event in said:
        found += assembler.take(*event)
    return [(event.kind, event.data or event.fields) for event in found]


def test_bytes_that_come_again_are_left_out() -> None:
    assembler = Assembler()
    first = taken(assembler, ("stdout", "1", output(0, b"abc")), ("stdout", "1", output(3, b"de")))
    again = taken(assembler, ("stdout", "2", output(3, b"defg")), ("stdout", "3", output(7, b"h")))
    assert [data for _, data in first + again] == [b"abc", b"de", b"fg", b"h"]
    assert assembler.last_sequence == 3


def test_streams_are_counted_apart() -> None:
    found = taken(
        Assembler(), ("stdout", "1", output(0, b"out")), ("stderr", "2", output(0, b"err"))
    )
    assert found == [("stdout", b"out"), ("stderr", b"err")]


def test_a_reader_that_goes_on_behind_an_event_is_told_of_no_hole() -> None:
    found = taken(
        Assembler(after=2),
        ("stdout", "3", output(4, b"two")),
        ("stdout", "4", output(9, b"x")),
        ("dropped", "5", '{"stream":"stderr","offset":6,"size_bytes":3}'),
        ("stderr", "6", output(9, b"err")),
    )
    assert found == [
        ("stdout", b"two"),
        ("dropped", {"stream": "stdout", "offset": 7, "size_bytes": 2}),
        ("stdout", b"x"),
        ("dropped", {"stream": "stderr", "offset": 6, "size_bytes": 3}),
        ("stderr", b"err"),
    ]


def test_a_hole_is_told_also_where_execd_does_not_tell_it() -> None:
    assembler = Assembler()
    told = '{"stream":"stdout","offset":2,"size_bytes":5}'
    found = taken(
        assembler,
        ("stdout", "1", output(0, b"ab")),
        ("dropped", "2", told),
        ("dropped", "2", told),
        ("stdout", "3", output(7, b"c")),
        ("stdout", "4", output(10, b"d")),
    )
    assert found == [
        ("stdout", b"ab"),
        ("dropped", {"stream": "stdout", "offset": 2, "size_bytes": 5}),
        ("stdout", b"c"),
        ("dropped", {"stream": "stdout", "offset": 8, "size_bytes": 2}),
        ("stdout", b"d"),
    ]


HOLE = '{"stream":"stdout","offset":6,"size_bytes":4}'
WIRE = [
    (1, [("started", "{}")]),
    (2, [("stdout", output(0, b"abcd")), ("stdout", output(4, b"ef"))]),
    (3, [("stderr", output(0, b"err"))]),
    (5, [("dropped", HOLE), ("stdout", output(10, b"k"))]),
    (6, [("stdout", output(14, b"o"))]),
    (7, [("exited", "{}")]),
]
"""Events with their pieces, as execd keeps them; of bytes 11 to 13 execd says nothing."""


def behind(number: int) -> Iterator[tuple[str, str, str]]:
    """What execd sends behind ``number``. Only the last piece of an event has its number."""
    before = number
    for own, pieces in WIRE:
        if own > number:
            for index, (kind, data) in enumerate(pieces, 1):
                yield kind, str(own if index == len(pieces) else before), data
            before = own


def received(events: list[Event]) -> dict[str, set[int]]:
    """The places of the bytes of a stream."""
    found: dict[str, set[int]] = {"stdout": set(), "stderr": set()}
    for event in events:
        if event.kind in found:
            begin = event.fields["offset"]
            found[event.kind] |= set(range(begin, begin + len(event.data)))
    return found


def test_a_reader_that_stops_at_any_event_and_goes_on_in_another_client_loses_nothing() -> None:
    def read(after: int) -> list[Event]:
        assembler = Assembler(after)
        return [event for said in behind(after) for event in assembler.take(*said)]

    whole = read(0)
    assert received(whole) == {"stdout": {*range(6), 10, 14}, "stderr": set(range(3))}
    for n_read in range(1, len(whole)):
        seen = whole[:n_read]
        both = seen + read(seen[-1].sequence)
        assert received(both) == received(whole), seen[-1]
        assert both[-1].kind == "exited"


def test_a_stream_that_begins_anew_says_so_and_tells_nothing_twice() -> None:
    assembler = Assembler()
    before = [("started", "1", "{}"), ("display", "2", "{}"), ("stdout", "3", output(0, b"ab"))]
    taken(assembler, *before)
    gone = assembler.restart("event 3 cannot be resumed at any more")
    assert (gone.kind, gone.sequence) == ("gone", 3)
    assert assembler.last_sequence == 0
    found = taken(assembler, *before, ("stdout", "4", output(0, b"abcd")), ("error", "5", "{}"))
    assert found == [("stdout", b"cd"), ("error", {})]


def test_a_number_that_an_older_execd_passes_on_is_read() -> None:
    """The newest execd sends no number beyond a double."""
    digits = "1" + "0" * 5000
    numbers = f'{{"application/json":[{digits},1e999,7]}}'
    shown = f'{{"data":{numbers},"metadata":{{}},"display_id":null}}'
    [event] = Assembler().take("display", "1", shown)
    assert event.bundle is not None
    assert event.bundle.data["application/json"] == [digits, float("inf"), 7]


def test_bytes_are_exact_and_text_is_replaced() -> None:
    (event,) = Assembler().take("stdout", "1", output(0, b"\xe4\xb8"))
    assert (event.data, event.text) == (b"\xe4\xb8", "\ufffd")


def test_exited_has_the_result_even_after_a_restart_of_the_daemon() -> None:
    assembler = Assembler()
    taken(assembler, ("started", "900", "{}"))
    (event,) = assembler.take("exited", "2", "{}")
    assert event.kind == "exited"
