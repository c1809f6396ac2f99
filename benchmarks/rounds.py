"""Rounds: each starts all subjects afresh, then measures figure after figure for all in turn,
within seconds. So the drift of the machine hits all alike, and the ratios of a round mean
something."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import figures, scenarios, usage
from benchmarks.client import Silence
from benchmarks.scenarios import Bench
from benchmarks.subjects import Running, Subject, Unusable, running
from benchmarks.wires import UnexpectedReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Found
    from benchmarks.servers import Place

Scenario = Callable[[Bench], None]
IDLE_CPU_SECONDS, IDLE_WITHIN_SECONDS = 0.05, 15.0
"""A subject is idle when its processes use less CPU than this in a second."""
REST_SECONDS = 4.0
ORDINARY: list[tuple[str, Scenario]] = [
    ("true", partial(scenarios.loop, command="true", seconds=1.5)),
    ("ls", partial(scenarios.loop, command="ls", seconds=1.0)),
    ("agent", scenarios.agent),
    *((f"{n} connections", partial(scenarios.crowd, count=n)) for n in figures.CONNECTIONS),
    ("health", scenarios.health),
    ("health beside mixed commands", scenarios.health_beside_mixed),
    ("outputs", scenarios.outputs),
]
OF_SESSIONS: list[tuple[str, Scenario]] = [
    ("sessions", scenarios.sessions),
    ("logs", scenarios.logs),
]
LAST: list[tuple[str, Scenario]] = [("live executions", scenarios.live_executions)]


@dataclass
class Run:
    place: Place
    subjects: Sequence[Subject]
    found: Found
    scale: float = 1.0
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""

    def measure_round(self, number: int) -> None:
        self.found.round = number
        turn = number % len(self.subjects)
        order = [*self.subjects[turn:], *self.subjects[:turn]]
        with ExitStack() as ends:
            benches = [
                Bench(server, self.found, self.place.runsc is not None, self.scale)
                for subject in order
                if (server := self._start(subject, ends)) is not None
            ]
            _wait_idle([each.running for each in benches])
            self._rest(benches)
            self._do("pages", scenarios.pages, benches)
            working = [
                each
                for each in benches
                if not each.running.subject.rests
                and self._attempt("a first command", scenarios.check, each)
            ]
            for name, scenario in ORDINARY:
                self._do(name, scenario, working)
                working = working[1:] + working[:1]
            for name, scenario in OF_SESSIONS:
                self._do(name, scenario, [b for b in working if b.running.subject.has_sessions])
            for name, scenario in LAST:
                self._do(name, scenario, working)

    def _start(self, subject: Subject, ends: ExitStack) -> Running | None:
        try:
            server = ends.enter_context(running(subject, self.place))
        except Unusable as reason:
            self._note(f"{subject.name}: {reason}")
            return None
        if server.start_seconds is not None:
            self.found.keep(subject.name, "start ms", server.start_seconds * 1000)
        return server

    def _rest(self, benches: Sequence[Bench]) -> None:
        """Of all subjects in the same period."""
        measured = [(each, each.running.pid) for each in benches if each.running.pid]
        before = [usage.read(pid) for _, pid in measured if pid]
        seconds = REST_SECONDS * self.scale
        time.sleep(seconds)
        for (bench, pid), reading in zip(measured, before, strict=True):
            assert pid is not None
            used = usage.used(reading, usage.read(pid))
            bench.keep("rest cpu_percent", used.own_seconds * 100 / seconds)
            if not bench.in_gvisor:
                bench.keep("rest wakeups", used.waits * 60 / seconds)
                bench.keep("rest rss_mib", usage.resident_mib(pid))
                bench.keep("rest pss_mib", usage.proportional_mib(pid))

    def _do(self, name: str, scenario: Scenario, benches: Sequence[Bench]) -> None:
        began = time.monotonic()
        for each in benches:
            self._attempt(name, scenario, each)
        print(f"  {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def _attempt(self, name: str, scenario: Scenario, bench: Bench) -> bool:
        """A subject that fails is noted, and the other subjects go on."""
        try:
            scenario(bench)
        except (UnexpectedReply, Silence, OSError) as error:
            said = str(error) or "no answer in time"
            self._note(f"{bench.running.subject.name}, {name}: {said}")
            return False
        return True

    def _note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if text not in self.notes:
            self.notes.append(text)


def _wait_idle(servers: Sequence[Running]) -> None:
    """Return when no subject still works after its start: a zygote, a pool of workers."""
    pids = [each.pid for each in servers if each.pid]
    deadline = time.monotonic() + IDLE_WITHIN_SECONDS
    before = [usage.read(pid) for pid in pids]
    while time.monotonic() < deadline:
        time.sleep(1.0)
        after = [usage.read(pid) for pid in pids]
        seconds = [usage.used(*each).own_seconds for each in zip(before, after, strict=True)]
        if max(seconds, default=0.0) < IDLE_CPU_SECONDS:
            return
        before = after
    print("a subject does not become idle; it is measured all the same", file=sys.stderr)
