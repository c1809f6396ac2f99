"""Settings: one table, the source of the command line, the environment variables, --help and the
checks.

A setting is a field of ``Config``. The field's annotation carries the rule (checked by msgspec) and
the help text, which is also the setting's row in docs/reference/settings.md. The field's name makes
the flag (``--log-bytes``) and the environment variable (``EXECD_LOG_BYTES``). A few variables have
older names that people know (``ENVIRONMENT_NAMES``). A flag wins over a variable, a variable over
the default.
"""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20

DEFAULT_TIMEOUT_SECONDS = 300.0

ENVIRONMENT_NAMES = {
    "base_dir": "SANDBOX_BASE_DIR",
    "timeout": "SANDBOX_EXEC_TIMEOUT_SECONDS",
    "opensandbox_env_file": "EXECD_ENVS",
}

REPEATABLE = ("dialect", "pass_env", "preload")
"""Settings that are lists: a flag for each item, or one variable with commas."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
UserId = Annotated[str, Meta(pattern=r"^[0-9]{1,10}(:[0-9]{1,10})?$")]
MAX_ID = 2**32 - 2  # the next number means "keep the id" to setresuid(2)
Count = Annotated[int, Meta(gt=0)]
Positive = Meta(gt=0)
Seconds = Meta(gt=0, le=10**9)


def _help(text: str, *, default: str | None = None) -> Meta:
    """Return the help text, and the default in words where the machine decides."""
    return Meta(description=text, extra=None if default is None else {"default": default})


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one daemon. Durations are seconds, sizes bytes."""

    host: Annotated[str, Meta(min_length=1), _help("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), _help("Port to listen on; 0 takes a free port.")] = (
        8888
    )
    dialect: Annotated[
        tuple[str, ...],
        _help(
            "NAME=PORT: a port for clients of another dialect (repeatable): `opensandbox`, "
            "`e2b-envd`, `e2b-code`, `sandboxd-rest`, `sandboxd-grpc`, or the name of another wing."
        ),
    ] = ()
    """As given: ``dialects.choose`` joins flags, variables and older settings."""
    base_dir: Annotated[
        str, Meta(min_length=1), _help("Directory of the files, and working directory of commands.")
    ] = "./workspace"
    state_dir: Annotated[
        str,
        Meta(min_length=1),
        _help("Directory of the journal and the logs of large outputs; never inside the base dir."),
    ] = "./.execd-state"
    timeout: Annotated[
        float, _help("Hard limit of a command; an unusable value means 300, with a warning.")
    ] = DEFAULT_TIMEOUT_SECONDS
    token_sha256: Annotated[
        Sha256 | None,
        _help(
            "SHA-256 (hex) of the access token; without a token anybody who reaches the "
            "port may call."
        ),
    ] = None
    python: Annotated[
        str | None,
        _help(
            "The program behind `python` and `python3` of commands.",
            default="the first python3 on PATH outside execd's own environment",
        ),
    ] = None
    pass_env: Annotated[
        tuple[str, ...],
        _help("Variables of execd's environment for commands (a glob; repeatable)."),
    ] = ()
    run_as: Annotated[
        UserId | None,
        _help(
            "UID[:GID] of commands and of file operations, for all callers; needs a root daemon."
        ),
    ] = None
    namespaces: Annotated[
        Literal["auto", "require", "off"],
        _help(
            "Namespaces for user code: `auto` falls back to a plain subreaper, `require` "
            "refuses to start without namespaces, `off` uses none."
        ),
    ] = "auto"
    on_disconnect: Annotated[
        Literal["kill", "detach"],
        _help("What happens to a command when its last reader goes away: `kill` or `detach`."),
    ] = "kill"

    direct_exec: Annotated[
        Literal["on", "off"],
        _help(
            "`on`: a command line of plain words, which needs no shell, runs without one; `off`: "
            "every command line takes the shell."
        ),
    ] = "on"
    max_running: Annotated[
        int, Positive, _help("Commands that run at once; cells do not count.")
    ] = 256
    max_starting: Annotated[
        Count | None,
        _help(
            "Commands in their first moments at once: until the command rests, or for half "
            "a second.",
            default="two a CPU",
        ),
    ] = None
    max_queued: Annotated[
        int,
        Meta(ge=0),
        _help(
            "Commands that wait beyond `--max-running`; and, counted apart, cells that wait "
            "for their session."
        ),
    ] = 1024
    queue_wait_seconds: Annotated[
        float, Seconds, _help("How long an execution waits for a place.")
    ] = 20.0
    timeout_grace_seconds: Annotated[
        float, Meta(ge=0), _help("From TERM to KILL after a timeout.")
    ] = 0.25
    cancel_grace_seconds: Annotated[
        float, Meta(ge=0), _help("From TERM to KILL after a cancel.")
    ] = 2.0
    drain_grace_seconds: Annotated[
        float,
        Meta(ge=0),
        _help("How long a reply waits after the exit while other processes hold the pipes."),
    ] = 0.25
    shutdown_timeout: Annotated[
        float,
        Seconds,
        _help(
            "From SIGTERM to the exit of the daemon, at most. The exit code is 143 (0 after "
            "SIGINT)."
        ),
    ] = 10.0
    keep_alive_seconds: Annotated[
        float,
        Seconds,
        _help("How long an idle connection stays open; routers pool theirs for 90 s."),
    ] = 120.0
    execute_heartbeat_seconds: Annotated[
        float,
        Meta(ge=0),
        _help(
            "Interval of space characters before the JSON of a reply that waits for the end "
            "of a command or cell; 0: off. The image sets 10 for routers."
        ),
    ] = 0.0
    stream_heartbeat_seconds: Annotated[
        float, Meta(ge=0), _help("Interval of heartbeats on a silent stream; 0: off.")
    ] = 5.0
    stream_stall_seconds: Annotated[
        float,
        Seconds,
        _help("How long a reader may take no bytes before execd cuts the connection."),
    ] = 30.0
    warden_ping_seconds: Annotated[
        float, Seconds, _help("Interval of pings to the warden, while user code lives.")
    ] = 2.0
    warden_dead_seconds: Annotated[
        float, Seconds, _help("Silence after which the daemon replaces the warden.")
    ] = 5.0

    stream_memory_bytes: Annotated[
        int, Meta(ge=4096), _help("Memory per output stream: half for the head, half for the tail.")
    ] = 256 * 1024
    log_bytes: Annotated[int, Meta(ge=0), _help("Output kept on disk per stream.")] = 64 * MIB
    state_bytes: Annotated[int, Meta(ge=0), _help("Disk space of all logs together.")] = 1024 * MIB
    reply_bytes: Annotated[
        int,
        Meta(ge=1024),
        _help("Output per stream in one reply; a longer output is cut to head and tail."),
    ] = MIB
    max_body_bytes: Annotated[int, Positive, _help("Size of a JSON request body.")] = 16 * MIB
    fsync: Annotated[
        Literal["never", "uploads"],
        _help(
            "`uploads`: an upload is on the disk before the answer, for a base dir that "
            "outlives the pod."
        ),
    ] = "never"
    max_upload_bytes: Annotated[
        int, Meta(ge=0), _help("Size of one uploaded file; 0: no limit.")
    ] = 0
    max_unpacked_bytes: Annotated[
        int, Positive, _help("Size of the files of one uploaded archive.")
    ] = 16384 * MIB
    max_unpacked_entries: Annotated[
        int, Positive, _help("Entries of one uploaded archive, or of one downloaded zip.")
    ] = 200_000
    retention_seconds: Annotated[
        float,
        Meta(ge=0),
        _help(
            "How long execd remembers a finished execution; while nothing runs, up to a "
            "twelfth and at most 300 s longer."
        ),
    ] = 3600.0
    keyed_retention_seconds: Annotated[
        float,
        Meta(ge=0),
        _help("The same for an execution with a key or a caller's `id`, or a detached execution."),
    ] = 86400.0
    reattach_seconds: Annotated[
        float,
        Meta(ge=0),
        _help(
            "How long an execution with a key or a caller's `id` waits for its client to come back."
        ),
    ] = 30.0
    retention_count: Annotated[
        int,
        Meta(ge=0),
        _help("How many finished executions execd remembers, beside those with a key or a name."),
    ] = 256
    keyed_retention_count: Annotated[
        int,
        Meta(ge=0),
        _help("The same for executions with a key or a caller's `id`, and detached executions."),
    ] = 4096
    retention_bytes: Annotated[
        int, Meta(ge=0), _help("Memory for the output of finished executions.")
    ] = 16 * MIB

    cpu_seconds: Annotated[
        Count | None, _help("CPU time of each process of a command, and of each cell.")
    ] = None
    address_space_bytes: Annotated[Count | None, _help("Address space of each process.")] = None
    file_size_bytes: Annotated[Count | None, _help("Largest file a process may write.")] = None
    open_files: Annotated[
        Count | None,
        _help(
            "Open files of each process.",
            default="65536, and at most three quarters of the hard limit",
        ),
    ] = None
    processes: Annotated[
        int, Positive, _help("Processes and threads in the tree of one command or session.")
    ] = 512
    memory_bytes: Annotated[Count | None, _help("Memory of the tree of one command, sampled.")] = (
        None
    )

    sessions: Annotated[
        Literal["eager", "lazy", "off"],
        _help(
            "Python sessions: `eager` prepares the interpreter at start, `lazy` at the "
            "first use, `off` offers none."
        ),
    ] = "eager"
    preload: Annotated[
        tuple[str, ...], _help("Modules that sessions find imported already (repeatable).")
    ] = ()
    session_pool: Annotated[
        int, Meta(ge=0, le=64), _help("Workers kept ready for new sessions, at most 64.")
    ] = 1
    max_sessions: Annotated[int, Positive, _help("Sessions that live at once.")] = 256
    session_idle_seconds: Annotated[
        float, Seconds, _help("After this time without use a session loses its state.")
    ] = 3600.0
    interrupt_grace_seconds: Annotated[
        float, Meta(ge=0), _help("From SIGINT to KILL for a cell that does not stop.")
    ] = 2.0
    code_timeout_seconds: Annotated[
        float, Seconds, _help("Limit of a cell on `/v1/code` without a limit in the request.")
    ] = 30.0

    pod_memory_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        _help(
            "The pod's memory limit (Downward API); 0 switches the guard off.",
            default="the smallest limit of the memory cgroups, else the machine's memory",
        ),
    ] = None
    base_dir_bytes: Annotated[
        int,
        Meta(ge=0),
        _help("What the base dir may hold, the `sizeLimit` of its emptyDir; 0: no guard."),
    ] = 0
    tmp_dir_bytes: Annotated[
        int,
        Meta(ge=0),
        _help("What `/tmp` may hold, the `sizeLimit` of its emptyDir; 0: no guard."),
    ] = 0
    pod_cpus: Annotated[
        Annotated[float, Positive] | None,
        _help("The pod's CPU limit (Downward API).", default="the smallest quota of the cgroups"),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _help("Least severe log line: debug, info, warning or error."),
    ] = "info"


