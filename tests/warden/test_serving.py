"""What the warden does between two calls of the C of the starts, with a script in the place of the
calls. The warden is real, and the init of a namespace of its own."""

from __future__ import annotations

from tests.warden.inits import told_by_init

# The script is a list of outcomes, one for each call; ``calls`` has what the calls were asked.
INIT = r"""
import contextlib, os, select, signal, socket, sys, time
from types import SimpleNamespace
from execd.proc import program_block, spawn
from execd.proc.channel import Channel
from execd.proc.messages import NULL_DEVICE, Exited, Kill, Killed, Ping, Spawn, Spawned
from execd.warden import main as warden_main
from execd.warden.starts import EndOfCall, Outcome, Received, StartedProgram
spawn.prepare()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon = Channel(theirs)
warden = warden_main.Warden(Channel(ours), oom_score=None, former_limits=())
calls, script = [], []
state = SimpleNamespace(in_flight=[])

class Scripted:
    "In flight is what the latest outcome leaves in flight."
    has_in_flight = property(lambda self: bool(state.in_flight))
    def serve(self, until, brake, peak):
        return self._next("serve")
    def go_on(self, until, may_start=True):
        return self._next("go on" if may_start else "drain")
    def take_all(self):
        taken, state.in_flight = state.in_flight, []
        calls.append(f"take {len(taken)}")
        return taken
    def _next(self, call):
        calls.append(call)
        outcome, state.in_flight = script.pop(0)
        return outcome
warden._starts = Scripted()

def outcome(end_of_call, *, in_flight=(), **fields):
    "An outcome of the script."
    made = Outcome(EndOfCall[end_of_call], [], 0, None, 0, 0, None, has_more=False)
    script.append((made._replace(**fields), list(in_flight)))

def spawn_message(tag, line):
    block = program_block.pack(("/bin/sh", "-c", line), {}, "/")
    return Spawn(tag, block, [NULL_DEVICE] * 3, False, [], 0, f"m={tag}", None, None, None,
                 announce=False)

def datagram_of(message):
    daemon.send(message)
    return ours.recv(1 << 16)

def program(tag, line="sleep 60"):
    "A program that the C has started."
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execv("/bin/sh", ["sh", "-c", line])
    received = Received(datagram_of(spawn_message(tag, line)), [])
    return StartedProgram(received, pid, False, time.monotonic(), 0.001, None)

def job(tag, line="sleep 60"):
    "A job of the warden, young or old."
    warden._take_over(program(tag, line))
    return warden._jobs[tag]

def await_end(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def serve(until=None):
    warden._serve(time.monotonic() + 5 if until is None else until)

def make_calm():
    "No work is due but that of young jobs."
    warden._supervisor.work_beside_starts = lambda now: True

def told():
    "The messages for the daemon."
    found = []
    while select.select([theirs], [], [], 0)[0]:
        found.append(daemon.receive()[0])
    return [f"{type(each).__name__} {each.tag}" for each in found]

try:
    exec(sys.argv[1])
finally:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
"""


def told(lines: str) -> list[str]:
    """What ``lines`` print."""
    return told_by_init(INIT, lines)


def test_a_job_that_ends_beside_programs_in_flight_is_reaped_and_they_go_on() -> None:
    lines = """
ended = job(1, "exit 3")
await_end(ended.pid)
flying = program(2)
outcome("STRANGER_HAS_ENDED", in_flight=[flying], stranger=ended.pid, has_more=True)
outcome("CALLER_TAKES_ALL")
make_calm()
serve()
print(calls, told(), ended.reaped_at is not None, warden._jobs.get(2))
"""
    calls = "['serve', 'go on', 'take 0']"
    assert told(lines) == [f"{calls} ['Exited 1'] True None"]


def test_an_orphan_that_ends_beside_programs_in_flight_makes_jobs_of_them() -> None:
    lines = """
orphan = os.fork()
if orphan == 0:
    os._exit(0)
await_end(orphan)
flying = program(2)
outcome("STRANGER_HAS_ENDED", in_flight=[flying], stranger=orphan, has_more=True)
make_calm()
serve()
print(calls, warden._jobs[2].pid == flying.pid, warden._has_more_to_reap)
"""
    assert told(lines) == ["['serve', 'take 1'] True True"]


