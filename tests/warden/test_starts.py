"""Starts in a real PID namespace, where no other process takes pids.

Natively the proof that a program has left nothing is the newest pid; in gVisor, the children."""

from __future__ import annotations

import pytest

from tests.gvisor import is_gvisor
from tests.warden.inits import told_by_init

natively = pytest.mark.skipif(is_gvisor(), reason="only Linux tells the newest pid")
in_gvisor = pytest.mark.skipif(not is_gvisor(), reason="natively the newest pid is the proof")

# The init of a new namespace serves a channel, whose other end is ``daemon``, and runs the test's
# own lines.
INIT = r"""
import contextlib, ctypes, os, select, shutil, signal, socket, sys, tempfile, threading, time
from execd.proc import kernel_traits, program_block, spawn
from execd.proc.channel import Channel
from execd.proc.messages import NULL_DEVICE, Exited, Ping, Spawn
from execd.proc.task_meter import TaskMeter
from tests.gvisor import is_gvisor
from execd.warden.fork_bombs import BrakeFigures
from execd.warden.starts import Starts
from execd.warden.spawn_watch import WatchWords
from tests.patience import patience
LONG, PEAK = 6.0, 1 << 40
spawn.prepare()
signals = spawn.open_child_signals()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.setblocking(False)
daemon, words = Channel(theirs), WatchWords()
null = os.open(os.devnull, os.O_WRONLY)

def made(patience=20, look_pause=0):
    "More patience than a program needs to end, and than the warden has."
    meter = TaskMeter()
    starts = Starts(
        channel=ours.fileno(), child_signals=signals, loadavg_fd=meter.loadavg_fd,
        traits=kernel_traits.find()._replace(look_pause_seconds=look_pause), leads_session=True,
        oom_score=None, former_limits=[], nice=0, watch=words,
    )
    starts._fields.patience = int(patience * 10**9)
    return starts

def ask(tag, *argv, cwd="/", **fields):
    block = program_block.pack(argv, {}, cwd)
    kept = dict.fromkeys(("uid", "gid", "groups"))
    named = {"limits": [], "processes": 0, "marker": "m", "announce": False, **kept, **fields}
    spawn = Spawn(tag, block, [NULL_DEVICE, 0, 1], False, **named)
    daemon.send(spawn, [os.dup(null), os.dup(null)])

def sh(tag, line, **fields):
    ask(tag, "/bin/sh", "-c", line, **fields)

def told():
    "The next message for the daemon."
    select.select([theirs], [], [])
    return daemon.receive()[0]

def begin(starts, seconds=LONG, brake=None, peak=PEAK):
    return starts.serve(time.monotonic() + seconds, brake, peak)

def serve(starts=None, **options):
    "As a caller that takes all programs at the end of the call."
    starts = starts or made()
    outcome = begin(starts, **options)
    return outcome._replace(programs=[*outcome.programs, *starts.take_all()])

def go_on(starts, seconds=LONG, **options):
    return starts.go_on(time.monotonic() + seconds, **options)

BUSY = "while [ ! -e {0}/end ]; do :; done; exit 3"
def end(folder):
    open(f"{folder}/end", "w").close()

def decoded(received):
    return None if received is None else daemon.unpack(*received)[0]

def found(outcome):
    "What the caller gets: the programs, the message, the number of the forgotten ones."
    programs = [(decoded(p.request).tag, p.end and p.end.wait_status) for p in outcome.programs]
    return programs, type(decoded(outcome.received)).__name__, outcome.n_forgotten

def is_pending():
    return bool(select.select([theirs], [], [], 0)[0])

try:
    exec(sys.argv[1])
finally:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
"""


def told(lines: str) -> list[str]:
    """What ``lines`` print."""
    return told_by_init(INIT, lines)


