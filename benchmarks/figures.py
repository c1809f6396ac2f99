"""Names of subjects, names, units and curves of all figures, and the values found in the rounds."""

from __future__ import annotations

from dataclasses import dataclass

EXECD, FASTAPI, SANDBOXD = "execd", "FastAPI", "sandboxd"
SESSIONS_OFF = "execd, sessions off"

CONNECTIONS = (1, 2, 4, 8, 16, 32)
LIVE = (0, 4, 16, 64, 250)
SESSIONS = (0, 10, 50, 100)
LOG_MIB = (1, 4, 16, 64)
OUTPUT_KIB = (1, 32, 1024)
CROWD = 16
MIXED_CONNECTIONS = 32
AGENT_PAUSE_SECONDS = 0.05

LOOP, AGENT = "a client without pauses", "a client that pauses for 50 ms"


@dataclass(frozen=True)
class Figure:
    """``key`` names the figure in the JSON results. ``is_rate``: more is better."""

    key: str
    title: str
    unit: str
    is_rate: bool = False


def _latency(key: str, title: str) -> list[Figure]:
    return [Figure(f"{key} {share}_ms", f"{title}, {share}", "ms") for share in ("p50", "p99")]


def _costs(key: str, title: str) -> list[Figure]:
    return [
        Figure(f"{key} cpu_ms", f"{title}, CPU of the subject's own processes, a command", "ms"),
        Figure(f"{key} all_cpu_ms", f"{title}, CPU with the command's own, a command", "ms"),
        Figure(f"{key} wakeups", f"{title}, wake-ups of the subject's own processes", "a command"),
    ]


TABLE = [
    *_latency("true loop", f"`true`, {LOOP}"),
    *_costs("true loop", f"`true`, {LOOP}"),
    *_latency("ls loop", f"`ls`, {LOOP}"),
    *_costs("ls loop", f"`ls`, {LOOP}"),
    *_latency("true agent", f"`true`, {AGENT}"),
    *_costs("true agent", f"`true`, {AGENT}"),
    Figure(
        f"connections {CROWD} per_second", f"`true`, {CROWD} connections", "a second", is_rate=True
    ),
    Figure(f"connections {CROWD} cpu_ms", f"`true`, {CROWD} connections, own CPU, a command", "ms"),
    *_latency("health idle", "health route, nothing else running"),
    *_latency("health mixed", f"health route beside {MIXED_CONNECTIONS} mixed connections"),
    Figure("live 0 p50_ms", f"`true` after thousands of commands, {LOOP}, p50", "ms"),
    Figure("live 0 pss_mib", "PSS of all processes after thousands of commands", "MiB"),
    Figure("start ms", "start to first answer", "ms"),
    Figure("rest rss_mib", "RSS of the daemon at rest", "MiB"),
    Figure("rest pss_mib", "PSS of all processes at rest", "MiB"),
    Figure("pages rss_mib", "RSS of the daemon after metrics, OpenAPI and docs were asked", "MiB"),
    Figure("rest wakeups", "wake-ups at rest", "a minute"),
    Figure("rest cpu_percent", "CPU at rest", "% of a CPU"),
]


@dataclass(frozen=True)
class Curve:
    """``key`` with an x for ``{x}`` names the figure of a point; ``key`` also names the plot."""

    name: str
    title: str
    x_title: str
    y_title: str
    key: str
    xs: tuple[int, ...]


