"""The replies of the probes, metadata and capabilities. Pure. The engine's ``capabilities.py`` has
the values of the capabilities."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


class RootReply(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon serves requests."""

    status: Annotated[Literal["ok"], Meta(description="`ok`.")]
    message: Annotated[str, Meta(description="The words of the python-runtime.")]
    version: Annotated[str, Meta(description="The version of execd.")]


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The event loop runs."""

    status: Annotated[Literal["ok"], Meta(description="`ok`.")]


class ReadyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a command sent now would run."""

    status: Annotated[
        Literal["ok", "unavailable"],
        Meta(
            description="`unavailable`: no command would run; `cause` says why. The HTTP status "
            "is 503 then."
        ),
    ]
    cause: Annotated[
        Literal["draining", "warden", "shell"] | UnsetType,
        Meta(
            description="`draining`: the daemon is about to end. `warden`: the daemon restarts its "
            "warden. `shell`: `/bin/sh` is missing, or cannot be executed. Absent: commands run."
        ),
    ] = UNSET
    sessions_refused: Annotated[
        str | UnsetType,
        Meta(
            description="The cause why the interpreter cannot serve sessions. Absent: sessions"
            " are not refused."
        ),
    ] = UNSET


class HealthReply(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon can run commands."""

    status: Annotated[Literal["ok"], Meta(description="`ok`.")]
    uptime_seconds: Annotated[int, Meta(description="The age of the daemon, in whole seconds.")]


class MetadataReply(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of the sandbox."""

    env: Annotated[
        dict[str, str],
        Meta(
            description="The variables of the daemon that begin with `SANDBOX_` and do not "
            "look secret."
        ),
    ]


class RefusalReply(msgspec.Struct, frozen=True, kw_only=True):
    """Why an interpreter cannot serve sessions."""

    cause: Annotated[str, Meta(description="The cause in a word, for example `no_ipython`.")]
    message: Annotated[str, Meta(description="The reason in words.")]


class SessionCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of sessions."""

    mode: Annotated[Literal["eager", "lazy", "off"], Meta(description="The setting `--sessions`.")]
    ready: Annotated[
        bool, Meta(description="Whether the zygote runs, so that sessions start at once.")
    ]
    trouble: Annotated[str | None, Meta(description="Why there is no zygote; null: no trouble.")]
    refused: Annotated[
        RefusalReply | None,
        Meta(
            description="Why the interpreter cannot serve sessions; null: nothing is known "
            "against it."
        ),
    ]
    restarts: Annotated[int, Meta(description="How often the daemon replaced the zygote.")]
    python: Annotated[
        str | UnsetType,
        Meta(description="The version of Python. Absent before the first zygote is ready."),
    ] = UNSET
    ipython: Annotated[
        str | UnsetType,
        Meta(description="The version of IPython. Absent before the first zygote is ready."),
    ] = UNSET
    import_seconds: Annotated[
        float | UnsetType,
        Meta(
            description="How long the zygote imported IPython and the modules of `--preload`. "
            "Absent before the first zygote is ready."
        ),
    ] = UNSET
    warnings: Annotated[
        list[str] | UnsetType,
        Meta(
            description="Modules of `--preload` that failed, and threads that run in no "
            "session. Absent before the first zygote is ready."
        ),
    ] = UNSET


class PodMemoryCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guard of the memory of the pod."""

    guarded: Annotated[
        bool,
        Meta(
            description="Whether execd ends the largest tree before the memory of the pod is gone."
        ),
    ]
    source: Annotated[
        Literal["setting", "cgroup", "machine", "node", "off", "unknown"],
        Meta(
            description="Where the size comes from. node: gVisor shows no limit of the pod, so "
            "this is all memory that gVisor shows."
        ),
    ]
    size_bytes: Annotated[int | None, Meta(description="The memory of the pod; null: not known.")]
    reserve_bytes: Annotated[
        int | None, Meta(description="The part that stays free; null: not known.")
    ]


class VolumeCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guard of a directory."""

    guarded: Annotated[
        bool, Meta(description="Whether execd ends the command that fills the directory.")
    ]
    limit_bytes: Annotated[
        int | None, Meta(description="What the directory may hold; null: no guard.")
    ]
    reserve_bytes: Annotated[
        int | None, Meta(description="The part of the limit that stays free; null: no guard.")
    ]
    used_bytes: Annotated[
        int | None, Meta(description="The estimate at the last look; null before the first look.")
    ]


class DiskCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guards of directories."""

    base_dir: Annotated[VolumeCapabilities, Meta(description="The base dir.")]
    tmp_dir: Annotated[VolumeCapabilities, Meta(description="The directory `/tmp`.")]


class CommandCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of commands at once, and the commands now."""

    cpus: Annotated[float, Meta(description="The CPUs that execd counts with.")]
    max_running: Annotated[int, Meta(description="How many commands run at once.")]
    max_starting: Annotated[
        int, Meta(description="How many commands may be in their first moments at once.")
    ]
    starting_seconds: Annotated[
        float, Meta(description="How long the first moments of a command last.")
    ]
    running: Annotated[int, Meta(description="Commands that run now.")]
    queued: Annotated[int, Meta(description="Commands that wait now.")]


class Protections(msgspec.Struct, frozen=True, kw_only=True):
    """The protections that hold here."""

    daemon_invisible: Annotated[
        bool, Meta(description="User code cannot see the daemon among the processes.")
    ]
    daemon_unkillable: Annotated[bool, Meta(description="User code cannot signal the daemon.")]
    daemon_environment_unreadable: Annotated[
        bool, Meta(description="User code cannot read the environment of the daemon.")
    ]
    state_dir_unreadable: Annotated[bool, Meta(description="User code cannot read the state dir.")]
    nothing_survives_the_warden: Annotated[
        bool, Meta(description="All user code ends with the warden.")
    ]


class InstanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The life of the daemon. A restore from a checkpoint begins another life."""

    id: Annotated[
        str,
        Meta(
            description="Another id after each start and after each restore: what a caller knows of"
            " executions and sessions may be gone."
        ),
    ]
    restores: Annotated[
        int, Meta(description="How often the daemon was restored from a checkpoint.")
    ]


class CapabilitiesReply(msgspec.Struct, frozen=True, kw_only=True):
    """What execd found on this kernel, and which protections hold."""

    instance: Annotated[InstanceFacts, Meta(description="The life of the daemon.")]
    namespaces: Annotated[
        bool, Meta(description="Whether user code runs in namespaces of its own.")
    ]
    namespace_shape: Annotated[
        str, Meta(description="The namespaces in use; `none`: user code runs below a subreaper.")
    ]
    namespaces_refused: Annotated[
        str | None, Meta(description="The step that was refused; null: none was.")
    ]
    uid: Annotated[int, Meta(description="The user of the daemon.")]
    run_as_uid: Annotated[
        int | None,
        Meta(
            description="The user of commands and files with `--run-as`; null: that of the daemon."
        ),
    ]
    root_capabilities: Annotated[
        list[str],
        Meta(
            description="The capabilities of commands of root; empty: commands run as another user."
        ),
    ]
    warden_restarts: Annotated[int, Meta(description="How often the daemon replaced the warden.")]
    warden_missed_pings: Annotated[
        int, Meta(description="How many pings the warden did not answer.")
    ]
    sessions: Annotated[SessionCapabilities, Meta(description="The interpreter of sessions.")]
    pod_memory: Annotated[
        PodMemoryCapabilities, Meta(description="The guard of the memory of the pod.")
    ]
    disk: Annotated[DiskCapabilities, Meta(description="The guards of directories.")]
    commands: Annotated[CommandCapabilities, Meta(description="The bounds of commands at once.")]
    protections: Annotated[Protections, Meta(description="The protections that hold here.")]