# Start programs, and serve until all have ended. They are in flight together, and the last one ends
# last: after any other order the caller has to take over a program that is 0.1 s old. A call may
# come back early, for a signal without a program.
UNTIL_ENDED = """
ends = []
def serve_until_ended(*lines, limits=(), processes=0, **options):
    folder = tempfile.mkdtemp()
    wait = f"while [ ! -e {folder}/%s ]; do :; done; "
    for tag, line in enumerate(lines, 5):
        is_last = tag == 4 + len(lines)
        begin = f": > {folder}/begun; " + wait % "last" if is_last else wait % "begun"
        sh(tag, begin + line, limits=limits, processes=processes)
    def work():
        for n_left in range(len(lines), 0, -1):
            if n_left == 1:
                open(f"{folder}/last", "w").close()
            ends.append(told())
        daemon.send(Ping(1))
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    outcomes = []
    while not (outcomes and outcomes[-1].received):
        outcomes.append(serve(**options))
        with contextlib.suppress(BlockingIOError):
            os.read(signals, 4096)
    thread.join()
    shutil.rmtree(folder)
    assert not any(outcome.programs for outcome in outcomes)
    return outcomes
"""


def test_programs_that_end_at_once_are_reported_and_forgotten() -> None:
    lines = """
outcomes = serve_until_ended("exit 5", "exit 6", "exit 7")
print(sum(outcome.n_forgotten for outcome in outcomes))
for end in sorted(ends):
    print(end.tag, os.waitstatus_to_exitcode(end.wait_status), end.processes)
    assert 0 < end.spawned_at - end.spawn_seconds < end.spawned_at < end.at < time.monotonic()
    assert 0 <= end.user_seconds + end.system_seconds < 10
    assert (end.max_rss_bytes, end.peak_tree_bytes, end.is_direct) == (0, 0, False)
newest = max(outcome.newest_pid for outcome in outcomes)
print(newest == (0 if is_gvisor() else max(end.pid for end in ends)), len({e.pid for e in ends}))
"""
    assert told(UNTIL_ENDED + lines) == ["3", "5 5 1", "6 6 1", "7 7 1", "True 3"]


def test_no_descriptor_of_a_program_stays_open() -> None:
    lines = """
starts = made()
before = set(os.listdir("/proc/self/fd"))
serve_until_ended(*["exit 0"] * 8, starts=starts)
print(set(os.listdir("/proc/self/fd")) == before)
"""
    assert told(UNTIL_ENDED + lines) == ["True"]


@pytest.mark.parametrize(
    ("line", "is_ended"),
    [("sleep 60 & exit 3", True), ("(exit 0) & exit 3", True), ("sleep 60 & sleep 60", False)],
)
def test_a_program_that_has_started_anything_is_given_back_unreaped(
    line: str, *, is_ended: bool
) -> None:
    lines = f"""
sh(5, {line!r})
outcome = serve(made({20 if is_ended else 0.5}))
pid = outcome.programs[0].pid
print(found(outcome), is_pending(), os.waitpid(pid, os.WNOHANG)[0] == pid)
"""
    assert told(lines) == [f"([(5, None)], 'NoneType', 0) False {is_ended}"]


def test_an_end_that_the_caller_must_reap_is_told() -> None:
    assert told("sh(5, 'sleep 60 & exit 3')\nprint(serve().has_more)") == ["True"]


@natively
def test_beside_a_program_that_has_started_something_no_end_is_proved() -> None:
    lines = """
with tempfile.TemporaryDirectory() as folder:
    wait = "while [ ! -e {0}/{1} ]; do :; done"
    sh(5, f"{wait}; (exit 0) & : > {{0}}/forked; {wait}".format(folder, "begun"))
    sh(6, f": > {{0}}/begun; {wait}; exit 3".format(folder, "forked"))
    outcome = serve()
print(found(outcome), outcome.has_more)
"""
    assert told(lines) == ["([(5, None), (6, None)], 'NoneType', 0) True"]


@in_gvisor
def test_beside_a_program_that_has_started_something_an_end_is_proved_by_the_children() -> None:
    lines = """
with tempfile.TemporaryDirectory() as folder:
    sh(5, f"sleep 60 & : > {folder}/forked; while :; do :; done")
    sh(6, f"while [ ! -e {folder}/forked ]; do :; done; exit 3")
    outcome = serve(made(2))
print(found(outcome), outcome.has_more)
"""
    assert told(lines) == ["([(5, None)], 'NoneType', 1) False"]


