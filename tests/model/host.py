"""The daemon that the model's steps speak to. The daemon dies and comes back on the same
directories; the host outlives all examples of a run."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from tests.conformance import aftermath
from tests.conformance.target import (
    LAUNCHER,
    READ_SECONDS,
    TERMINATED,
    Target,
    start,
)
from tests.patience import patience
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = ("--namespaces=require",)
READY_SECONDS = 60.0
MAX_IDLE_KERNELS = 2
"""The zygote, and a worker kept ready (--session-pool)."""
_OF_PROC = re.compile(r"/proc/(\d+)/(cmdline|stat):(.*)")


@dataclass
class Process:
    """A process, as user code sees the process."""

    pid: int
    command: str = ""
    state: str = ""
    started_at: int = 0
    """In ticks of the clock since the boot."""

    @property
    def is_kernel(self) -> bool:
        """The zygote, or a worker."""
        return self.command.split()[:1] == [aftermath.INTERPRETER]

    @property
    def is_idle(self) -> bool:
        """Of execd, or of Linux; no user code."""
        return self.state != "Z" and (self.pid == 1 or self.is_kernel)


class Host:
    """Made by ``host``, which ends the daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.target: Target = start(directory, *FLAGS)
        self.client = self._client()
        self.n_steps = 0
        """Of all examples so far."""
        self.n_examples = 0
        self.steps: list[str] = []
        """Of the present example, shortened for people."""
        self.replayable: list[tuple[str, dict[str, Any]]] = []
        """The same steps in full."""
        self.finding: BaseException | None = None
        """What the first failing step raised. No example runs afterwards."""

    def _client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.target.url, timeout=patience.seconds(READ_SECONDS), trust_env=False
        )

    def restart(self) -> None:
        """SIGKILL, and another daemon on the same directories."""
        self.check_log()
        self.client.close()
        self.target.kill()
        self.target = start(self.directory, *FLAGS)
        self.client = self._client()

    def check_log(self) -> None:
        assert self.target.log_errors() == []

    def kill_warden(self) -> None:
        """SIGKILL to the warden; return when another warden is ready. Linux protects the init of a
        namespace from the code inside; in gVisor only the code inside reaches the warden."""
        n_before = self._warden_restarts()
        if LAUNCHER:
            self.client.post("/v1/executions", json={"command": "kill -9 1; sleep 5"})
        else:
            [warden] = psutil.Process(self.target.pid).children()
            warden.kill()
        wait_until(lambda: self._warden_restarts() > n_before and self._is_ready(), READY_SECONDS)

    def _warden_restarts(self) -> int:
        return int(self.client.get("/v1/capabilities").json()["warden_restarts"])

    def _is_ready(self) -> bool:
        return self.client.get("/readyz").status_code == 200

    def processes(self) -> list[Process]:
        """All processes beside the daemon, but for the process that looks."""
        body = self.json(
            "POST",
            "/v1/executions",
            200,
            json={"command": "exec grep -asH '' /proc/[0-9]*/cmdline /proc/[0-9]*/stat"},
        )
        assert body["truncated"] is None, body
        found: dict[int, Process] = {}
        for line in body["stdout"].split("\n"):
            match = _OF_PROC.fullmatch(line)
            if match is None:
                continue  # the end of the text
            process = found.setdefault(int(match[1]), Process(int(match[1])))
            if match[2] == "cmdline":
                process.command += match[3].replace("\0", " ")
            else:
                facts = match[3].rpartition(")")[2].split()
                process.state, process.started_at = facts[0], int(facts[19])
        del found[body["pid"]]
        return list(found.values())

    def kill(self, pid: int) -> None:
        """SIGKILL, from user code."""
        self.json("POST", "/v1/executions", 200, json={"command": f"kill -9 {pid}"})

    def kill_zygote(self) -> None:
        """SIGKILL to the parent of all workers, if that process lives already. The zygote is the
        oldest of the kernel's processes that are no session's."""
        sessions = {item["pid"] for item in self.json("GET", "/v1/sessions", 200)["items"]}
        found = [(p.started_at, p.pid) for p in self.processes() if p.is_kernel]
        found = [(started_at, pid) for started_at, pid in found if pid not in sessions]
        if found:
            self.kill(min(found)[1])

    def json(self, method: str, path: str, http_status: int, **request: Any) -> Any:
        """The body of a reply that must have this HTTP status."""
        reply = self.client.request(method, path, **request)
        assert reply.status_code == http_status, f"{method} {path} {reply.status_code} {reply.text}"
        return reply.json() if reply.content else None

    def nothing_is_left(self) -> None:
        """No process of user code, and no log of an execution that the daemon does not know."""
        left: list[object] = []

        def is_clean() -> bool:
            processes = self.processes()
            left[:] = [process for process in processes if not process.is_idle]
            kernels = [process for process in processes if process.is_kernel]
            left.extend(kernels if len(kernels) > MAX_IDLE_KERNELS else ())
            left.extend(name for name in self._logged() if not self._is_known(name))
            return not left

        try:
            wait_until(is_clean, READY_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"left at the end: {left}") from error

    def _logged(self) -> set[str]:
        return {path.name.rpartition(".")[0] for path in (self.directory / "state/logs").iterdir()}

    def _is_known(self, execution: str) -> bool:
        return self.client.get(f"/v1/executions/{execution}").status_code == 200

    def no_temporary_is_left(self) -> None:
        """No half of an upload in the base dir, whose listings leave the temporary names out."""
        left = [path for path in (self.directory / "base").iterdir() if _is_temporary(path)]
        assert not left


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".execd-")


@contextlib.contextmanager
def host(directory: Path) -> Iterator[Host]:
    made = Host(directory)
    try:
        yield made
        if not LAUNCHER:
            aftermath.no_process_is_left(made.target)
        made.client.close()
        exit_code = made.target.stop()
        assert exit_code == TERMINATED, made.target.log_text()
        made.check_log()
    finally:
        made.client.close()
        assert made.target.process is not None
        if made.target.process.poll() is None:
            made.target.kill()
