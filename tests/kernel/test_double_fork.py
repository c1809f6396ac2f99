"""The fork of an orphan, with one copy of the memory and with two, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from execd import kernel
from execd.kernel import double_fork
from tests.gvisor import is_gvisor
from tests.kernel.harness import PYTHON

ORPHAN_UID = 54_321
"""A user without any other process."""

# The caller is the subreaper of its orphans, as the warden is. ``sys.argv[1]`` chooses the fork.
CALLER = """
import ctypes, os, signal, sys, threading
sys.path.insert(0, sys.argv[3])
import double_fork
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
if sys.argv[1] == "cheap":
    cheap = double_fork.CheapFork()  # whatever the kernel has
    double_fork.find_cheap_fork = lambda: cheap
else:
    double_fork.find_cheap_fork = lambda: None
calls = []
for when in ("before", "after_in_child", "after_in_parent"):
    os.register_at_fork(**{when: lambda when=when: calls.append(when)})

def end_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def wait_for_parent(intermediate_pid):
    while os.getppid() == intermediate_pid:
        pass

exec(sys.argv[2])
"""


def run(fork: str, program: str, *prefix: str) -> str:
    done = subprocess.run(
        [*prefix, PYTHON, "-c", CALLER, fork, program, kernel.__path__[0]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKS = pytest.mark.parametrize("fork", ["cheap", "two copies"])


@FORKS
def test_the_new_process_is_an_orphan_and_goes_on_where_the_caller_was(fork: str) -> None:
    program = """
def fork_below(depth):
    held = [depth]
    found = fork_below(depth - 1) if depth else double_fork.fork_orphan()
    assert held == [depth]
    return found

caller = os.getpid()
reading, writing = os.pipe()
intermediate_pid = fork_below(50)
if intermediate_pid is not None:
    wait_for_parent(intermediate_pid)
    assert intermediate_pid not in (caller, os.getpid())
    os.write(writing, f"{os.getpid()} {os.getppid()}".encode())
    os._exit(7)
os.close(writing)
pid, parent = map(int, os.read(reading, 100).split())
assert parent == caller != pid
assert end_of(pid) == 7
try:
    os.wait()
except ChildProcessError:
    print("nothing is left")
"""
    assert run(fork, program) == "nothing is left\n"


@FORKS
def test_the_new_process_knows_its_own_ids_and_signals_itself(fork: str) -> None:
    program = """
reading, writing = os.pipe()
if double_fork.fork_orphan() is not None:
    os.write(writing, f"{os.getpid()} {threading.get_native_id()}".encode())
    threads = [threading.Thread(target=calls.append, args=("thread",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.count("thread") == 4
    os.abort()
pid, thread = map(int, os.read(reading, 100).split())
assert pid == thread
print(end_of(pid))
"""
    assert run(fork, program) == f"{-signal.SIGABRT}\n"


def test_the_handlers_of_forks_run_once_in_each_process_with_one_copy() -> None:
    program = """
reading, writing = os.pipe()
intermediate_pid = double_fork.fork_orphan()
if intermediate_pid is not None:
    os.write(writing, " ".join(calls).encode())
    os._exit(0)
print(os.read(reading, 1000).decode())
print(" ".join(calls))
os.wait()
"""
    assert run("cheap", program) == "before after_in_child\nbefore after_in_parent\n"


def test_the_caller_changes_nothing_of_the_new_process_and_the_new_process_nothing_here() -> None:
    program = """
values = [0]
reading, writing = os.pipe()
go, goes = os.pipe()
if double_fork.fork_orphan() is not None:
    os.read(go, 1)
    os.write(writing, repr(values).encode())
    values.append("new")
    os._exit(0)
values.append("caller")
os.write(goes, b"x")
print(os.read(reading, 100).decode())
os.wait()
print(values)
"""
    assert run("cheap", program) == "[0]\n[0, 'caller']\n"


def test_a_caller_with_threads_copies_twice() -> None:
    """A thread would go on beside the intermediate process, in the same memory."""
    program = """
forks = []
double_fork.find_cheap_fork = lambda: lambda: forks.append("cheap")
end = threading.Event()
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
if double_fork.fork_orphan() is not None:
    os._exit(0)
os.wait()
assert not forks
end.set()
while not double_fork.has_one_thread():
    pass  # the kernel may show a thread for a moment after its end
double_fork.fork_orphan()
print(forks)
"""
    assert run("two copies", program) == "['cheap']\n"


FORK_IN_VAIN = """
import errno
try:
    double_fork.fork_orphan()
except OSError as error:
    print(errno.errorcode[error.errno])
try:
    os.wait()
except ChildProcessError:
    print("nothing is left")
"""


@FORKS
@pytest.mark.parametrize("most", [1, 2])
def test_a_fork_that_the_kernel_refuses_is_an_error_and_leaves_nothing(
    fork: str, most: int
) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NPROC, ({most}, {most}))\n"
    # The limit counts the processes of a user, and in a new user namespace only those in there.
    if os.geteuid() == 0:
        prefix = ["setpriv", f"--reuid={ORPHAN_UID}", f"--regid={ORPHAN_UID}", "--clear-groups"]
    else:
        prefix = ["unshare", "--user"]
    assert run(fork, limit + FORK_IN_VAIN, *prefix) == "EAGAIN\nnothing is left\n"


def test_gvisor_has_the_fork_with_one_copy_and_linux_has_two() -> None:
    assert (double_fork.find_cheap_fork() is not None) == is_gvisor()


def test_an_intermediate_process_that_is_killed_before_its_fork_is_an_error() -> None:
    """By a fork handler of the C library: such handlers run in the intermediate process."""
    abort = """
libc = ctypes.CDLL(None)
assert libc.__register_atfork(ctypes.cast(libc.abort, ctypes.c_void_p), None, None, None) == 0
"""
    assert run("cheap", abort + FORK_IN_VAIN) == "ECHILD\nnothing is left\n"
