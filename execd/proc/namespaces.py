"""The start of the warden: in namespaces of its own, or as a plain child where the kernel refuses
them.

The shapes, by the rights of the daemon:

  unprivileged     user + PID namespace, then a mount namespace; the daemon's own uid and gid map to
                   themselves.
  root, SYS_ADMIN  PID and mount namespace. No user namespace is needed, so ids stay unchanged.
  root, without    user + PID + mount namespace. The whole range of ids is mapped, written from
                   outside because a process may map only its own id from within
                   (user_namespaces(7)).
  refused          no namespaces: default runc masks /proc, some hosts forbid user namespaces. The
                   same warden runs as a subreaper, below the daemon as a subreaper.

Inside the namespaces /proc is fresh, and the state dir lies under a small read-only tmpfs with
nothing but ``bin`` (the links named python and python3). A tree (``own_tree``) is read-only, and
the directories above keep their names. An empty tmpfs lies over GVISOR_DIR. Where the kernel lets
user code change inherited mounts, or has a GVISOR_DIR, user code gets no user namespaces
(``change_root`` in _spawn.c). The set-up is all or nothing: with half of the walls, execd would
report walls that are not there.

What programs leave in the kernel by a name ends with the warden too: System V objects and POSIX
queues belong to an IPC namespace, and /dev/shm is a tmpfs of the warden's, as large as the
container's. So a volume that the platform mounts at /dev/shm lends its size alone, and a sidecar
shares files with user code at another path. The container's /dev/shm stays where the base dir, the
state dir or the tree lies in it.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from execd import own_tree
from execd.proc import self_process, spawn

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

CAP_SYS_ADMIN = 21
GVISOR_DIR = "/proc/gvisor"
"""A gVisor of 2026 shows the environment of the pod here, for the daemon (``spec_environment``) and
not for user code."""
SHM, QUEUES = "/dev/shm", "/dev/mqueue"
_WHOLE_RANGE = "0 0 4294967295"
_FLAGS = spawn.CLONE_NEWPID | spawn.CLONE_NEWIPC

# -I: ignore the environment and the user's site. -S: no scan of site-packages, the largest part of
# the start of an interpreter.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from {} import main; main()"


class View(NamedTuple):
    """The view of user code in place of the state dir."""

    state_dir: str
    bin_dir: str
    links: Mapping[str, str]
    """Name in ``bin_dir`` -> target."""
    uid: int | None = None
    """The user of user code; None: the daemon's."""
    base_dir: str = "/"
    """Where commands begin: stays in sight."""


class Started(NamedTuple):
    """A started warden."""

    pid: int
    """In the daemon's PID namespace."""
    shape: str
    """``user+pid+mount``, ``pid+mount`` or ``none``."""
    refusal: str | None
    """The reason for the lack of namespaces: the failed step and its error. None with
    namespaces."""
    has_own_shm: bool = False
    """Whether the files of /dev/shm end with the warden."""
    failed_pid: int | None = None
    """The child of the refused attempt: the child is ending, and the caller must have the child
    reaped."""


def plan() -> tuple[str, int, Mapping[str, str]]:
    """Return the shape, the flags of clone(2) and the id maps for this daemon's rights."""
    if os.geteuid() != 0:
        maps = {
            "setgroups": "deny",
            "gid_map": f"{os.getegid()} {os.getegid()} 1",
            "uid_map": f"{os.geteuid()} {os.geteuid()} 1",
        }
        return "user+pid+mount", spawn.CLONE_NEWUSER | _FLAGS, maps
    if self_process.capabilities("CapEff") >> CAP_SYS_ADMIN & 1:
        return "pid+mount", _FLAGS, {}
    return (
        "user+pid+mount",
        spawn.CLONE_NEWUSER | _FLAGS,
        {"gid_map": _WHOLE_RANGE, "uid_map": _WHOLE_RANGE},
    )


def _own_mounts(view: View, tree: str | None) -> list[tuple[str, str, str]]:
    mounts = []
    in_sight = [os.path.realpath(path) for path in (view.state_dir, view.base_dir, tree) if path]
    if os.path.isdir(SHM) and not any(f"{path}/".startswith(f"{SHM}/") for path in in_sight):
        found = os.statvfs(SHM)
        size_bytes = found.f_blocks * found.f_frsize if os.path.ismount(SHM) else 0
        size = f",size={size_bytes}" if size_bytes else ""
        mounts.append(("tmpfs", SHM, f"mode=1777{size}"))
    if os.path.ismount(QUEUES):
        mounts.append(("mqueue", QUEUES, ""))
    return mounts


def start(end: socket.socket, view: View, policy: str, module: str) -> Started:
    """Start a warden with ``end`` as its socket.

    ``policy``: auto, require or off (see config). ``module``: the module with the warden's
    ``main``.

    Without namespaces this process becomes a subreaper for good.

    Blocks for milliseconds, or longer for a tree that user code can reach. Raises OSError if no
    warden can be started, or such a tree has changed, and with ``require`` also if the kernel
    refuses the namespaces. A child with a failed set-up is left for the daemon's reaper:
    ``failed_pid``, or the raised error's ``pid``.
    """
    assert policy in ("auto", "require", "off")
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module), package_root]
    env = {"LANG": "C.UTF-8"}
    tree = own_tree.root()
    uid = os.geteuid() if view.uid is None else view.uid
    clone = partial(spawn.clone, argv=argv, env=env, socket=end.fileno())
    refusal, failed_pid = "switched off", None
    if policy != "off":
        shape, flags, maps = plan()
        mounts = _own_mounts(view, tree)
        try:
            pid = clone(
                clone_flags=flags,
                id_maps=maps,
                unshare_mounts=True,
                mounts=mounts,
                # Who may change the tree changes what the daemon and the next warden run, outside
                # the walls.
                pinned=() if tree is None else own_tree.movable_parents(tree, uid),
                read_only=() if tree is None else (tree,),
                covers=[view.state_dir, *filter(os.path.isdir, (GVISOR_DIR,))],
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
            return Started(pid, shape, None, any(place == SHM for _, place, _ in mounts))
    if tree is not None and own_tree.is_in_reach(tree, uid):
        try:
            own_tree.check(tree)
        except OSError as error:
            raise spawn.StepFailed(
                "tree", error.errno or errno.EIO, failed_pid, error.filename, error.strerror
            ) from error
    # Before the warden exists. In gVisor 20240729 a later call skips descendants that are already
    # subreapers, as a warden is: orphans of a dead warden would go to PID 1 and outlive the sweep.
    spawn.set_subreaper()
    return Started(clone(), "none", refusal, failed_pid=failed_pid)
