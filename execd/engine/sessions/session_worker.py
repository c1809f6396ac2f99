"""Workers: processes of the user's interpreter in which cells run. What the daemon holds of one,
from its making to its burial.

A worker is an orphan by design (see ``warden/adoption``): forked by the zygote or by another
worker, adopted by the warden, from then on a program like any other. The daemon's word on its end
is the warden's, never end of file on a pipe and nothing that it says itself.

Owns our ends of its pipes and of its conversation. ``close`` ends all of it, tree included.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from execd.engine.executions.environment import MARKER
from execd.engine.output.pump import Pump
from execd.engine.sessions import worker_messages
from execd.engine.sessions.link import Link
from execd.model import STREAMS
from execd.proc import credential_socket
from execd.proc.rlimits import rlimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from execd.engine.sessions.link_turns import LinkTurns
    from execd.model import Limits, Stream
    from execd.proc.child import Child, Lost
    from execd.proc.client import WardenClient
    from execd.proc.messages import Exited, Measured

    Sink = Callable[[Stream, bytes], Awaitable[None] | None]
    Listener = Callable[[worker_messages.Rich | worker_messages.Done, int], bool]

# After KILL, until it is called lost although nobody has seen it end.
GONE_SECONDS = 3.0
CONFIGURE_SECONDS = 10.0


def lasting_rlimits(limits: Limits, *, in_namespace: bool) -> list[list[int]]:
    """Of a process that lives on: RLIMIT_CPU would count over its whole life, and for cells the
    warden counts."""
    return rlimits(msgspec.structs.replace(limits, cpu_seconds=None), in_namespace=in_namespace)


class WorkerLost(Exception):
    """It ended, or was ended, before it answered."""


class SessionWorker:
    """Made before there is a process: ``theirs`` goes to whoever forks it, then ``adopt``. Raises
    OSError if there are no descriptors."""

    def __init__(self, limits: Limits, turns: LinkTurns, *, drain_seconds: float) -> None:
        self.limits = limits
        self.marker_id = f"session-{secrets.token_hex(8)}"
        """Its mark in the environment of what it starts."""
        self.sink: Sink | None = None
        """Where its output goes; None: it is only counted."""
        self.listener: Listener | None = None
        """Who hears what it tells of a cell, and says whether that changes anything."""
        self.on_limit: Callable[[str], None] = lambda _: None
        self.unclaimed_bytes = 0
        """Output that came while no cell ran."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[Exited | Lost | None] = self._loop.create_future()
        """Done when it has ended and its output is read; None: it was killed, and nobody has seen
        it end."""
        self._drain_seconds = drain_seconds
        self._child: Child | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[worker_messages.Answer] | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._is_killed = False
        self._pumps: dict[Stream, Pump] = {}
        self._pipes: list[int] = []
        self._poll = select.poll()
        ours, protocol = socket.socketpair()
        self.theirs: list[int] = [protocol.detach()]
        """Its ends: protocol, stdout, stderr, greeting."""
        self._link = Link(
            ours,
            worker_messages.WorkerDecoder(),
            turns,
            self._on_claim,
            self.kill,
            before_frames=self._read_output,
        )
        try:
            for stream in STREAMS:
                read_end, write_end = os.pipe2(os.O_CLOEXEC)
                pump = self._pumps[stream] = Pump(read_end, self._appender(stream))
                pump.start()
                self._poll.register(read_end, select.POLLIN)
                self.theirs.append(write_end)
                self._pipes.append(os.fstat(write_end).st_ino)
            wardens, workers = credential_socket.make_pair()
            self._greeting = wardens.detach()
            self.theirs.append(workers.detach())
        except OSError:
            self._close_ours()
            raise

    @property
    def marker(self) -> str:
        return f"{MARKER}={self.marker_id}"

    @property
    def pid(self) -> int | None:
        """As user code sees it."""
        return self._child.pid if self._child is not None else None

    @property
    def fault(self) -> str | None:
        """What it did wrong, if that is why it was ended."""
        return self._link.fault

    @property
    def is_ending(self) -> bool:
        """It has ended, or was told to; ``gone`` tells when it has. Whatever it is given now is
        lost with it."""
        return self._is_killed or self.gone.done()

    def _appender(self, stream: Stream) -> Callable[[bytes], Awaitable[None] | None]:
        def append(data: bytes) -> Awaitable[None] | None:
            if self.sink is not None:
                return self.sink(stream, data)
            self.unclaimed_bytes += len(data)
            return None

        return append

    async def adopt(self, warden: WardenClient, *, rests: bool = False) -> None:
        """Until it is there; ``rests``: until ``wake`` it runs no user code.

        Raises SpawnError, WardenLost; then everything of it is closed.
        """
        try:
            self._child = await warden.adopt(
                greeting=self._greeting,
                marker=self.marker,
                pipes=self._pipes,
                processes=self.limits.processes or 0,
                memory_bytes=self.limits.memory_bytes or 0,
                cpu_seconds=self.limits.cpu_seconds or 0,
                on_limit=lambda limit, _: self.on_limit(limit),
                rests=rests,
            )
        except BaseException:
            self._close_ours()
            raise
        self._watch = asyncio.create_task(self._close_soon(self._child), name="worker")
        if self._is_killed:
            self._child.kill(0.0)

    def wake(self) -> None:
        if self._child is not None:
            self._child.wake()

    async def _close_soon(self, child: Child) -> None:
        await asyncio.wait((child.exited,))
        await self._link.read_rest()
        # Its tree goes with it: the next generation begins with nothing of this one.
        child.kill(0.0)
        await self._drain_output(self._drain_seconds)
        self._is_gone(child.exited.result())

    def _is_gone(self, ended: Exited | Lost | None) -> None:
        if not self.gone.done():
            self.gone.set_result(ended)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerLost())

    # Conversation.

    def send(self, frame: dict[str, Any], descriptors: list[int] | None = None) -> None:
        self._link.send(frame, descriptors)

    def _on_claim(self, claim: worker_messages.Claim, size_bytes: int) -> bool:
        if isinstance(claim, worker_messages.Answer):
            if self._answer is None or self._answer.done():
                return False  # to no question: a late one, or a lie that changes nothing
            self._answer.set_result(claim)
            return True
        return self.listener is not None and self.listener(claim, size_bytes)

    def _read_output(self) -> None:
        """What it wrote before it said what was just read comes first. One question for both pipes:
        most often there is nothing. Of one that is closed by now the answer may be another's, or an
        error, either of which is as good as "perhaps"."""
        if self.listener is not None and self._poll.poll(0):
            for pump in self._pumps.values():
                pump.drain_now()

    def read_now(self) -> None:
        """Hear what it has said by now, without waiting for the loop to say that there is
        something. Not for a listener to call."""
        self._link.read_now()

    async def ask(
        self, frame: dict[str, Any], timeout_seconds: float, descriptors: list[int] | None = None
    ) -> worker_messages.Answer:
        """Its answer. One question at a time. Raises WorkerLost, also if none comes in time, for
        which it is ended."""
        if self.gone.done():
            for fd in descriptors or []:
                os.close(fd)
            raise WorkerLost
        answer = self._answer = self._loop.create_future()
        self.send(frame, descriptors)
        return await self._answered(answer, timeout_seconds)

    async def hear(self, timeout_seconds: float) -> worker_messages.Answer:
        """What it says of its own accord: a branch its ``ready``. As ``ask`` otherwise; call it
        before it can have spoken."""
        answer = self._answer = self._loop.create_future()
        return await self._answered(answer, timeout_seconds)

    async def rehearse(self, configuration: dict[str, Any]) -> None:
        """Have it do once what every session begins with: the first time, each page that is written
        to must be copied from the zygote's.

        A cell of no consequence, which leaves no name and no number behind. Raises WorkerLost.
        """
        await self.ask(configuration, CONFIGURE_SECONDS)
        answer = self._answer = self._loop.create_future()

        def take(_claim: worker_messages.Rich | worker_messages.Done, _size_bytes: int) -> bool:
            if not answer.done():
                answer.set_result(worker_messages.Configured())
            return True

        self.listener = take
        try:
            self.send(
                {
                    "type": "execute",
                    "id": 0,
                    "code": "None",
                    "allow_input": False,
                    "store_history": False,
                }
            )
            await self._answered(answer, CONFIGURE_SECONDS)
        finally:
            self.listener = None

    async def _answered(
        self, answer: asyncio.Future[worker_messages.Answer], timeout_seconds: float
    ) -> worker_messages.Answer:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            self.kill()
            raise WorkerLost from None
        finally:
            self._answer = None

    # Output and end.

    async def take_rest(self) -> None:
        """Until what was read when it last spoke is in its log, and what a slow disk left in the
        pipes as well."""
        for pump in self._pumps.values():
            await pump.take_rest()

    async def _drain_output(self, timeout_seconds: float) -> None:
        """It has ended: read what it has written, until the pipes are closed or the time is
        over."""
        for pump in self._pumps.values():
            await pump.take_rest()
            pump.drain_now()
            await pump.take_rest()
        unfinished = [pump.ended for pump in self._pumps.values() if not pump.ended.done()]
        if unfinished:
            await asyncio.wait(unfinished, timeout=timeout_seconds)

    def interrupt(self) -> None:
        self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        if self._child is not None:
            self._child.signal(number, scope="leader")

    async def memory_bytes(self) -> int:
        """Of its tree: an upper bound, since pages that it shares with the zygote count in full."""
        if self._child is None or self.gone.done():
            return 0
        measuring = self._child.measure()
        await asyncio.wait((measuring, self.gone), return_when=asyncio.FIRST_COMPLETED)
        return measuring.result().tree_bytes if measuring.done() else 0

    def count_anew(self) -> asyncio.Future[Measured]:
        """Have the warden begin a new count of what it uses, and say what the last one came to.
        Never done if it is gone first."""
        assert self._child is not None
        return self._child.measure(anew=True)

    def kill(self) -> None:
        """End it and its tree. ``gone`` tells when."""
        self._is_killed = True
        if self._child is not None and not self.gone.done():
            self._child.kill(0.0)
            if self._give_up is None:
                self._give_up = self._loop.call_later(GONE_SECONDS, self._is_gone, None)

    async def close(self) -> None:
        """End it and all that it started, and let go of it."""
        child, watch = self._child, self._watch
        if child is not None and watch is not None:
            self.kill()
            await asyncio.wait((self.gone,))
            await asyncio.wait((child.killed,), timeout=GONE_SECONDS)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            child.release()
        if self._give_up is not None:
            self._give_up.cancel()
        for pump in self._pumps.values():
            await pump.take_rest()
        self._close_ours()

    def _close_ours(self) -> None:
        while self.theirs:  # nobody was asked to fork it
            os.close(self.theirs.pop())
        self._link.close()
        for pump in self._pumps.values():
            pump.close()
