from __future__ import annotations

import contextlib
import os
import resource
import signal
import zlib
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.json import encode as encode_json

from execd.engine.store import journal
from execd.engine.store.journal import (
    Begin,
    End,
    Forget,
    Journal,
    JournaledDisplay,
    JournaledExecution,
    JournalState,
    MemoryRecovered,
    MemoryShortage,
    Record,
    decode,
    encode,
)
from execd.model import ExitReason, Result
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULT = Result(
    exit_code=3, term_signal=None, exit_reason=ExitReason.EXITED, message="\u00e9\n", survivors=(7,)
)


def begin(name: str = "a", key: str | None = "k") -> Begin:
    return Begin(id=name, key=key, payload="p", display="echo \u2603\n", created_at=1.5, cwd="/app")


def end(name: str = "a") -> End:
    return End(id=name, result=RESULT, ended_at=2.5, total_bytes={"stdout": 3})


SHORTAGE = MemoryShortage(noted_at=1.5, left_bytes=-1, size_bytes=1 << 31)
RECORDS: list[Record] = [begin("a"), end("a"), begin("b", None), Forget("a"), begin("c"), end("c")]
RECORD = st.sampled_from("abcd").flatmap(
    lambda name: st.sampled_from(
        [begin(name), end(name), Forget(name), SHORTAGE, MemoryRecovered()]
    )
)


@given(st.lists(RECORD, max_size=20))
def test_records_come_back_as_they_were_written(records: list[Record]) -> None:
    data = b"".join(map(encode, records))
    assert decode(data) == (records, [], len(data))


def test_a_journal_cut_at_any_byte_gives_the_whole_records_before_it() -> None:
    lines = [encode(record) for record in RECORDS]
    data = b"".join(lines)
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for length in range(len(data) + 1):
        whole = max(count for count, position in enumerate(ends) if position <= length)
        assert decode(data[:length]) == (RECORDS[:whole], [], ends[whole])


LINES = st.lists(RECORD, min_size=1, max_size=12).map(lambda records: list(map(encode, records)))
HARM = st.tuples(
    st.floats(0, 1),
    st.integers(0, 200),
    st.binary(max_size=40)
    | st.sampled_from([b"", b"\n", b"\0" * 64, b"00000000 ", *map(encode, RECORDS)]),
)
"""Where bytes are replaced, how many, and by which bytes. A piece of another record may come in."""


@given(LINES, st.lists(HARM, min_size=1, max_size=3))
def test_damage_in_the_journal_costs_no_record_that_is_untouched(
    lines: list[bytes], harms: list[tuple[float, int, bytes]]
) -> None:
    ends = list(accumulate(map(len, lines), initial=0))
    data = b"".join(lines)
    limit = total = len(data)
    untouched = set(range(len(lines)))
    for place, size_bytes, put in sorted(harms, reverse=True):
        start = int(place * total)
        end = min(start + size_bytes, limit)
        limit = start
        data = data[:start] + put + data[end:]
        untouched -= {
            number
            for number in range(len(lines))
            if ends[number] < max(end, start + 1) and start < ends[number + 1]
        }
    found = decode(data)
    left = iter(found.records)
    for number in sorted(untouched):
        record = decode(lines[number]).records[0]
        assert record in left, (number, found)
    kept = sum(map(len, found.damaged))
    assert kept <= found.end <= len(data)
    assert b"\n" not in data[found.end :], "only a torn last line is cut"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_kept_or_the_torn_last_line(data: bytes) -> None:
    found = decode(data)
    assert found.records == []
    assert b"".join(found.damaged) == data[: found.end]
    assert b"\n" not in data[found.end :]


BUNDLES = {
    "a long integer": b"1" + b"0" * 5000,
    "a number beyond a double": b"1e999",
    "depth": b"[" * 5000 + b"]" * 5000,
    "line ends between tokens": b'[\n1,\r\n{"a"\n:2}]',
    "a record in a text": encode_json(encode(Forget("a")).decode()),
}


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES)
def test_a_bundle_that_a_codec_refuses_costs_no_record(bundle: bytes) -> None:
    display = JournaledDisplay("display", {"data": Raw(bundle)})
    shown = msgspec.structs.replace(end("a"), rich=[display])
    data = b"".join(map(encode, [begin("a"), shown, begin("b")]))
    found = decode(data)
    assert (found.damaged, found.end) == ([], len(data))
    assert [found.records[0], found.records[2]] == [begin("a"), begin("b")]
    assert isinstance(found.records[1], End)
    raw = bytes(found.records[1].rich[0].fields["data"])
    assert raw == bundle.replace(b"\n", b" ")