@in_gvisor
def test_threads_of_another_child_that_end_hide_nothing_that_a_program_leaves() -> None:
    """gVisor lists the threads of children, and an ended thread makes room for an orphan."""
    lines = """
reader, writer = os.pipe()
os.set_inheritable(reader, True)
code = f"import os, threading; threading.Thread(target=os.read, args=({reader}, 1)).start(); "
os.posix_spawn(sys.executable, [sys.executable, "-c", code + "threading.Event().wait()"], {})
def await_listed(n):
    while len(open(f"/proc/self/task/{os.getpid()}/children").read().split()) != n:
        time.sleep(0.001)
await_listed(2)
with tempfile.TemporaryDirectory() as folder:
    def work():
        await_listed(3)
        os.write(writer, b"x")
        await_listed(2)
        open(f"{folder}/ended", "w").close()
    threading.Thread(target=work, daemon=True).start()
    sh(5, f"sleep 60 & while [ ! -e {folder}/ended ]; do :; done")
    outcome = serve()
pid = outcome.programs[0].pid
print(found(outcome), os.waitpid(pid, os.WNOHANG)[0] == pid)
"""
    assert told(lines) == ["([(5, None)], 'NoneType', 0) True"]


def test_a_program_that_lives_on_is_given_back_also_in_a_stream_of_requests() -> None:
    lines = """
sh(1, "sleep 60")
def work():
    while True:
        if daemon.queued < 20:
            sh(2, "exit 0")
        daemon.flush()
        while is_pending():
            daemon.receive()
threading.Thread(target=work, daemon=True).start()
print(found(serve(made(0.05)))[0][0])
"""
    assert told(lines) == ["(1, None)"]


def test_a_program_that_uses_no_cpu_time_is_given_back_and_one_that_computes_is_not() -> None:
    lines = """
sh(5, "sleep 60")
began = time.monotonic()
print(found(serve(made(look_pause=0.05))), time.monotonic() - began < patience(10))
sh(6, "while :; do :; done")
began = time.monotonic()
print(found(serve(made(1.5, look_pause=0.2))), time.monotonic() - began > 1)
"""
    assert told(lines) == ["([(5, None)], 'NoneType', 0) True", "([(6, None)], 'NoneType', 0) True"]


@in_gvisor
def test_programs_in_flight_go_on_after_the_time_is_over() -> None:
    lines = """
starts = made()
with tempfile.TemporaryDirectory() as folder:
    sh(5, BUSY.format(folder))
    outcome = begin(starts, seconds=0.2)
    print(outcome.end_of_call.name, found(outcome), is_pending())
    end(folder)
    outcome = go_on(starts, may_start=False)
print(outcome.end_of_call.name, found(outcome), told().wait_status, starts.take_all())
"""
    assert told(lines) == [
        "TIME_IS_OVER ([], 'NoneType', 0) False",
        "TIME_IS_OVER ([], 'NoneType', 1) 768 []",
    ]


@in_gvisor
def test_a_call_that_may_start_nothing_ends_with_the_programs_in_flight() -> None:
    lines = """
starts = made()
with tempfile.TemporaryDirectory() as folder:
    sh(5, BUSY.format(folder))
    begin(starts, seconds=0.2)
    sh(6, "exit 0")
    end(folder)
    began = time.monotonic()
    outcome = go_on(starts, may_start=False)
print(outcome.end_of_call.name, found(outcome), time.monotonic() - began < LONG)
print(told().tag, bool(select.select([ours], [], [], 0)[0]))
"""
    assert told(lines) == ["TIME_IS_OVER ([], 'NoneType', 1) True", "5 True"]


@in_gvisor
def test_only_the_programs_that_wait_are_given_back() -> None:
    """The others go on, and a child that was given back is no sign that they have left anything."""
    lines = """
starts = made(look_pause=0.1)
with tempfile.TemporaryDirectory() as folder:
    sh(5, BUSY.format(folder))
    sh(6, "sleep 60")
    outcome = begin(starts)
    print(outcome.end_of_call.name, found(outcome))
    end(folder)
    outcome = go_on(starts, may_start=False)
print(outcome.end_of_call.name, found(outcome), told().tag, starts.take_all())
"""
    assert told(lines) == [
        "PROGRAMS_WAIT ([(6, None)], 'NoneType', 0)",
        "TIME_IS_OVER ([], 'NoneType', 1) 5 []",
    ]


