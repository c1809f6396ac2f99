"""The warden's program: what the process is, and then the loop."""

from __future__ import annotations

import os
import socket
import sys

from execd.kernel import process_name
from execd.proc import self_process, spawn
from execd.proc.channel import Channel, Closed
from execd.proc.messages import Fault
from execd.warden.loop import Warden

SOCKET_FD = 3
# How long a subreaper kills leftover processes after the daemon's end.
SWEEP_SECONDS = 5.0


def main() -> None:
    """Run the warden. ``execd_clone`` leaves the socket at descriptor 3 and stderr at 2."""
    process_name.take_name(process_name.WARDEN)
    # Once, so no spawn pays for the settings.
    spawn.prepare()
    self_process.drop_capabilities()
    former_limits = self_process.refuse_queued_signals()
    oom_score = self_process.open_oom_score()
    spawn.set_undumpable()
    spawn.request_short_turns()
    is_init = os.getpid() == 1
    if not is_init:
        spawn.set_subreaper()
        self_process.refuse_unlisted_queues()
    channel = Channel(socket.socket(fileno=SOCKET_FD))
    os.set_inheritable(SOCKET_FD, False)
    # The daemon's stderr shows tracebacks until here. User code must not reach the daemon's stderr
    # (by /proc/1/fd).
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    try:
        Warden(channel, oom_score=oom_score, former_limits=former_limits).run()
    except Exception as error:  # report the error; the daemon starts a new warden
        import traceback

        try:
            channel.send(Fault("".join(traceback.format_exception(error))[-4000:]))
        except (Closed, OSError):
            pass  # the daemon is gone too; the sweep must come all the same
    if not is_init:
        self_process.sweep(SWEEP_SECONDS)
    sys.exit(0)
