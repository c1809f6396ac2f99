"""Programs of cells, in the test's own process: interrupts at moments that no signal would hit."""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from execd.kernel import subprocesses
from tests import subreaper
from tests.proc.conftest import living, new_token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from types import FrameType


def test_a_pipe_with_little_room_takes_a_part_of_a_small_text() -> None:
    """As in gVisor, where such a pipe counts as ready: a write of nothing would be tried without
    end, and without a pause."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        size_bytes = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
        os.write(write_end, bytes(size_bytes - 1500))
        n_written = subprocesses._write_some(write_end, memoryview(bytes(select.PIPE_BUF)))
        assert 0 < n_written <= 1500
        while n_more := subprocesses._write_some(write_end, memoryview(bytes(1500))):
            n_written += n_more
        assert n_written == 1500, "the pipe is full"
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("line", ["-x; exit 3", "+x; exit 3"])
def test_a_line_that_begins_as_an_option_is_a_command(line: str) -> None:
    assert subprocesses.run_in_shell(line) == 3
    for command in line, line.encode():
        assert os.waitstatus_to_exitcode(subprocesses.system(command)) == 3


@pytest.mark.parametrize("program", ["/bin/sh", "/no/such/program"])
def test_an_interrupt_while_a_program_starts_leaves_no_program(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A shell that came as far as its loop leaves its dead child to this process, and the guard
    ``nothing_leaks`` reaps the orphan. The shell itself must be reaped."""
    token = new_token()

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            try:
                super().__init__(*args, **options)
            finally:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(subprocesses, "INTERRUPT_SECONDS", 0.01)
    monkeypatch.setattr(subprocesses, "REAP_SECONDS", 20.0)  # a busy machine kills slowly
    with pytest.raises(KeyboardInterrupt):
        subprocesses.run([program, "-c", f"trap '' INT; while :; do sleep {token}; done"], None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    wait_until(lambda: living(token) == [])


def test_the_guard_reaps_a_dead_orphan_and_no_forgotten_child() -> None:
    forgotten = [
        subprocess.Popen(["true"], start_new_session=leads_group) for leads_group in (False, True)
    ]
    shell = subprocess.run(
        ["sh", "-c", "sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE, start_new_session=True
    )
    orphan = psutil.Process(int(shell.stdout))
    try:
        orphan.kill()
        dead = [orphan, *(psutil.Process(child.pid) for child in forgotten)]
        wait_until(lambda: {process.status() for process in dead} == {psutil.STATUS_ZOMBIE})
        subreaper.reap_orphans()
        assert [process.is_running() for process in dead] == [False, True, True]
    finally:
        for child in forgotten:
            child.wait()


def test_a_second_interrupt_at_any_moment_leaves_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python acts on a signal when a Python function begins. So the second interrupt comes when the
    first function begins, in the next attempt when the second function begins, and so on."""
    sent: list[int] = []
    send = os.killpg

    def record_and_send(group: int, number: int) -> None:
        sent.append(number)
        send(group, number)

    def interrupt(*_: object) -> None:
        sys.settrace(trace)
        raise KeyboardInterrupt

    def trace(frame: FrameType, event: str, _: object) -> Any:
        assert event == "call"
        is_ours = frame.f_code.co_filename.endswith(("/subprocesses.py", "/subprocess.py"))
        if is_ours and signal.SIGKILL not in sent and next(calls) == moment:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "killpg", record_and_send)
    monkeypatch.setattr(subprocesses, "_communicate", interrupt)
    monkeypatch.setattr(subprocesses, "INTERRUPT_SECONDS", 0.01)
    monkeypatch.setattr(subprocesses, "REAP_SECONDS", 30.0)
    before = sys.gettrace()
    for moment in itertools.count():
        calls = itertools.count()
        sent.clear()
        try:
            with pytest.raises(KeyboardInterrupt):
                subprocesses.run(["sleep", "1000"], None)
        finally:
            sys.settrace(before)
        assert signal.SIGKILL in sent, f"the interrupt came at call {moment}"
        if next(calls) <= moment:
            break
    assert moment > 2