@in_gvisor
def test_what_a_program_leaves_after_it_was_given_back_ends_the_proofs() -> None:
    lines = """
starts = made(look_pause=0.1)
with tempfile.TemporaryDirectory() as folder:
    sh(5, BUSY.format(folder))
    os.mkfifo(f"{folder}/go")
    sh(6, f"read line < {folder}/go; (sleep 60 & ) ; : > {folder}/end; sleep 60")
    print(found(begin(starts)))
    open(f"{folder}/go", "w").close()
    outcome = go_on(starts)
print(outcome.end_of_call.name, found(outcome), outcome.has_more)
"""
    assert told(lines) == [
        "([(6, None)], 'NoneType', 0)",
        "CALLER_TAKES_ALL ([(5, None)], 'NoneType', 0) True",
    ]


def test_signals_without_end_keep_no_program_in_flight() -> None:
    lines = """
sh(1, "while :; do :; done")
signals = os.eventfd(0, os.EFD_SEMAPHORE)
def work():
    while not words.last_begun_at:
        time.sleep(0.001)
    os.eventfd_write(signals, 1 << 30)  # can be read so often
threading.Thread(target=work, daemon=True).start()
print(found(serve(made(0.05))))
"""
    assert told(lines) == ["([(1, None)], 'NoneType', 0)"]


def test_a_task_between_two_programs_leaves_both_to_the_caller() -> None:
    """The newest pid is the second program's when the first ends, and the first left a child."""
    lines = """
with tempfile.TemporaryDirectory() as folder:
    wait = f"while [ ! -e {folder}/go ]; do :; done"
    sh(5, f"sleep 60 & : > {folder}/forked; {wait}")
    def work():
        while not os.path.exists(f"{folder}/forked"):
            time.sleep(0.001)
        sh(6, f": > {folder}/go; while :; do :; done")
    threading.Thread(target=work, daemon=True).start()
    print(found(serve()))
"""
    assert told(lines) == ["([(5, None), (6, None)], 'NoneType', 0)"]


@natively
def test_past_the_largest_pid_the_caller_counts_anew() -> None:
    lines = """
starts = made()
def next_pid(pid):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
def work():
    print(told().pid)
    starts._fields.patience = 10**8
    next_pid(400)
    sh(6, "sleep 60")
threading.Thread(target=work, daemon=True).start()
next_pid(20_000)
sh(5, "exit 0")
outcome = serve(starts)
while not outcome.n_forgotten:
    outcome = serve(starts)
print(found(outcome), outcome.newest_pid, outcome.programs[0].pid)
"""
    assert told(lines) == ["20000", "([(6, None)], 'NoneType', 1) 20000 400"]


@pytest.mark.parametrize("fields", ["memory_bytes=1 << 30", "limits=[[0, 1, 1]] * 25"])
def test_a_program_that_needs_a_step_before_is_left_to_the_caller(fields: str) -> None:
    lines = f"sh(5, 'exit 0', {fields})\noutcome = serve()\nprint(found(outcome))"
    lines += "\nprint(len(outcome.received.descriptors))"
    assert told(lines) == ["([], 'Spawn', 0)", "2"]


@pytest.mark.parametrize("fields", ["uid=0, gid=0", "terminal=True", "is_idle=True"])
def test_a_program_with_a_wish_of_its_own_ends_as_any_other(fields: str) -> None:
    lines = f"""
reader, writer = os.openpty()
block = program_block.pack(["/bin/sh", "-c", "exit 3"], {{}}, "/")
named = dict(uid=None, gid=None, groups=None, announce=False, terminal=False)
spawn = Spawn(5, block, [0, 0, 0], limits=[], processes=0, marker="m", **named | dict({fields}))
daemon.send(spawn, [writer])
starts = made()
outcome = serve(starts)
while not (outcome.n_forgotten or outcome.programs or outcome.received):
    outcome = serve(starts)
print(found(outcome), told().wait_status)
"""
    assert told(lines) == ["([], 'NoneType', 1) 768"]


def test_a_program_whose_start_is_awaited_is_given_back_at_once() -> None:
    lines = """
sh(5, "exec sleep 60", announce=True)
began = time.monotonic()
print(found(serve()), time.monotonic() - began < patience(5))
"""
    assert told(lines) == ["([(5, None)], 'NoneType', 0) True"]