EXIT_USAGE = 2
"""The exit code of a start with a wrong setting."""


class ConfigError(Exception):
    """A setting breaks its rule. The message names the rule and the source of the value."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    return ENVIRONMENT_NAMES.get(name, "EXECD_" + name.upper())


def load(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """Return the checked settings from flags (None: not given) and environment. Raises
    ConfigError."""
    values, sources = _join_sources(flags, environment)
    for name in REPEATABLE:
        if name in values:
            values[name] = split_items(values[name])
    if "timeout" in values:
        values["timeout"] = _usable_timeout(values["timeout"], sources["timeout"])
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        text, _, where = str(error).rpartition(" - at `$.")
        name = where.rstrip("`").partition("[")[0]
        raise ConfigError(f"{sources.get(name, name)}: {text}") from None
    _check_rules(config, sources)
    # Absolute, but links are not resolved: absolute paths under `/app` keep working if `/app` is a
    # link.
    return msgspec.structs.replace(
        config,
        base_dir=os.path.abspath(config.base_dir),
        state_dir=os.path.abspath(config.state_dir),
    )


def split_items(value: object) -> list[str]:
    """Split the text of a variable at commas. A repeated flag is a list already."""
    items = value.split(",") if isinstance(value, str) else cast("Sequence[str]", value)
    return [item.strip() for item in items if item.strip()]


def given(
    name: str, flags: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[object, str]:
    """Return the value of a setting, and the flag or the variable that has the value. None: not
    given."""
    variable = environment_name(name)
    value = flags.get(name)
    if value is not None and value != ():
        return value, flag(name)
    # Blank means unset, as with SANDBOX_BASE_DIR in the python-runtime: manifests often leave a
    # variable empty.
    return environment.get(variable, "").strip() or None, variable


def _join_sources(
    flags: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return the given settings, and for each setting the flag or the variable with the value."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for field in msgspec.structs.fields(Config):
        value, source = given(field.name, flags, environment)
        if value is not None:
            values[field.name], sources[field.name] = value, source
    assert values.keys() == sources.keys()
    return values, sources


def _check_rules(config: Config, sources: Mapping[str, str]) -> None:
    """Check the rules beyond the annotations. Raises ConfigError."""
    for name, value in msgspec.structs.asdict(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{sources[name]}: must be a finite number")
    assert sources.keys() <= set(Config.__struct_fields__)
    if config.run_as is not None:
        if max(map(int, config.run_as.split(":"))) > MAX_ID:
            raise ConfigError(f"{sources['run_as']}: the largest id is {MAX_ID}")
        if os.geteuid() != 0:
            raise ConfigError(
                f"{sources['run_as']}: only a daemon that is root can run commands as another user"
            )
    if config.python is not None and not (
        os.path.isfile(config.python) and os.access(config.python, os.X_OK)
    ):
        raise ConfigError(f"{sources['python']}: {config.python} is not the path of a program")
    base_dir, state_dir = os.path.realpath(config.base_dir), os.path.realpath(config.state_dir)
    if os.path.commonpath([base_dir, state_dir]) == base_dir:
        raise ConfigError(
            f"--state-dir: {state_dir} is inside the base dir {base_dir}, where commands could "
            "reach it"
        )
    if os.path.commonpath([base_dir, state_dir]) == state_dir:
        raise ConfigError(
            f"--base-dir: {base_dir} is inside the state dir {state_dir}, which is hidden from "
            "commands"
        )


def _usable_timeout(value: object, source: str) -> float:
    """Apply the python-runtime's rule: anything but a finite positive number becomes 300, with a
    warning."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # anything else raises, which is the point
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isfinite(seconds) and seconds > 0:
        return seconds
    print(
        f"execd: {source}={value!r} is not a positive number; using {DEFAULT_TIMEOUT_SECONDS:g} s",
        file=sys.stderr,
    )
    return DEFAULT_TIMEOUT_SECONDS
