"""Signals to a tree: to the leader's process group by number, and to members that a scan has shown.

The number of a process or group may be reused once the process is reaped. So a group is signaled by
number without a scan only while the leader is not reaped (``signal_leader_group``). The other
functions signal only pids that the scan has just shown to be members.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from execd.proc.messages import CellKilled, Killed
from execd.warden.job import send_signal
from execd.warden.tree_kill import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from execd.proc.process_tree import Process
    from execd.warden.job import Job
    from execd.warden.tree_kill import Send


def signal_leader_group(job: Job) -> None:
    """Send the signals of the kill's phase to the leader's group, unless the leader is reaped."""
    assert job.kill is not None
    if job.reaped_at is None:
        for number in job.kill.signals:
            send_signal(-job.pid, number)
        if job.kill.phase is Phase.KILLING:
            job.kill.killed.add(job.pid)


def send_waiting_signals(job: Job, scan_began: float, members: Collection[Process]) -> None:
    """Send the signals that the daemon asked for before the scan of ``members`` began."""
    for (number, scope, mark), asked_at in list(job.signals.items()):
        if asked_at >= scan_began:
            continue
        del job.signals[number, scope, mark]
        match scope:
            case "cell":
                reached = [one for one in job.find_of_cell(mark, members) if one.group == job.pid]
            case "group":
                reached = [one for one in members if one.group == job.pid]
            case "session":
                reached = [one for one in members if one.session == job.session]
            case _:
                reached = list(members)
        for process in reached:
            if not process.is_dead:
                send_signal(process.pid, number)


def advance_kill(job: Job, send: Send | None, alive: list[Process]) -> Killed | None:
    """Do what the kill of the job's tree calls for after a scan. Returns the report that is due.

    ``send``: of ``TreeKill.record_scan``; None: the kill is over. ``alive``: the living members.
    """
    kill = job.kill
    assert kill is not None
    if send is not None:
        send_kill_signals(kill.phase, send, alive)
    elif job.reaped_at is not None:
        # A leader that is dead but not reaped yet keeps the kill: the loop's next turn reaps the
        # leader, and so Killed comes after Exited.
        job.kill = None
    if kill.is_reported or (job.kill is not None and not kill.survivors):
        return None
    kill.is_reported = True
    return Killed(job.tag, len(kill.killed), list(kill.survivors))


def advance_cell_kill(
    job: Job, mark: int, send: Send | None, alive: list[Process], members: list[Process]
) -> CellKilled | None:
    """As ``advance_kill``, for a cell. ``alive``: the cell's processes."""
    kill = job.cell_kills[mark]
    if send is None:
        del job.cell_kills[mark]
    else:
        spared = [member for member in members if member not in alive]
        send_kill_signals(kill.phase, send, alive, spared)
    if kill.is_reported or (send is not None and not kill.survivors):
        return None
    kill.is_reported = True
    return CellKilled(job.tag, mark, len(kill.killed), list(kill.survivors))


def send_kill_signals(
    phase: Phase, send: Send, alive: Iterable[Process], spared: Iterable[Process] = ()
) -> None:
    """Send the signals of a kill. ``alive``: the living processes to end, as in the scan.
    ``spared``: members of the tree that live on."""
    if phase is Phase.KILLING:
        # Whole groups first: Linux signals a group in one step, in which no member forks. A bomb
        # that is signaled pid by pid forks on. A group with a member in the scan is the job's,
        # since no process joins a group of another session.
        own = {0, 1, os.getpgrp(), *(process.group for process in spared)}
        for group in {process.group for process in alive} - own:
            send_signal(-group, signal.SIGKILL)
    for pid in send.pids:
        for number in send.numbers:
            send_signal(pid, number)