def test_an_end_without_its_begin_is_known(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ended = msgspec.structs.replace(end("a"), key="k", payload="p")
    path.write_bytes(b"x" + encode(begin("a"))[20:] + encode(ended))
    for _ in range(2):
        opened = Journal(str(path))
        try:
            [found] = opened.load().values()
        finally:
            opened.close()
        assert (found.begin.id, found.begin.key, found.begin.payload) == ("a", "k", "p")
        assert found.end == ended


def test_what_began_and_did_not_end_is_known_as_that() -> None:
    found = JournalState(RECORDS).executions
    assert found == {
        "b": JournaledExecution(begin("b", None)),
        "c": JournaledExecution(begin("c"), end("c")),
    }


@examples(0.3)
@given(records=st.lists(RECORD, max_size=12))
def test_a_reopened_journal_knows_what_the_closed_one_knew(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    path = str(tmp_path_factory.mktemp("journal") / "journal")
    first = Journal(path)
    assert first.load() == {}
    for record in records:
        first.append(record)
    first.close()
    second = Journal(path)
    try:
        assert second.load() == JournalState(records).executions
        assert second.shortage == JournalState(records).shortage
    finally:
        second.close()


def test_a_torn_tail_is_cut_off_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(encode(begin("a")) + encode(end("a"))[:-5])
    opened = Journal(str(path))
    try:
        assert opened.load() == {"a": JournaledExecution(begin("a"))}
        opened.append(end("a"))
    finally:
        opened.close()
    assert decode(path.read_bytes()) == ([begin("a"), end("a")], [], path.stat().st_size)


def test_damaged_lines_are_kept_beside_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    damaged = bytearray(encode(end("a")))
    damaged[-2] ^= 1
    of_another_version = b'{"type":"unheard-of"}'
    other = b"%08x %08x %b\n" % (
        len(of_another_version),
        zlib.crc32(of_another_version),
        of_another_version,
    )
    path.write_bytes(encode(begin("a")) + damaged + encode(begin("b")) + other + b"torn")
    opened = Journal(str(path))
    try:
        assert list(opened.load()) == ["a", "b"]
        assert opened.damaged_bytes == len(damaged) + len(other)
    finally:
        opened.close()
    assert (tmp_path / "journal.damaged").read_bytes() == damaged + other
    assert decode(path.read_bytes()) == ([begin("a"), begin("b")], [], path.stat().st_size)


def test_a_journal_of_what_is_forgotten_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COMPACT_AT_BYTES", 4096)
    path = tmp_path / "journal"
    opened = Journal(str(path))
    try:
        opened.load()
        opened.append(begin("kept"))
        for number in range(500):
            for record in (begin(f"n{number}"), end(f"n{number}"), Forget(f"n{number}")):
                opened.append(record)
        assert path.stat().st_size < 3 * 4096
    finally:
        opened.close()
    again = Journal(str(path))
    try:
        assert again.load() == {"kept": JournaledExecution(begin("kept"))}
    finally:
        again.close()


def test_a_journal_of_many_live_records_rarely_looks_at_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look encodes all live records: at each append, looks would take minutes."""
    monkeypatch.setattr(journal, "COMPACT_AT_BYTES", 4096)
    looks = []
    lines = JournalState.lines
    monkeypatch.setattr(JournalState, "lines", lambda state: looks.append(1) or lines(state))
    opened = Journal(str(tmp_path / "journal"))
    try:
        opened.load()
        for number in range(3000):
            opened.append(begin(f"n{number}"))
    finally:
        opened.close()
    assert len(looks) < 20
    assert os.listdir(tmp_path) == ["journal"]


@contextlib.contextmanager
def a_file_size_limit(size_bytes: int) -> Iterator[None]:
    """A write across the limit is a short write, as on a full disk. A write beyond fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)


def test_what_could_not_be_written_is_written_by_the_next_repair(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    opened = Journal(str(path))
    try:
        opened.load()
        opened.append(begin("a"))
        with a_file_size_limit(path.stat().st_size + 10):
            for record in (end("a"), begin("b")):
                with pytest.raises(OSError, match=r"File too large|No space left"):
                    opened.append(record)
            with pytest.raises(OSError, match="File too large"):
                opened.repair()
        assert os.listdir(tmp_path) == ["journal"]
        assert decode(path.read_bytes())[0] == [begin("a")]
        opened.repair()
        assert decode(path.read_bytes())[0] == [begin("a"), end("a"), begin("b")]
    finally:
        opened.close()


def test_a_journal_that_was_removed_is_made_again_with_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    opened = Journal(str(path))
    try:
        opened.load()
        opened.append(begin("a"))
        assert opened.is_in_place
        path.unlink()
        assert not opened.is_in_place
        opened.append(end("a"))
        opened.repair()
        assert opened.is_in_place
    finally:
        opened.close()
    assert decode(path.read_bytes())[0] == [begin("a"), end("a")]


def test_damaged_lines_stay_where_they_are_while_there_is_no_room(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    damaged = encode(end("a")).replace(b"end", b"and")
    path.write_bytes(encode(begin("a")) + damaged + encode(begin("b")) + b"torn")
    (tmp_path / "journal.damaged").mkdir()
    for is_reopened in (False, True):
        opened = Journal(str(path))
        try:
            known = JournaledExecution(begin("a"), end("a") if is_reopened else None)
            assert opened.load() == {"a": known, "b": JournaledExecution(begin("b"))}
            if not is_reopened:
                opened.append(end("a"))
        finally:
            opened.close()
    records = [begin("a"), begin("b"), end("a")]
    assert decode(path.read_bytes()) == (records, [damaged], path.stat().st_size)


def test_a_journal_that_cannot_be_compacted_goes_on_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(encode(begin("a")) + encode(Forget("b")) + b"torn")
    (tmp_path / "journal.new").mkdir()
    opened = Journal(str(path))
    try:
        assert opened.load() == {"a": JournaledExecution(begin("a"))}
        assert decode(path.read_bytes()) == ([begin("a"), Forget("b")], [], path.stat().st_size)
        opened.append(end("a"))
    finally:
        opened.close()
    assert decode(path.read_bytes()) == (
        [begin("a"), Forget("b"), end("a")],
        [],
        path.stat().st_size,
    )


def test_the_remainder_of_a_failed_write_is_not_in_front_of_the_next_record(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    opened = Journal(str(path))
    try:
        opened.load()
        opened.append(begin("a"))
        (tmp_path / "journal.new").mkdir()  # no new file can be written
        with a_file_size_limit(path.stat().st_size + 10), pytest.raises(OSError, match="No space"):
            opened.append(end("a"))
        opened.append(begin("b"))
    finally:
        opened.close()
    assert decode(path.read_bytes())[0] == [begin("a"), begin("b")]