# Starts of programs that the caller has received.

STARTING = r"""
def start(tag, line, starts=None, *, padding="", descriptors=None, **fields):
    "Returns the starts and the failure."
    block = program_block.pack(["/bin/sh", "-c", line, padding], {}, fields.pop("cwd", "/"))
    named = dict(uid=None, gid=None, groups=None, limits=[], processes=0, marker="m")
    message = Spawn(tag, block, [NULL_DEVICE, 0, 1], False, announce=False, **named | fields)
    if descriptors is None:
        descriptors = [os.dup(null), os.dup(null)]
    starts = starts or made()
    return starts, starts.start(message, descriptors, None, PEAK)
"""


def test_a_program_of_the_caller_is_in_flight_and_its_end_is_reported() -> None:
    lines = """
with tempfile.TemporaryDirectory() as folder:
    descriptors = [os.dup(null), os.dup(null)]
    starts, failure = start(5, BUSY.format(folder), memory_bytes=1 << 30, descriptors=descriptors)
    print(failure, descriptors, starts.has_in_flight)
    end(folder)
    outcome = go_on(starts)
starts.take_all()
print(found(outcome), told().wait_status, starts.has_in_flight)
"""
    assert told(STARTING + lines) == [
        "None [] True",
        "([], 'NoneType', 1) 768 False",
    ]


@pytest.mark.parametrize("padding", [0, 100_000])
def test_a_program_of_the_caller_is_given_back_with_its_request(padding: int) -> None:
    """At once, if the request is long."""
    lines = f"""
starts, failure = start(5, "sleep 60", made(0.1), padding="x" * {padding})
outcome = go_on(starts)
programs = [*outcome.programs, *starts.take_all()]
request, descriptors = daemon.unpack(*programs[0].request)
print(failure, len(programs), request.tag, len(request.program) > {padding}, len(descriptors))
"""
    assert told(STARTING + lines) == ["None 1 5 True 2"]


def test_a_program_joins_one_that_the_caller_has_started() -> None:
    lines = """
with tempfile.TemporaryDirectory() as folder:
    starts, _ = start(5, BUSY.format(folder))
    sh(6, f": > {folder}/end; exit 4")
    outcome = go_on(starts)
print(sorted((told().tag for _ in range(outcome.n_forgotten))), found(outcome)[0])
"""
    assert told(STARTING + lines) == ["[5, 6] []"]


def test_a_failed_start_of_the_caller_is_told_and_leaves_the_descriptors() -> None:
    lines = """
descriptors = [os.dup(null), os.dup(null)]
starts, failure = start(5, "exit 0", cwd="/missing", descriptors=descriptors)
print(failure, len(descriptors), starts.has_in_flight, starts.take_all())
print(os.wait()[1] >> 8)
print(start(6, "exit 0", starts, limits=[[0, 1, 1]] * 25)[1])
print(start(7, "exit 0", starts)[1])
"""
    assert told(STARTING + lines) == [
        "('cwd', 2) 2 False []",
        "127",
        "('request', 22)",
        "None",
    ]


def test_a_caller_that_has_woken_the_spawn_watch_need_not_wait_for_it() -> None:
    lines = """
words.is_asleep = 1
print(start(5, "exit 0")[1], words.begun_at)
"""
    assert told(STARTING + lines) == ["None 0"]


def test_limits_hold_for_the_program() -> None:
    lines = """
serve_until_ended("ulimit -n 76", "ulimit -n 78", limits=[[7, 77, 77]])
print(sorted((end.tag, os.waitstatus_to_exitcode(end.wait_status)) for end in ends))
"""
    assert told(UNTIL_ENDED + lines) == ["[(5, 0), (6, 2)]"]


def test_a_failed_start_is_left_to_the_caller_and_releases_the_brake() -> None:
    lines = """
sh(5, "exit 0", cwd="/missing", processes=20)
outcome = serve(brake=BrakeFigures(10, 5))
print(found(outcome), outcome.brake_order, bool(select.select([signals], [], [], 5)[0]))
"""
    assert told(lines) == ["([], 'Spawn', 0) None True"]


