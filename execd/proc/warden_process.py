"""The life of a warden's process: start, pings, SIGCONT, loss, end.

Owners. ``WardenClient`` owns at most one ``WardenProcess`` and creates a new one after each loss.
Only the ``Reaper`` waits for the process and knows whether the pid may still be signaled.

Rest. While no user code lives, the daemon sends no pings: the Pong says that nothing happens below
the warden until the next request. The next request ends the rest, so a warden that hangs in a rest
is found as soon as a request waits for the warden.

Loss. A warden is lost when its socket closes (user code may kill the warden), when the warden
breaks the protocol, or when the warden answers no ping for ``dead_seconds``. A stopped warden is
not dead: the kernel reports the stop and the daemon sends SIGCONT at once, and again with each ping
after an unanswered ping.

End. KILL, then wait until the kernel has reaped the process. In a PID namespace the death of the
warden, the init, kills every process inside, and the kernel reports the death of the init last.
Without a namespace the daemon is a subreaper (``namespaces.start``) and kills the processes that
the warden leaves behind.

What can race.

* Start against close. A thread starts the process and cannot be interrupted. If the cancellation
  comes first, ``start`` waits for the thread and notes the process before the cancellation goes on.
  If the thread is done first, the process is noted already. In both orders ``end`` finds the
  process.
* SIGKILL against the reuse of the pid. ``Reaper.send_signal`` signals only a child that nobody has
  reaped, and the kernel keeps the pid of such a child.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import time
from typing import TYPE_CHECKING

from execd.proc import self_process, spawn
from execd.proc.loop_channel import LoopChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from execd.proc.memory_stand_in import MemoryStandIn
    from execd.proc.messages import Message
    from execd.proc.namespaces import Started
    from execd.proc.reaper import Reaper

log = logging.getLogger(__name__)

# The time for a sweep of the processes that a warden without namespaces leaves behind.
SWEEP_SECONDS = 5.0
# The time for the kernel to end a killed warden, and for the reaper to collect the process.
REAP_SECONDS = 10.0
# A crowd of this many tasks more than at the warden's start can starve the warden of CPU time. Then
# the warden may be silent for STARVED_FACTOR times as long.
STARVING_TASKS, STARVED_FACTOR = 64, 6.0
# After a ping has stayed unanswered for this long the daemon watches memory itself. A freeze of a
# fork bomb in gVisor silences the warden for about 0.2 s.
PATIENCE_SECONDS = 0.5
# The pause between two SIGCONT to a warden that user code stops again and again.
CONTINUE_SECONDS = 0.02


class WardenProcess:
    """A warden's process. ``start`` and ``end`` bracket its life."""

    def __init__(
        self,
        reaper: Reaper,
        stand_in: MemoryStandIn,
        *,
        ping_seconds: float,
        dead_seconds: float,
    ) -> None:
        """``stand_in`` watches memory while the warden is stopped or silent."""
        self.started: Started | None = None
        self._loop = asyncio.get_running_loop()
        self._reaper = reaper
        self._stand_in = stand_in
        self._ping_seconds = ping_seconds
        self._dead_seconds = dead_seconds
        self._channel: LoopChannel | None = None
        self._usual_tasks = 0
        self._spared: frozenset[int] | None = None
        """Without a namespace: the descendants of the daemon that are older than the warden's first
        program. None before ``start`` is complete, when no program runs."""
        self._patience: asyncio.TimerHandle | None = None
        self._continuing: asyncio.TimerHandle | None = None
        self._continued_at = -math.inf
        self._is_quiet = False
        """The warden's answer to the latest ping; see ``Pong``."""
        self.is_resting = False
        """No pings are sent, because the warden is quiet."""

    async def start(
        self,
        launch: Callable[[socket.socket], Started],
        on_message: Callable[[Message], None],
    ) -> LoopChannel:
        """Start the process; return the channel to it, which ``end`` closes.

        ``launch`` gets the warden's end of the socket pair and runs in a thread: it blocks until
        the exec, about 50 ms in gVisor. For ``on_message`` see ``LoopChannel``. Raises OSError if
        no process can be started.
        """
        assert self.started is None, "a WardenProcess starts once"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                await self._start_process(launch, theirs)
            self._channel = LoopChannel(self._loop, ours, on_message)
        except BaseException:
            ours.close()
            raise
        return self._channel

    async def _start_process(
        self, launch: Callable[[socket.socket], Started], end: socket.socket
    ) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(launch, end))
        cancellation: asyncio.CancelledError | None = None
        try:
            await asyncio.wait((starting,))
        except asyncio.CancelledError as error:
            # The thread works with ``end``, and the caller closes ``end``: wait for the thread.
            cancellation = error
            await asyncio.wait((starting,))
        failure = starting.exception()
        if isinstance(failure, spawn.StepFailed) and failure.pid is not None:
            await self._reaper.collect(failure.pid, REAP_SECONDS)
        if failure is None:
            self.started = starting.result()
            self._reaper.watch(self.started.pid, self._on_stopped)
        if cancellation is not None:
            raise cancellation
        if failure is not None:
            raise failure
        assert self.started is not None
        self._usual_tasks = spawn.count_tasks()
        if self.started.failed_pid is not None:
            await self._reaper.collect(self.started.failed_pid, REAP_SECONDS)
        if self.started.shape == "none":
            descendants = await asyncio.to_thread(self_process.descendants, SWEEP_SECONDS)
            self._spared = frozenset(process.pid for process in descendants) - {self.started.pid}

    async def watch(
        self,
        send_ping: Callable[[], None],
        on_missed_ping: Callable[[], None],
        record_lag: Callable[[float], None],
    ) -> str:
        """Ping, or rest, until the warden is lost; return the reason.

        ``record_lag`` gets the seconds by which the event loop is late after each wait.

        What can race: a Pong says that the warden is quiet, and a request follows the ping. If the
        request is sent before the Pong comes, ``was_used`` is set, and the pings go on. If the
        Pong comes first, the rest begins, and the request ends the rest.

        Silence is the sum of the waits, not a difference of clock times: a paused pod (a snapshot,
        a frozen cgroup) moves the clock by minutes while the daemon waited for nothing.

        A silent warden beside a crowd of new processes is starved rather than dead: the warden is
        about to end a fork bomb, and the death of the warden would end the bomb's neighbours too.
        So a starved warden may be silent STARVED_FACTOR times as long.
        """
        channel = self._channel
        assert channel is not None, "watch() runs between start() and end()"
        silent_seconds = 0.0
        while silent_seconds < self._dead_seconds or (
            silent_seconds < self._dead_seconds * STARVED_FACTOR
            and spawn.count_tasks() > self._usual_tasks + STARVING_TASKS
        ):
            channel.has_received = self._is_quiet = False
            send_ping()
            channel.was_used.clear()
            if silent_seconds == 0.0:
                # A timer from the first unanswered ping. A timer from each ping would take a ping
                # of a moment ago for silence, where several pings fit into PATIENCE_SECONDS.
                if self._patience is not None:
                    self._patience.cancel()
                self._patience = self._loop.call_later(PATIENCE_SECONDS, self._on_silence, channel)
            else:
                self.send_signal(signal.SIGCONT)
            pause = min(
                self._ping_seconds, max(self._dead_seconds - silent_seconds, self._dead_seconds / 2)
            )
            assert pause > 0.0, "silence would never add up"
            due = time.monotonic() + pause
            try:
                async with asyncio.timeout(pause):
                    await channel.lost.wait()
                return "its socket closed"
            except TimeoutError:
                record_lag(max(0.0, time.monotonic() - due))
                if channel.has_received:
                    silent_seconds = 0.0
                    if self._is_quiet:
                        self.is_resting = True
                        await channel.was_used.wait()
                        self.is_resting = False
                else:
                    silent_seconds += pause
                    on_missed_ping()
        return "it did not answer"

    def record_pong(self, *, is_quiet: bool) -> None:
        """Take note of the answer to the latest ping."""
        self._is_quiet = is_quiet

    def send_signal(self, number: int) -> None:
        """Signal the warden, unless the warden has not started or has been reaped."""
        if self.started is not None:
            self._reaper.send_signal(self.started.pid, number)

    async def end(self, reason: str, until: float) -> tuple[int, ...]:
        """Kill the warden and wait for the end; return the pids of processes that live on.

        ``until``: a time of the loop's clock at which the wait ends in any case. A second call
        continues after a call that was cancelled.
        """
        for timer in (self._patience, self._continuing):
            if timer is not None:
                timer.cancel()
        self._continuing = None
        channel, self._channel = self._channel, None
        if channel is not None:
            assert self.started is not None, "the channel comes after the process"
            channel.close()
        if self.started is None:
            return ()
        survivors: tuple[int, ...] = ()
        pid = self.started.pid
        self._reaper.send_signal(pid, signal.SIGKILL)
        if not await self._reaper.wait_gone(pid, min(REAP_SECONDS, until - self._loop.time())):
            survivors = (pid,)
            log.error("warden cannot be killed", extra={"warden_pid": pid, "reason": reason})
        if self._spared is not None:
            sweep_seconds = max(0.0, min(SWEEP_SECONDS, until - self._loop.time()))
            survivors += await asyncio.to_thread(self_process.sweep, sweep_seconds, self._spared)
        return survivors

    def _on_stopped(self) -> None:
        """Continue the warden that user code has stopped, which gVisor allows.

        The first SIGCONT goes out at once. A flood of stops is answered once in CONTINUE_SECONDS.
        """
        assert self.started is not None, "the reaper watches a started process"
        self._stand_in.begin()
        if self._continuing is None:
            pause = max(0.0, self._continued_at + CONTINUE_SECONDS - self._loop.time())
            self._continuing = self._loop.call_later(pause, self._continue)

    def _continue(self) -> None:
        self._continuing = None
        self._continued_at = self._loop.time()
        self.send_signal(signal.SIGCONT)

    def _on_silence(self, channel: LoopChannel) -> None:
        if not channel.has_received:
            self._stand_in.begin()
