"""The replies of the probes, metadata and capabilities. Pure. The engine's ``figures.py`` has
the values of the capabilities."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

# msgspec reads the annotations at run time.
from execd.model import Interpreter  # noqa: TC001


class RootReply(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon serves requests."""

    status: Literal["ok"]
    """`ok`."""
    message: str
    """The words of the python-runtime."""
    version: str
    """The version of execd."""


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The event loop runs."""

    status: Literal["ok"]
    """`ok`."""


class ReadyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a command sent now would run."""

    status: Literal["ok", "unavailable"]
    """`unavailable`: no command would run; `cause` says why. The HTTP status is 503 then."""
    cause: Literal["draining", "checkpoint", "reset", "warden", "shell"] | UnsetType = UNSET
    """`draining`: the daemon is about to end. `checkpoint`: the checkpoint of
    `--checkpoint-at-start` is being made. `reset`: a reset is under way. `warden`: the daemon
    restarts its warden. `shell`: `/bin/sh` is missing, or cannot be executed. Absent: commands
    run."""
    sessions_refused: str | UnsetType = UNSET
    """The cause why the interpreter cannot serve sessions. Absent: sessions are not refused."""


class HealthReply(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon can run commands."""

    status: Literal["ok"]
    """`ok`."""
    uptime_seconds: int
    """The age of the daemon, in whole seconds."""


class MetadataReply(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of the sandbox."""

    env: dict[str, str]
    """The variables of the daemon that begin with `SANDBOX_` and do not look secret."""


class EnvironmentCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The variables that commands and sessions have from the environment of the daemon."""

    image_env: bool
    """The setting `--image-env`: whether commands see the environment of the image."""
    passed: list[str]
    """The names of the variables that are passed on, in order."""


class RefusalReply(msgspec.Struct, frozen=True, kw_only=True):
    """Why an interpreter cannot serve sessions."""

    cause: str
    """The cause in a word, for example `no_ipython`."""
    message: str
    """The reason in words."""


class SessionCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of sessions."""

    mode: Literal["eager", "lazy", "off"]
    """The setting `--sessions`."""
    ready: bool
    """Whether the zygote runs, so that sessions start at once."""
    trouble: str | None
    """Why there is no zygote; null: no trouble."""
    refused: RefusalReply | None
    """Why the interpreter cannot serve sessions; null: nothing is known against it."""
    restarts: int
    """How often the daemon replaced the zygote."""
    interpreter: Interpreter
    """The Python that serves the sessions; before the first zygote is ready, the Python that is
    tried."""
    python: str | UnsetType = UNSET
    """The version of Python. Absent before the first zygote is ready."""
    ipython: str | UnsetType = UNSET
    """The version of IPython. Absent before the first zygote is ready."""
    import_seconds: float | UnsetType = UNSET
    """How long the zygote imported IPython and the modules of `--preload`. Absent before the first
    zygote is ready."""
    warnings: list[str] | UnsetType = UNSET
    """Modules of `--preload` that failed, and threads that run in no session. Absent before the
    first zygote is ready."""


class PodMemoryCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guard of the memory of the pod."""

    guarded: bool
    """Whether execd ends the largest tree before the memory of the pod is gone."""
    source: Literal["setting", "cgroup", "machine", "node", "off", "unknown"]
    """Where the size comes from. node: gVisor shows no limit of the pod, so this is all memory that
    gVisor shows."""
    size_bytes: int | None
    """The memory of the pod; null: not known."""
    reserve_bytes: int | None
    """The part that stays free; null: not known."""


class VolumeCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guard of a directory."""

    guarded: bool
    """Whether execd ends the command that fills the directory."""
    limit_bytes: int | None
    """What the directory may hold; null: no guard."""
    reserve_bytes: int | None
    """The part of the limit that stays free; null: no guard."""
    used_bytes: int | None
    """The estimate at the last look; null before the first look."""


class DiskCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guards of directories."""

    base_dir: VolumeCapabilities
    """The base dir."""
    tmp_dir: VolumeCapabilities
    """The directory `/tmp`."""


class CommandCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of commands at once, and the commands now."""

    shell: bool
    """Whether the image has a shell, `/bin/sh`. Without a shell `argv` and lines of plain words
    run."""
    cpus: float
    """The CPUs that execd counts with."""
    max_running: int
    """How many commands run at once."""
    max_starting: int
    """How many commands may be in their first moments at once."""
    starting_seconds: float
    """How long the first moments of a command last."""
    running: int
    """Commands that run now."""
    queued: int
    """Commands that wait now."""


class Protections(msgspec.Struct, frozen=True, kw_only=True):
    """The protections that hold here."""

    daemon_invisible: bool
    """User code cannot see the daemon among the processes."""
    daemon_unkillable: bool
    """User code cannot signal the daemon."""
    daemon_environment_unreadable: bool
    """User code cannot read the environment of the daemon."""
    state_dir_unreadable: bool
    """User code cannot read the state dir."""
    nothing_survives_the_warden: bool
    """All user code ends with the warden."""
    tree_unchangeable: bool | UnsetType = UNSET
    """User code cannot change the tree with the files of execd. Absent where there is no tree."""


class InstanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The life of the daemon. A restore from a checkpoint begins another life."""

    id: str
    """Another id after each start and after each restore: what a caller knows of executions and
    sessions may be gone."""
    restores: int
    """How often the daemon was restored from a checkpoint."""


class CapabilitiesReply(msgspec.Struct, frozen=True, kw_only=True):
    """What execd found on this kernel, and which protections hold."""

    instance: InstanceFacts
    """The life of the daemon."""
    namespaces: bool
    """Whether user code runs in namespaces of its own."""
    namespace_shape: str
    """The namespaces in use; `none`: user code runs below a subreaper."""
    namespaces_refused: str | None
    """The step that was refused; null: none was."""
    uid: int
    """The user of the daemon."""
    run_as_uid: int | None
    """The user of commands and files with `--run-as`; null: that of the daemon."""
    root_capabilities: list[str]
    """The capabilities of commands of root; empty: commands run as another user."""
    warden_restarts: int
    """How often the daemon replaced the warden."""
    warden_missed_pings: int
    """How many pings the warden did not answer."""
    environment: EnvironmentCapabilities
    """The variables that commands have from the environment of the daemon."""
    sessions: SessionCapabilities
    """The interpreter of sessions."""
    pod_memory: PodMemoryCapabilities
    """The guard of the memory of the pod."""
    disk: DiskCapabilities
    """The guards of directories."""
    commands: CommandCapabilities
    """The bounds of commands at once."""
    protections: Protections
    """The protections that hold here."""