def test_while_the_spawn_watch_sleeps_nothing_is_started() -> None:
    lines = """
words.is_asleep = 1
sh(5, "exit 0")
print(found(serve()), words.begun_at, words.last_begun_at > 0)
"""
    assert told(lines) == ["([], 'Spawn', 0) 0 True"]


@natively
def test_a_program_that_the_spawn_watch_has_killed_before_its_exec_is_left_to_the_caller() -> None:
    lines = """
is_over = threading.Event()
def stand_in_for_the_watch():
    while not is_over.is_set():
        words.killed_pid = next_pid
for attempt in range(100):
    next_pid = int(open("/proc/loadavg").read().split()[-1]) + 2  # after the thread
    thread = threading.Thread(target=stand_in_for_the_watch)
    thread.start()
    sh(5, "exit 3")
    outcome = serve()
    is_over.set()
    thread.join()
    if outcome.received is not None:
        break
    is_over.clear()  # the thread had no CPU between vfork and exec
    told()
    os.read(signals, 4096) if select.select([signals], [], [], 0)[0] else None
print(found(outcome))
"""
    assert told(lines) == ["([], 'Spawn', 0)"]


def test_a_stop_by_the_brake_gives_the_programs_in_flight_back() -> None:
    lines = """
from execd.warden.brake import Brake
brake, seconds = Brake(TaskMeter().loadavg_fd, kernel_traits.find()), 20
sh(5, "while :; do :; done")
sh(6, "n=0; while [ $n -lt 1000 ]; do n=$((n + 1)); (sleep 60) & done; sleep 60", processes=4)
began = time.monotonic()
outcome = serve(made(seconds), brake=BrakeFigures(0, 4))
print(found(outcome), time.monotonic() - began < seconds, brake.take_stop())
"""
    assert told(lines) == ["([(5, None), (6, None)], 'NoneType', 0) True True"]


def test_the_brake_is_armed_for_programs_in_flight_only() -> None:
    lines = """
outcomes = serve_until_ended("exit 0", processes=20, brake=BrakeFigures(10, 5))
print(outcomes[-1].brake_order)
for limit, base in ((20, 10), (20, -30), (0, 10), (20, None)):
    figures = None if base is None else BrakeFigures(base, 5)
    sh(6, "sleep 60", processes=limit)
    order = serve(made(0.05), brake=figures).brake_order
    print(order and order[1] - order[0])
"""
    assert told(UNTIL_ENDED + lines) == ["None", "35", "5", "None", "None"]


@pytest.mark.parametrize(("limits", "room"), [((4, 500), 19), ((500, 4), 19), ((4, 0), 19)])
def test_the_brake_is_armed_for_the_lowest_limit_in_flight(
    limits: tuple[int, int], room: int
) -> None:
    lines = f"""
n_tasks = spawn.count_tasks()
for tag, limit in enumerate({limits}):
    sh(tag, "while :; do :; done", processes=limit)
outcome = serve(made(0.9), brake=BrakeFigures(10, 5))
start, end = outcome.brake_order
before = n_tasks + 1 if is_gvisor() else outcome.programs[1].pid - 1
print(len(outcome.programs), end - start, start - before)
"""
    assert told(lines) == [f"2 {room} 0"]


@in_gvisor
def test_what_a_program_in_flight_starts_does_not_raise_the_limit_of_the_brake() -> None:
    lines = """
with tempfile.TemporaryDirectory() as folder:
    fork = "sleep 60 & " * 3
    def work():
        while not os.path.exists(f"{folder}/forked"):
            time.sleep(0.001)
        sh(6, "while :; do :; done", processes=4)
    threading.Thread(target=work, daemon=True).start()
    n_tasks = spawn.count_tasks()
    sh(5, f"{fork} : > {folder}/forked; while :; do :; done", processes=4)
    outcome = serve(made(0.9), brake=BrakeFigures(10, 5))
print(len(outcome.programs), outcome.brake_order[0] - n_tasks)
"""
    assert told(lines) == ["2 1"]


