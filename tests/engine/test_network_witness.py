"""The witness of the network."""

from __future__ import annotations

import socket

import pytest

from execd.engine.network_witness import (
    NetworkFigures,
    NetworkWitness,
    parse_figures,
    read_figures,
)

TCP = """\
Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 900
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails
Tcp: 1 200 120000 -1 7 12 0
Udp: InDatagrams NoPorts
Udp: 1 0
"""
INTERFACES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:     707      13    0    0    0     0          0         0      889      13    0
  eth0:1730928411   44492    0    0    0     0          0         0  3411811   23651    0
"""


class Kernel:
    """A network whose counters the test sets."""

    def __init__(self) -> None:
        self.figures: NetworkFigures | OSError = NetworkFigures(0, 0)

    def read(self) -> NetworkFigures:
        if isinstance(self.figures, OSError):
            raise self.figures
        return self.figures


class Daemon:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.received_bytes = 0
        self.witness = NetworkWitness(lambda: self.received_bytes, self.kernel.read)

    def accept(self, connections: int, n_bytes: int) -> None:
        """Connections of so many bytes together, counted by the kernel first."""
        figures = self.kernel.read()
        self.kernel.figures = NetworkFigures(
            figures.connections + connections, figures.received_bytes + 60 * connections + n_bytes
        )
        for _ in range(connections):
            self.witness.note_connection()
        self.received_bytes += n_bytes


def test_the_counters_of_a_kernel_are_read() -> None:
    assert parse_figures(TCP, INTERFACES) == NetworkFigures(12, 707 + 1730928411)


@pytest.mark.parametrize(
    ("tcp", "interfaces"), [("", INTERFACES), ("Tcp: x\nTcp: 1\n", INTERFACES), (TCP, "a\nb\nc:\n")]
)
def test_other_texts_are_refused(tcp: str, interfaces: str) -> None:
    with pytest.raises((ValueError, KeyError, IndexError)):
        parse_figures(tcp, interfaces)


@pytest.mark.linux_only("newer gVisors show zeros with the host's network, which no pod has")
def test_this_kernel_counts_a_connection_before_its_acceptance() -> None:
    before = read_figures()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as caller,
        listener.accept()[0] as accepted,
    ):
        caller.sendall(b"x" * 1000)
        assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
        found = read_figures()
    assert found.connections >= before.connections + 1
    assert found.received_bytes >= before.received_bytes + 1000


def test_the_same_network_is_not_new() -> None:
    daemon = Daemon()
    daemon.accept(3, 1000)
    assert not daemon.witness.is_network_new()


@pytest.mark.parametrize(
    "counters", [NetworkFigures(0, 0), NetworkFigures(2, 5000), NetworkFigures(50, 999)]
)
def test_counters_below_what_the_daemon_has_seen_are_of_a_new_network(
    counters: NetworkFigures,
) -> None:
    daemon = Daemon()
    daemon.accept(3, 1000)
    daemon.kernel.figures = counters
    assert daemon.witness.is_network_new()
    assert not daemon.witness.is_network_new()


def test_the_next_new_network_is_found_too() -> None:
    daemon = Daemon()
    for _ in range(3):
        daemon.accept(3, 1000)
        assert not daemon.witness.is_network_new()
        daemon.kernel.figures = NetworkFigures(0, 0)
        assert daemon.witness.is_network_new()


def test_counters_that_do_not_know_the_first_connection_are_never_believed() -> None:
    daemon = Daemon()
    daemon.witness.note_connection()
    daemon.received_bytes = 1000
    assert not daemon.witness.is_network_new()


def test_a_kernel_without_the_files_is_never_new() -> None:
    daemon = Daemon()
    daemon.accept(1, 100)
    daemon.kernel.figures = FileNotFoundError()
    assert not daemon.witness.is_network_new()
    daemon.witness.note_connection()


def test_without_a_connection_nothing_is_known() -> None:
    assert not Daemon().witness.is_network_new()
