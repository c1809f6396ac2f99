from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from execd.proc import kernel_traces
from tests.gvisor import is_gvisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
IPC_PRIVATE, IPC_RMID = 0, 0
HOLDER = """
import socket, sys
one = socket.socket()
one.bind(("127.0.0.1", 0))
one.listen()
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_listening_sockets_of_each_kind_are_found(tmp_path: Path) -> None:
    before = kernel_traces.read().sockets
    tcp, udp, unix = (
        socket.socket(socket.AF_INET),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        socket.socket(socket.AF_UNIX),
    )
    with tcp, udp, unix:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "socket"))
        assert not {one.port for one in kernel_traces.read().sockets - before} & {
            tcp.getsockname()[1]
        }, "nobody listens yet"
        tcp.listen()
        unix.listen()
        new = kernel_traces.read().sockets - before
        found = {(one.protocol, one.port or one.address) for one in new}
        assert found >= {
            ("tcp", tcp.getsockname()[1]),
            ("udp", udp.getsockname()[1]),
            ("unix", str(tmp_path / "socket")),
        }
        (of_unix,) = [one for one in new if one.address == str(tmp_path / "socket")]
        assert of_unix.uid == os.geteuid()
        assert kernel_traces.without_foreign(new, user_uid=os.geteuid(), living=()) == []


@contextlib.contextmanager
def listening(code: str = "") -> Iterator[tuple[int, frozenset[kernel_traces.ListeningSocket]]]:
    """A process that runs ``code``, and then listens: its pid, and its socket."""
    before = kernel_traces.read().sockets
    with subprocess.Popen(
        [sys.executable, "-c", code + HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        now = kernel_traces.read().sockets
        yield holder.pid, frozenset(one for one in now - before if one.port == port)
        holder.kill()


def test_a_socket_is_user_codes_if_only_user_code_holds_it() -> None:
    with listening() as (pid, new):
        assert len(new) == 1

        def found(uid: int, living: tuple[int, ...]) -> frozenset[kernel_traces.ListeningSocket]:
            return frozenset(kernel_traces.without_foreign(new, user_uid=uid, living=living))

        assert found(os.geteuid(), ()) == frozenset(), "another process holds it"
        assert found(os.geteuid(), (pid,)) == new
        assert found(os.geteuid() + 1, (pid,)) == frozenset(), "another user's"


@pytest.mark.linux_only("gVisor shows the descriptors of every process of a user")
def test_a_socket_is_not_user_codes_where_another_process_hides_its_descriptors() -> None:
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0)\n"  # PR_SET_DUMPABLE
    with listening(hide) as (_, new):
        assert len(new) == 1
        assert kernel_traces.without_foreign(new, user_uid=os.geteuid(), living=()) == []


@pytest.mark.parametrize("kind", ["shm", "msg", "sem"])
def test_a_system_v_object_is_found_by_its_kind(kind: str) -> None:
    before = kernel_traces.read().objects
    made = {
        "shm": lambda: LIBC.shmget(IPC_PRIVATE, 4096, 0o600),
        "msg": lambda: LIBC.msgget(IPC_PRIVATE, 0o600),
        "sem": lambda: LIBC.semget(IPC_PRIVATE, 1, 0o600),
    }[kind]()
    assert made >= 0
    try:
        new = kernel_traces.read().objects - before
        assert len(new) == 1, new
        assert kernel_traces.OBJECTS[kind] in next(iter(new))
    finally:
        arguments = (made, 0, IPC_RMID) if kind == "sem" else (made, IPC_RMID, None)
        getattr(LIBC, f"{kind}ctl")(*arguments)
    if not is_gvisor():  # gVisor counts a removed segment for a while
        assert kernel_traces.read().objects == before


@pytest.mark.root
def test_a_queue_is_found_where_no_directory_shows_the_queues() -> None:
    before = kernel_traces.list_hidden_queues()
    assert before is not None, "root may mount"
    name = f"/execd-test-{os.getpid()}"
    library = ctypes.CDLL("librt.so.1", use_errno=True)
    queue = library.mq_open(name.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    try:
        os.close(queue)
        now = kernel_traces.list_hidden_queues()
        assert now is not None
        assert now - before == {name[1:]}
    finally:
        library.mq_unlink(name.encode())


def test_a_name_that_is_not_utf8_is_shown_with_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / os.fsdecode(b"a\xff")).touch()
    monkeypatch.setattr(kernel_traces, "SHM", str(tmp_path))
    assert kernel_traces.read().shm == {"a\\xff"}


def test_the_place_names_the_namespaces() -> None:
    place = kernel_traces.place().split()
    assert place == kernel_traces.place().split()
    assert os.readlink("/proc/self/ns/ipc") in place


@pytest.mark.linux_only("unshare(1) needs more than a user's rights")
def test_another_ipc_namespace_is_another_place() -> None:
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--ipc", sys.executable, "-c"),
            "from execd.proc import kernel_traces; print(kernel_traces.place())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() != kernel_traces.place()
