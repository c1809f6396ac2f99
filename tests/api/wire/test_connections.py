"""The table of connections, with numbers for connections and for times."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.wire.connections import ConnectionLimits, ConnectionPhase, Connections

KEEP_ALIVE_SECONDS = 100.0


def limits(max_open: int = 2, max_probing: int = 2) -> ConnectionLimits:
    return ConnectionLimits(
        max_open=max_open, max_probing=max_probing, open_files=1024, reserved_descriptors=128
    )


@pytest.fixture
def table() -> Connections[int]:
    return Connections(limits(), KEEP_ALIVE_SECONDS)


@pytest.mark.parametrize(
    ("open_files", "max_open", "max_probing", "reserved"),
    [
        (1 << 20, 4096, 32, 512),
        (65536, 4096, 32, 512),
        (1024, 256, 32, 128),
        (64, 16, 4, 8),
        (4, 1, 1, 0),
    ],
)
def test_limits_follow_the_descriptors(
    open_files: int, max_open: int, max_probing: int, reserved: int
) -> None:
    found = ConnectionLimits.for_open_files(open_files)
    assert (found.max_open, found.max_probing, found.reserved_descriptors) == (
        max_open,
        max_probing,
        reserved,
    )


def test_connections_never_take_the_last_descriptors() -> None:
    for open_files in range(64, 20000, 37):
        found = ConnectionLimits.for_open_files(open_files)
        assert found.max_open + found.max_probing < open_files - found.reserved_descriptors / 2


@pytest.mark.parametrize("n_ports", [1, 2, 3, 4, 6, 20])
def test_connections_of_all_ports_leave_the_reserve(n_ports: int) -> None:
    for open_files in range(1024, 20000, 37):
        found = ConnectionLimits.for_open_files(open_files, n_ports)
        assert found.max_open <= open_files // 4
        assert n_ports * found.max_open <= open_files * 3 / 4
        assert not found.are_scarce(n_ports * found.max_open)


def test_the_oldest_idle_connection_goes_for_a_new_one(table: Connections[int]) -> None:
    assert table.open(1, now=1) is None
    assert table.open(2, now=2) is None
    table.begin_request(1)
    table.end_request(1, now=3)
    assert table.open(3, now=4) == 2
    assert table.open(4, now=5) == 1
    assert [table.phase(number) for number in (1, 2, 3, 4)] == [
        None,
        None,
        ConnectionPhase.RECEIVING,
        ConnectionPhase.RECEIVING,
    ]


def test_a_connection_with_a_request_is_not_idle(table: Connections[int]) -> None:
    for number in (1, 2):
        table.open(number, now=number)
        table.begin_request(number)
    assert table.open(3, now=3) is None
    assert table.phase(3) is ConnectionPhase.PROBING
    assert table.take_expired(now=10**6) == [3]
    assert table.phase(1) is ConnectionPhase.BUSY


def test_a_probing_connection_never_has_a_request_taken(table: Connections[int]) -> None:
    for number in (1, 2, 3):
        table.open(number, now=number)
        table.begin_request(number)
    table.end_request(3, now=4)
    table.note_bytes(3, now=4)
    assert table.phase(3) is ConnectionPhase.PROBING


def test_probing_connections_are_bounded_too(table: Connections[int]) -> None:
    for number in (1, 2):
        table.open(number, now=number)
        table.begin_request(number)
    assert [table.open(number, now=number) for number in (3, 4, 5, 6)] == [None, None, 3, 4]
    assert len(table) == 4


def test_scarce_descriptors_count_as_a_full_table(table: Connections[int]) -> None:
    table.open(1, now=1, are_descriptors_scarce=False)
    assert table.open(2, now=2, are_descriptors_scarce=True) == 1
    table.begin_request(2)
    assert table.open(3, now=3, are_descriptors_scarce=True) is None
    assert table.phase(3) is ConnectionPhase.PROBING
    assert limits().are_scarce(1024 - 128)
    assert not limits().are_scarce(1024 - 129)


def test_the_first_request_has_its_time_from_the_connection_on(table: Connections[int]) -> None:
    table.open(1, now=0)
    assert not table.note_bytes(1, now=8)
    assert table.next_expiry() == 10
    assert table.take_expired(now=9.9) == []
    assert table.take_expired(now=10) == [1]
    assert len(table) == 0


def test_later_headers_have_their_time_from_their_first_byte_on(table: Connections[int]) -> None:
    table.open(1, now=0)
    table.begin_request(1)
    table.end_request(1, now=20)
    assert table.next_expiry() == 20 + KEEP_ALIVE_SECONDS + 10
    assert table.note_bytes(1, now=50)
    assert not table.note_bytes(1, now=55)
    assert table.next_expiry() == 60
    assert table.take_expired(now=60) == [1]


def test_the_rest_of_a_body_is_no_request(table: Connections[int]) -> None:
    table.open(1, now=0)
    table.begin_request(1)
    table.end_request(1, now=1)
    table.note_bytes(1, now=2)
    table.end_request(1, now=3)
    assert table.phase(1) is ConnectionPhase.KEPT_ALIVE


def test_a_closed_connection_is_unknown(table: Connections[int]) -> None:
    table.open(1, now=0)
    table.close(1)
    table.begin_request(1)
    table.end_request(1, now=1)
    table.close(1)
    assert not table.note_bytes(1, now=2)
    assert (table.phase(1), len(table), table.next_expiry()) == (None, 0, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "scarce", "receive", "begin", "end", "close", "expire"]),
            st.integers(0, 12),
        )
    )
)
def test_places_are_never_exceeded(steps: list[tuple[str, int]]) -> None:
    table = Connections[int](limits(max_open=3, max_probing=2), KEEP_ALIVE_SECONDS)
    for now, (step, number) in enumerate(steps):
        known = table.phase(number) is not None
        match step:
            case "open" | "scarce" if not known:
                closed = table.open(number, now, are_descriptors_scarce=step == "scarce")
                assert closed is None or table.phase(closed) is None
            case "receive":
                table.note_bytes(number, now)
            case "begin":
                table.begin_request(number)
            case "end":
                table.end_request(number, now)
            case "close":
                table.close(number)
            case "expire":
                table.take_expired(now)
        phases = [table.phase(number) for number in range(13)]
        assert len(table) == sum(phase is not None for phase in phases)
        assert sum(phase not in (None, ConnectionPhase.PROBING) for phase in phases) <= 3
        assert phases.count(ConnectionPhase.PROBING) <= 2


def test_without_a_limit_of_descriptors_connections_get_as_many_places_as_with_a_high_limit() -> (
    None
):
    unlimited = ConnectionLimits.for_open_files(resource.RLIM_INFINITY)
    high = ConnectionLimits.for_open_files(1 << 20)
    assert (unlimited.max_open, unlimited.max_probing) == (high.max_open, high.max_probing)
    assert unlimited.reserved_descriptors == high.reserved_descriptors
    assert not unlimited.are_scarce(1 << 20)