CURVES = [
    Curve(
        *("throughput-by-connections", "Throughput of `true` against connections"),
        *("connections without pauses", "commands a second", "connections {x} per_second"),
        CONNECTIONS,
    ),
    Curve(
        *("latency-by-connections", "Latency of `true` against connections"),
        *("connections without pauses", "p50, ms", "connections {x} p50_ms"),
        CONNECTIONS,
    ),
    Curve(
        *("latency-by-live-executions", "Latency of `true` beside sleeping commands"),
        *("commands that sleep", "p50, ms", "live {x} p50_ms"),
        LIVE,
    ),
    Curve(
        *("memory-by-live-executions", "Memory beside sleeping commands, theirs included"),
        *("commands that sleep", "PSS, MiB", "live {x} pss_mib"),
        LIVE,
    ),
    Curve(
        *("latency-by-output", "Latency of a command against the size of the output"),
        *("output, KiB", "p50, ms", "output {x} p50_ms"),
        OUTPUT_KIB,
    ),
    Curve(
        *("memory-by-sessions", "Memory against sessions"),
        *("idle sessions", "PSS, MiB", "sessions {x} pss_mib"),
        SESSIONS,
    ),
    Curve(
        *("latency-by-sessions", "Latency of `true` against sessions"),
        *("idle sessions", "p50, ms", "sessions {x} p50_ms"),
        SESSIONS,
    ),
    Curve(
        *("cell-by-sessions", "Latency of the cell `1+1` against sessions"),
        *("idle sessions beside the cell's session", "p50, ms", "sessions {x} cell_ms"),
        SESSIONS,
    ),
    Curve(
        *("wakeups-by-sessions", "Wake-ups against sessions"),
        *("idle sessions", "wake-ups a second", "sessions {x} wakeups"),
        SESSIONS,
    ),
    Curve(
        *("write-by-log-size", "A command's output into the log"),
        *("log, MiB", "MB/s", "log {x} write_mb_per_second"),
        LOG_MIB,
    ),
    Curve(
        *("read-by-log-size", "The whole log by GET"),
        *("log, MiB", "MB/s", "log {x} read_mb_per_second"),
        LOG_MIB,
    ),
    Curve(
        *("tail-by-log-size", "The log's last KiB by a range"),
        *("log, MiB", "p50, ms", "log {x} tail_ms"),
        LOG_MIB,
    ),
    Curve(
        *("memory-by-log-size", "RSS of the daemon after the command"),
        *("log, MiB", "RSS, MiB", "log {x} rss_mib"),
        LOG_MIB,
    ),
]

BARS = [
    ("latency", "Latency of `true`, p50, a client without pauses", "true loop p50_ms", "ms"),
    (
        "latency-of-an-agent",
        "Latency of `true`, p50, a client that pauses for 50 ms",
        *("true agent p50_ms", "ms"),
    ),
    ("cpu", "CPU of the subject's own processes for a `true`", "true loop cpu_ms", "ms"),
    ("wakeups", "Wake-ups of the subject's own processes for a `true`", "true loop wakeups", ""),
    (
        "throughput",
        f"Throughput of `true`, {CROWD} connections",
        *(f"connections {CROWD} per_second", "a second"),
    ),
    ("memory", "PSS of all processes at rest", "rest pss_mib", "MiB"),
    ("start", "Start to first answer", "start ms", "ms"),
]
"""Name of the plot, title, key and unit."""


class Found:
    """The values by figure, subject and round; a figure that a subject lacks is absent."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, dict[int, float]]] = {}
        self.round = 0

    def keep(self, subject: str, key: str, value: float) -> None:
        """Of the present round."""
        by_round = self._values.setdefault(key, {}).setdefault(subject, {})
        assert self.round not in by_round, (key, subject)
        by_round[self.round] = value

    def values(self, key: str, subject: str) -> list[float]:
        return list(self._values.get(key, {}).get(subject, {}).values())

    def pairs(self, key: str, subject: str, other: str) -> list[tuple[float, float]]:
        """The values of both in the rounds that have both."""
        mine = self._values.get(key, {}).get(subject, {})
        theirs = self._values.get(key, {}).get(other, {})
        return [(mine[number], theirs[number]) for number in mine.keys() & theirs.keys()]

    def subjects(self, key: str) -> list[str]:
        return list(self._values.get(key, {}))

    @classmethod
    def from_json(cls, figures: dict[str, dict[str, list[float]]]) -> Found:
        """Of the JSON of a run; a round that a subject missed is unknown there."""
        found = cls()
        found._values = {
            key: {subject: dict(enumerate(values)) for subject, values in by_subject.items()}
            for key, by_subject in figures.items()
        }
        return found

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        return {
            key: {subject: list(by_round.values()) for subject, by_round in by_subject.items()}
            for key, by_subject in sorted(self._values.items())
        }
