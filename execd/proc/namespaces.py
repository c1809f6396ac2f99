"""How the warden is started: in namespaces of its own, or as a plain child where these are refused.

The shapes, by what the kernel allows this daemon:

  unprivileged    user + PID namespace, then a mount namespace; the daemon's own uid and gid map to
                  themselves.
  root, SYS_ADMIN PID and mount namespace; no user namespace is needed, so ids stay as they are.
  root, without   user + PID + mount namespace; the whole range of ids is mapped, written from
                  outside since a process may map only its own id from within (user_namespaces(7)).
  refused         nothing: default runc masks /proc, some hosts forbid user namespaces. The same
                  warden as a subreaper.

Inside, /proc is fresh and the state dir lies under a small read-only tmpfs that holds only ``bin``
(the links named python and python3). Where the kernel lets user code change inherited mounts
(gVisor), user code gets no user namespaces (``change_root`` in _spawn.c). Set-up is all or nothing:
a warden with half its walls would be reported as one with all.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from execd.proc import self_process, spawn

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

CAP_SYS_ADMIN = 21
_WHOLE_RANGE = "0 0 4294967295"

# -I: nothing of the environment or the user's site; -S: no site-packages scan, which is most of an
# interpreter's start.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from {} import main; main()"


class View(NamedTuple):
    """What user code finds in place of the state dir."""

    state_dir: str
    bin_dir: str
    links: Mapping[str, str]
    """Name in ``bin_dir`` -> target."""


class Started(NamedTuple):
    pid: int
    """As the daemon sees it."""
    shape: str
    """``user+pid+mount``, ``pid+mount`` or ``none``."""
    refusal: str | None
    """Why there are no namespaces: the step that failed, and its error."""
    failed_pid: int | None = None
    """The child of the attempt that was refused: it is ending, and somebody must reap it."""


def _plan() -> tuple[str, int, spawn.IdMaps | None]:
    if os.geteuid() != 0:
        maps = spawn.IdMaps(
            f"{os.geteuid()} {os.geteuid()} 1", f"{os.getegid()} {os.getegid()} 1", True
        )
        return "user+pid+mount", spawn.CLONE_NEWUSER | spawn.CLONE_NEWPID, maps
    if self_process.capabilities("CapEff") >> CAP_SYS_ADMIN & 1:
        return "pid+mount", spawn.CLONE_NEWPID, None
    return (
        "user+pid+mount",
        spawn.CLONE_NEWUSER | spawn.CLONE_NEWPID,
        spawn.IdMaps(_WHOLE_RANGE, _WHOLE_RANGE, False),
    )


def start(end: socket.socket, view: View, policy: str, module: str) -> Started:
    """Start a warden on the other end of a socket pair. ``policy``: auto, require or off (see
    config). ``module``: whose ``main`` is the warden's program.

    Blocks for milliseconds. Raises OSError if no warden can be started, with ``require`` also if no
    namespaces can be had. A child whose set-up failed is left for the daemon's reaper:
    ``failed_pid``, or the raised error's ``pid``.
    """
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module), package_root]
    env = {"LANG": "C.UTF-8"}
    refusal, failed_pid = "switched off", None
    if policy != "off":
        shape, flags, maps = _plan()
        try:
            pid = spawn.clone(
                argv=argv,
                env=env,
                socket=end.fileno(),
                clone_flags=flags,
                id_maps=maps,
                unshare_mounts=True,
                covers=[view.state_dir],
                cover_dirs=[view.bin_dir],
                cover_links=[
                    (os.path.join(view.bin_dir, name), target)
                    for name, target in view.links.items()
                ],
            )
        except spawn.StepFailed as error:
            if policy == "require":
                raise
            refusal, failed_pid = f"{error.step}: {error.strerror}", error.pid
        else:
            return Started(pid, shape, None)
    pid = spawn.clone(
        argv=argv,
        env=env,
        socket=end.fileno(),
        clone_flags=0,
        id_maps=None,
        unshare_mounts=False,
        covers=[],
        cover_dirs=[],
        cover_links=[],
    )
    return Started(pid, "none", refusal, failed_pid)