def test_the_end_of_a_program_larger_than_the_warden_is_left_to_the_caller() -> None:
    lines = """
sh(5, "exit 3")
outcome = serve(peak=0)
print(found(outcome), is_pending(), outcome.programs[0].end.max_rss_bytes > 1 << 16)
"""
    assert told(lines) == ["([(5, 768)], 'NoneType', 1) False True"]


def test_an_end_that_the_daemon_has_no_room_for_is_left_to_the_caller() -> None:
    lines = """
for size in (1000, 1):  # gVisor counts bytes, Linux buffers
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(b"x" * size)
sh(5, "exit 3")
print(found(serve()))
"""
    assert told(lines) == ["([(5, 768)], 'NoneType', 1)"]


def test_another_child_that_ends_beside_a_program_is_told() -> None:
    lines = """
other = os.fork()
if other == 0:
    os._exit(0)
os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
os.read(signals, 4096)
sh(5, "exit 3")
outcome = serve()
print(found(outcome), outcome.has_more, os.waitpid(other, 0)[0] == other)
"""
    assert told(lines) == ["([], 'NoneType', 1) True True"]


@in_gvisor
def test_other_children_that_end_beside_programs_in_flight_are_told_at_once() -> None:
    """One signal may be for both, and the second is told although no signal comes any more."""
    lines = """
others = []
for _ in range(2):
    others.append(os.fork())
    if others[-1] == 0:
        os._exit(0)
    os.waitid(os.P_PID, others[-1], os.WEXITED | os.WNOWAIT)
os.read(signals, 4096)
starts = made()
sh(5, "while :; do :; done")
sh(6, "exit 3")
outcome = begin(starts)
print(outcome.end_of_call.name, found(outcome))
for n_left in (2, 1):
    others.remove(outcome.stranger)
    os.waitpid(outcome.stranger, 0)
    outcome = go_on(starts, seconds=0.2)
    print(outcome.end_of_call.name, found(outcome), outcome.has_more)
print(others, len(starts.take_all()))
"""
    assert told(lines) == [
        "STRANGER_HAS_ENDED ([], 'NoneType', 1)",
        "STRANGER_HAS_ENDED ([], 'NoneType', 0) True",
        "TIME_IS_OVER ([], 'NoneType', 0) False",
        "[] 1",
    ]


@in_gvisor
def test_a_stopped_program_hides_no_other_end() -> None:
    """waitid(2) tells of one child, and a program that the init traces stays the first."""
    lines = """
starts = made(3)
code = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"
ask(5, sys.executable, "-c", code)
outcome = begin(starts, seconds=2)
print(outcome.end_of_call.name, outcome.has_more, len(starts.take_all()))
"""
    assert told(lines) == ["TIME_IS_OVER True 1"]


def test_without_a_program_a_signal_is_left_to_the_caller() -> None:
    lines = """
if os.fork() == 0:
    os._exit(0)
outcome = serve()
print(found(outcome), outcome.has_more, bool(select.select([signals], [], [], 0)[0]))
"""
    assert told(lines) == ["([], 'NoneType', 0) False True"]


def test_a_stop_of_a_program_that_the_init_traces_is_told() -> None:
    lines = """
code = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"
ask(5, sys.executable, "-c", code)
outcome = serve(made(3))  # Python starts meanwhile
print(found(outcome), outcome.has_more)
pid, wait_status = os.waitpid(-1, os.WNOHANG)
print(os.WIFSTOPPED(wait_status))
"""
    assert told(lines) == ["([(5, None)], 'NoneType', 0) True", "True"]


def test_a_call_ends_in_time_and_when_the_daemon_is_gone() -> None:
    assert told("print(found(serve(seconds=0.05)))") == ["([], 'NoneType', 0)"]
    assert told("daemon.close()\nprint(found(serve()))") == ["([], 'NoneType', 0)"]


@pytest.mark.parametrize(
    "datagram", [b"", b"\0", b"\0\0", b"\0\0\1", b"\0\0\1" + b"\0" * 200, b"\1\0" + b"\1" * 200]
)
def test_malformed_messages_are_left_to_the_caller(datagram: bytes) -> None:
    lines = f"theirs.send({datagram!r})\noutcome = serve()\n"
    lines += "print(outcome.received and outcome.received.datagram)"
    assert told(lines) == [repr(datagram) if datagram else "None"]
