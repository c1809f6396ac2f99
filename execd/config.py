"""Settings: one table, the source of the command line, the environment variables, --help and the
checks.

A setting is a field of ``Config``. The field's annotation is the rule (checked by msgspec). The
docstring is the help text, which is also the setting's row in docs/reference/settings.md. The name
makes the flag (``--log-bytes``) and the environment variable (``EXECD_LOG_BYTES``). A few variables
have older names that people know (``ENVIRONMENT_NAMES``). A flag wins over a variable, a variable
over the default.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

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

REPEATABLE = ("checkpoint_at_start", "dialect", "hide_env", "pass_env", "preload")
"""Settings that are lists: a flag for each item, or one variable with commas."""

T = TypeVar("T")

Sha256 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
UserId = Annotated[str, Meta(pattern=r"^[0-9]{1,10}(:[0-9]{1,10})?$")]
MAX_ID = 2**32 - 2  # the next number means "keep the id" to setresuid(2)
Count = Annotated[int, Meta(gt=0)]
Positive = Meta(gt=0)
Seconds = Meta(gt=0, le=10**9)


def _default(text: str) -> Meta:
    """Return the default in words, where the machine decides."""
    return Meta(extra={"default": text})


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one daemon. Durations are seconds, sizes bytes."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8888
    """Port to listen on; 0 takes a free port."""
    # As given: ``dialects.choose`` joins flags, variables and older settings.
    dialect: tuple[str, ...] = ()
    """NAME=PORT: a port for clients of another dialect (repeatable): `opensandbox`, `e2b-envd`,
    `e2b-code`, `sandboxd-rest`, `sandboxd-grpc`, or the name of another wing."""
    base_dir: Annotated[str, Meta(min_length=1), _default("`auto` in a tree, else ./workspace")] = (
        "./workspace"
    )
    """Directory of the files, and working directory of commands. `auto`: the directory of execd's
    start (the image's WORKDIR); if that is / or not writable, the first writable of /workspace,
    HOME and a folder beside the state dir."""
    state_dir: Annotated[
        str, Meta(min_length=1), _default("`auto` in a tree, else ./.execd-state")
    ] = "./.execd-state"
    """Directory of the journal and the logs of large outputs; never inside the base dir. `auto`:
    the first of /var/lib/execd, /run/execd and /dev/shm/execd-UID that can be made and written."""
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    """Hard limit of a command without a limit of its own; an unusable value means 300, with a
    warning."""
    max_timeout: Annotated[
        float, Seconds, _default("`--timeout` where that is set, else 86400")
    ] = 24 * 3600.0
    """The longest limit that a request of /v1 may ask for. Of other dialects `--timeout` is the
    longest."""
    token_sha256: Sha256 | None = None
    """SHA-256 (hex) of the access token; without a token anybody who reaches the port may call."""
    python: Annotated[str, Meta(min_length=1)] = "auto"
    """The Python of sessions: `image` (the first python3 on PATH outside execd's environment),
    `own` (execd's), `auto` (the image's if it can serve, else execd's) or a path. `python` of
    commands is the same, or the image's; with `--image-env on` only where PATH has no python3."""
    pass_env: tuple[str, ...] = ()
    """Variables of execd's environment for commands (a glob; repeatable)."""
    image_env: Annotated[Literal["on", "off"], _default("`on` in a tree, else `off`")] = "off"
    """`on`: commands see the image's environment, as with `docker exec`: all variables but
    EXECD_*, SANDBOX_*, OTEL_* and KUBERNETES_*, the image's PATH and HOME. `off`: only
    `--pass-env`, with `python` first on PATH, and the base dir as HOME."""
    hide_env: tuple[str, ...] = ()
    """Variables of execd's environment that commands never see (a glob; repeatable)."""
    run_as: UserId | None = None
    """UID[:GID] of commands and of file operations, for all callers; needs a root daemon."""
    namespaces: Literal["auto", "require", "off"] = "auto"
    """Namespaces for user code: `auto` falls back to a plain subreaper, `require` refuses to start
    without namespaces, `off` uses none."""
    on_disconnect: Literal["kill", "detach"] = "kill"
    """What happens to a command when its last reader goes away: `kill` or `detach`."""

    direct_exec: Literal["on", "off"] = "on"
    """`on`: a command line of plain words, which needs no shell, runs without one; `off`: every
    command line takes the shell."""
    max_running: Annotated[int, Positive] = 256
    """Commands that run at once; cells do not count."""
    max_starting: Annotated[Count | None, _default("two a CPU")] = None
    """Commands in their first moments at once: until the command rests, or for half a second."""
    max_queued: Annotated[int, Meta(ge=0)] = 1024
    """Commands that wait beyond `--max-running`; and, counted apart, cells that wait for their
    session."""
    queue_wait_seconds: Annotated[float, Seconds] = 20.0
    """How long an execution waits for a place."""
    timeout_grace_seconds: Annotated[float, Meta(ge=0)] = 0.25
    """From TERM to KILL after a timeout."""
    cancel_grace_seconds: Annotated[float, Meta(ge=0)] = 2.0
    """From TERM to KILL after a cancel."""
    drain_grace_seconds: Annotated[float, Meta(ge=0)] = 0.25
    """How long a reply waits after the exit while other processes hold the pipes."""
    shutdown_timeout: Annotated[float, Seconds] = 10.0
    """From SIGTERM to the exit of the daemon, at most. The exit code is 143 (0 after SIGINT)."""
    keep_alive_seconds: Annotated[float, Seconds] = 120.0
    """How long an idle connection stays open; routers pool theirs for 90 s."""
    execute_heartbeat_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Interval of space characters before the JSON of a reply that waits for the end of a command
    or cell; 0: off. The image sets 10 for routers."""
    stream_heartbeat_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """Interval of heartbeats on a silent stream; 0: off."""
    stream_stall_seconds: Annotated[float, Seconds] = 30.0
    """How long a reader may take no bytes before execd cuts the connection."""
    warden_ping_seconds: Annotated[float, Seconds] = 2.0
    """Interval of pings to the warden, while user code lives."""
    warden_dead_seconds: Annotated[float, Seconds] = 5.0
    """Silence after which the daemon replaces the warden."""

    stream_memory_bytes: Annotated[int, Meta(ge=4096)] = 256 * 1024
    """Memory per output stream: half for the head, half for the tail."""
    log_bytes: Annotated[int, Meta(ge=0)] = 64 * MIB
    """Output kept on disk per stream."""
    state_bytes: Annotated[int, Meta(ge=0)] = 1024 * MIB
    """Disk space of all logs and checkpoints together."""
    checkpoint_bytes: Annotated[int, Meta(ge=0)] = 256 * MIB
    """Disk space of all checkpoints together, within `--state-bytes`. A checkpoint that needs more
    is refused, with the size needed."""
    checkpoint_at_start: tuple[str, ...] = ()
    """A directory of the checkpoint `start`, which is made before user code runs (repeatable). A
    daemon that finds a `start` in the state dir keeps it. If the checkpoint cannot be made, the
    start ends with exit code 2."""
    reply_bytes: Annotated[int, Meta(ge=1024)] = MIB
    """Output per stream in one reply; a longer output is cut to head and tail."""
    max_body_bytes: Annotated[int, Positive] = 16 * MIB
    """Size of a JSON request body."""
    fsync: Literal["never", "uploads"] = "never"
    """`uploads`: an upload is on the disk before the answer, for a base dir that outlives the
    pod."""
    max_upload_bytes: Annotated[int, Meta(ge=0)] = 0
    """Size of one uploaded file; 0: no limit."""
    max_unpacked_bytes: Annotated[int, Positive] = 16384 * MIB
    """Size of the files of one uploaded archive."""
    max_unpacked_entries: Annotated[int, Positive] = 200_000
    """Entries of one uploaded archive, or of one downloaded zip."""
    retention_seconds: Annotated[float, Meta(ge=0)] = 3600.0
    """How long execd remembers a finished execution; while nothing runs, up to a twelfth and at
    most 300 s longer."""
    keyed_retention_seconds: Annotated[float, Meta(ge=0)] = 86400.0
    """The same for an execution with a key or a caller's `id`, or a detached execution."""
    reattach_seconds: Annotated[float, Meta(ge=0)] = 30.0
    """How long an execution with a key or a caller's `id` waits for its client to come back."""
    retention_count: Annotated[int, Meta(ge=0)] = 256
    """How many finished executions execd remembers, beside those with a key or a name."""
    keyed_retention_count: Annotated[int, Meta(ge=0)] = 4096
    """The same for executions with a key or a caller's `id`, and detached executions."""
    retention_bytes: Annotated[int, Meta(ge=0)] = 16 * MIB
    """Memory for the output of finished executions."""

    cpu_seconds: Count | None = None
    """CPU time of each process of a command, and of each cell."""
    address_space_bytes: Count | None = None
    """Address space of each process."""
    file_size_bytes: Count | None = None
    """Largest file a process may write."""
    open_files: Annotated[
        Count | None, _default("65536, and at most three quarters of the hard limit")
    ] = None
    """Open files of each process."""
    processes: Annotated[int, Positive] = 512
    """Processes and threads in the tree of one command or session."""
    memory_bytes: Count | None = None
    """Memory of the tree of one command, sampled."""

    sessions: Literal["eager", "lazy", "off"] = "eager"
    """Python sessions: `eager` prepares the interpreter at start, `lazy` at the first use, `off`
    offers none."""
    preload: tuple[str, ...] = ()
    """Modules that sessions find imported already (repeatable)."""
    session_pool: Annotated[int, Meta(ge=0, le=64)] = 1
    """Workers kept ready for new sessions, at most 64."""
    max_sessions: Annotated[int, Positive] = 256
    """Sessions that live at once."""
    session_idle_seconds: Annotated[float, Seconds] = 3600.0
    """After this time without use a session loses its state."""
    interrupt_grace_seconds: Annotated[float, Meta(ge=0)] = 2.0
    """From SIGINT to KILL for a cell that does not stop."""
    code_timeout_seconds: Annotated[float, Seconds] = 30.0
    """Limit of a cell on `/v1/code` without a limit in the request."""

    pod_memory_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        _default("the smallest limit of the memory cgroups, else the machine's memory"),
    ] = None
    """The pod's memory limit (Downward API); 0 switches the guard off."""
    base_dir_bytes: Annotated[int, Meta(ge=0)] = 0
    """What the base dir may hold, the `sizeLimit` of its emptyDir; 0: no guard."""
    tmp_dir_bytes: Annotated[int, Meta(ge=0)] = 0
    """What `/tmp` may hold, the `sizeLimit` of its emptyDir; 0: no guard."""
    pod_cpus: Annotated[
        Annotated[float, Positive] | None, _default("the smallest quota of the cgroups")
    ] = None
    """The pod's CPU limit (Downward API)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line: debug, info, warning or error."""
    log_fd: Annotated[Annotated[int, Meta(ge=0, lt=2**31)] | None, _default("stderr")] = None
    """The open descriptor that the log goes to, so that of `serve -- CMD` CMD has stderr alone."""


EXIT_USAGE = 2
"""The exit code of a start with a wrong setting."""


class ConfigError(Exception):
    """A setting breaks its rule. The message names the rule and the source of the value."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    return ENVIRONMENT_NAMES.get(name, "EXECD_" + name.upper())


AUTO = "auto"
DEFAULTS_IN_TREE = {"base_dir": AUTO, "image_env": "on", "state_dir": AUTO}
"""The defaults that differ in a tree (``own_tree``), where the image is not execd's own."""


def load(
    flags: Mapping[str, object], environment: Mapping[str, str], *, in_tree: bool = False
) -> Config:
    """Return the checked settings from flags (None: not given) and environment. A directory that
    is AUTO is left to ``places``. Raises ConfigError."""
    values, sources = _join_sources(flags, environment)
    if in_tree:
        values = {**DEFAULTS_IN_TREE, **values}
    for name in REPEATABLE:
        if name in values:
            values[name] = split_items(values[name])
    if "timeout" in values:
        values["timeout"] = _usable_timeout(values["timeout"], sources["timeout"])
    config = convert(values, Config, sources)
    if "timeout" in values and "max_timeout" not in values:
        config = msgspec.structs.replace(config, max_timeout=config.timeout)
    _check_rules(config, sources)
    # Absolute, but links are not resolved: absolute paths under `/app` keep working if `/app` is a
    # link.
    return msgspec.structs.replace(
        config,
        base_dir=_absolute(config.base_dir),
        state_dir=_absolute(config.state_dir),
    )


def _absolute(path: str) -> str:
    return path if path == AUTO else os.path.abspath(path)


def convert(values: Mapping[str, object], kind: type[T], sources: Mapping[str, str]) -> T:
    """Return the struct of the values, checked by the annotations. ``sources``: where each value is
    from. Raises ConfigError."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, where = str(error).rpartition(" - at `$.")
        name = where.rstrip("`").partition("[")[0]
        raise ConfigError(f"{sources.get(name, name)}: {text}") from None
    except UnicodeEncodeError:
        name = next(name for name, value in values.items() if not _is_text(value))
        raise ConfigError(f"{sources.get(name, name)}: not UTF-8") from None


def _is_text(value: object) -> bool:
    items = value if isinstance(value, (list, tuple)) else (value,)
    return not any("\ud800" <= character <= "\udfff" for item in items for character in str(item))


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
    if config.python not in ("auto", "image", "own") and not (
        os.path.isfile(config.python) and os.access(config.python, os.X_OK)
    ):
        raise ConfigError(f"{sources['python']}: {config.python} is not the path of a program")
    if config.log_fd is not None and not _is_open_for_writing(config.log_fd):
        raise ConfigError(
            f"{sources['log_fd']}: {config.log_fd} is not a descriptor that is open for writing"
        )
    if config.max_timeout < config.timeout:
        raise ConfigError(
            f"{sources['max_timeout']}: {config.max_timeout:g} is less than the "
            f"{config.timeout:g} of {sources.get('timeout', flag('timeout'))}"
        )
    if AUTO not in (config.base_dir, config.state_dir):
        check_apart(config)


def check_apart(config: Config) -> None:
    """Raises ConfigError if one of base dir and state dir is inside the other."""
    if reason := conflict_of(config.base_dir, config.state_dir):
        raise ConfigError(reason)


def conflict_of(base_dir: str, state_dir: str) -> str | None:
    base_dir, state_dir = os.path.realpath(base_dir), os.path.realpath(state_dir)
    common = os.path.commonpath([base_dir, state_dir])
    if common == base_dir:
        return (
            f"--state-dir: {state_dir} is inside the base dir {base_dir}, where commands could "
            "reach it"
        )
    if common == state_dir:
        return (
            f"--base-dir: {base_dir} is inside the state dir {state_dir}, which is hidden from "
            "commands"
        )
    return None


def _is_open_for_writing(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


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
