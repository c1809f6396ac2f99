from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests import free_port
from tests.conformance.target import REPOSITORY


def test_a_port_that_has_a_socket_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port.free_port()
    monkeypatch.setattr(free_port, "PORTS", range(port, port + 1))
    assert free_port.free_port() == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(RuntimeError, match="no free port"):
            free_port.free_port()


def test_the_program_prints_a_port() -> None:
    command = [sys.executable, "tests/free_port.py"]
    printed = subprocess.check_output(command, cwd=REPOSITORY, text=True)
    assert int(printed) in free_port.PORTS