def test_programs_that_are_given_back_become_jobs_and_the_others_go_on() -> None:
    lines = """
waiting, flying = program(1), program(2)
outcome("PROGRAMS_WAIT", programs=[waiting], in_flight=[flying])
outcome("CALLER_TAKES_ALL")
make_calm()
serve()
print(calls, [each.tag for each in warden._jobs.values()])
"""
    assert told(lines) == ["['serve', 'go on', 'take 0'] [1]"]


def test_with_a_brake_of_the_starts_all_programs_become_jobs() -> None:
    lines = """
waiting, flying = program(1), program(2)
order = (10, 20)
outcome("PROGRAMS_WAIT", programs=[waiting], in_flight=[flying], brake_order=order)
serve()
print(calls, [each.tag for each in warden._jobs.values()])
"""
    assert told(lines) == ["['serve', 'take 1'] [1, 2]"]


def test_a_scan_waits_until_the_programs_in_flight_have_ended() -> None:
    lines = """
job(1)
flying = program(2)
warden._supervisor._schedule._next_watch_scan = 0.0
outcome("TIME_IS_OVER", in_flight=[flying])
outcome("TIME_IS_OVER")
serve()
print(calls, warden._jobs.get(2))
outcome("TIME_IS_OVER", in_flight=[flying])
outcome("TIME_IS_OVER", in_flight=[flying])
calls.clear()
serve()
print(calls, warden._jobs[2].pid == flying.pid)
"""
    assert told(lines) == ["['serve', 'drain', 'take 0'] None", "['serve', 'drain', 'take 1'] True"]


def test_a_young_job_is_announced_beside_programs_in_flight() -> None:
    lines = """
job(1).spawned_at -= 2 * warden._traits.announce_seconds
flying = program(2)
outcome("TIME_IS_OVER", in_flight=[flying])
outcome("CALLER_TAKES_ALL")
make_calm()
warden._startup_watch.check_due = lambda now, may_read: [1]
serve()
print(calls, told())
"""
    assert told(lines) == ["['serve', 'go on', 'take 0'] ['Spawned 1', 'StartupDone 1']"]


def test_an_end_before_a_request_to_kill_is_the_programs_own() -> None:
    """The end and the request have come within one call, the end first."""
    lines = """
ended = job(1, "exit 3")
await_end(ended.pid)
request = Received(datagram_of(Kill(1, 0.0, time.monotonic() + 60)), [])
outcome("CALLER_TAKES_ALL", received=request, has_more=True)
serve()
print(told(), ended.kill)
"""
    assert told(lines) == ["['Exited 1', 'Killed 1'] None"]


def test_beside_a_stop_no_job_is_reaped_before_the_programs_in_flight_are_jobs() -> None:
    lines = """
ended = job(1, "exit 3")
await_end(ended.pid)
flying = program(2)
outcome("STRANGER_HAS_ENDED", in_flight=[flying], stranger=ended.pid, has_more=True)
warden._supervisor._brake = SimpleNamespace(may_have_fired=True, take_stop=lambda: False)
make_calm()
warden._supervisor.brake_figures = lambda: None
serve()
print(calls, told(), warden._jobs[2].pid == flying.pid)
"""
    assert told(lines) == ["['serve', 'take 1'] [] True"]


def test_where_no_call_may_wait_a_program_in_flight_becomes_a_job_at_once() -> None:
    lines = """
state.in_flight = [program(1)]
outcome("TIME_IS_OVER", in_flight=state.in_flight)
make_calm()
serve(0.0)
print(calls, [each.tag for each in warden._jobs.values()])
"""
    assert told(lines) == ["['drain', 'take 1'] [1]"]


def test_a_start_that_comes_back_is_in_flight_and_the_next_call_goes_on() -> None:
    lines = """
flying, started = program(2), []
request = Received(datagram_of(spawn_message(2, "sleep 60")), [])
outcome("CALLER_TAKES_ALL", received=request)
warden._launcher.start = lambda request, descriptors: started.append(request.tag)
serve()
state.in_flight = [flying]
outcome("TIME_IS_OVER")
serve()
print(started, calls)
"""
    assert told(lines) == ["[2] ['serve', 'take 0', 'go on', 'take 0']"]


def test_a_scan_that_memory_calls_for_does_not_wait() -> None:
    lines = """
job(1)
flying = program(2)
outcome("TIME_IS_OVER", in_flight=[flying])
supervisor = warden._supervisor
supervisor.memory.next_sample = 0.0
supervisor.memory.sample = lambda accounts: True
serve()
print(calls, warden._jobs[2].pid == flying.pid)
"""
    assert told(lines) == ["['serve', 'take 1'] True"]
