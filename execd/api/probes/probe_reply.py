"""The replies of the probes and of ``/v1/metadata``. Pure."""

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
