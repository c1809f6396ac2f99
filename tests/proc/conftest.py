"""A real warden, and programs under the warden. A test can find the programs from outside."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from execd.model import Limits
from execd.proc.client import WardenClient
from execd.proc.messages import NULL_DEVICE, Adopt, Spawn
from execd.proc.namespaces import View
from execd.proc.program_block import pack
from execd.proc.reaper import Reaper
from execd.proc.rlimits import rlimits
from execd.proc.spawn import KEEP_IDENTITY, Identity
from tests.gvisor import is_gvisor
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from execd.proc.child import Child

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
_names = itertools.count(random.randrange(10**8, 10**9))


def new_token() -> str:
    """Return a number of seconds. No second program sleeps as long, so the command line
    ``sleep TOKEN`` identifies the program."""
    return str(next(_names))


def living(token: str) -> list[int]:
    """Return the pids, in this process's PID namespace, of living processes with the token in the
    command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if token in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def spawn(
    client: WardenClient,
    *,
    descriptors: list[int],
    on_limit: Callable[[str, int], None],
    on_startup_done: Callable[[], None] | None = None,
    identity: Identity = KEEP_IDENTITY,
    **fields: Any,
) -> Child:
    """Start a program; ``fields`` as in messages.Spawn, or ``argv``, ``env`` and ``cwd``."""
    argv, env, cwd = fields.pop("argv"), fields.pop("env", PATH), fields.pop("cwd", "/")
    defaults = {
        "program": pack(argv, env, cwd),
        "terminal": False,
        "limits": [],
        "processes": 0,
        "uid": identity.uid,
        "gid": identity.gid,
        "groups": None if identity.groups is None else list(identity.groups),
    }
    return await client.launch(
        Spawn(tag=client.new_tag(), **(defaults | fields)), descriptors, on_limit, on_startup_done
    )


async def adopt(
    client: WardenClient, greeting: int, on_limit: Callable[[str, int], None], **fields: Any
) -> Child:
    """Adopt a process; ``fields`` as in messages.Adopt."""
    defaults = {"processes": 0, "memory_bytes": 0, "cpu_seconds": 0, "is_idle": False, "pipes": []}
    defaults["mark"] = 0
    request = Adopt(tag=client.new_tag(), **(defaults | fields))
    return await client.launch(request, [greeting], on_limit)


class Program:
    """A program under a warden, with the output in a file."""

    def __init__(self, child: Child, output: Path) -> None:
        self.child = child
        self.output = output
        self.limits_reached: list[tuple[str, int]] = []

    @property
    def text(self) -> str:
        return self.output.read_text()

    async def says(self, text: str) -> None:
        await wait_until_async(lambda: text in self.text, 20)


class Wardens:
    """Starts wardens of the same shape, and programs under the wardens."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder = folder
        self.policy = policy
        self.state_dir = folder / "state"
        (self.state_dir / "bin").mkdir(parents=True)

    @property
    def in_namespaces(self) -> bool:
        return self.policy != "off"

    @contextlib.asynccontextmanager
    async def start(
        self, *, ping_seconds: float = 2.0, dead_seconds: float = 5.0, view: View | None = None
    ) -> AsyncIterator[WardenClient]:
        reaper = Reaper(everything=False)
        client = WardenClient(
            lambda: view or View(str(self.state_dir), str(self.state_dir / "bin"), {}),
            reaper,
            module="execd.warden.main",
            policy=self.policy,
            ping_seconds=ping_seconds,
            dead_seconds=dead_seconds,
        )
        try:
            await client.start()
            yield client
        finally:
            await client.close()
            reaper.close()

    async def run(
        self,
        client: WardenClient,
        script: str,
        *,
        env: dict[str, str] | None = None,
        marker: str = "",
        processes: int = 0,
        limited: Limits | None = None,
        **options: Any,
    ) -> Program:
        marker = marker or f"EXECD_EXECUTION_ID={new_token()}"
        output = self.folder / f"output-{new_token()}"
        output.touch()
        if "descriptors" not in options:
            options["descriptors"] = [os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)]
        reached: list[tuple[str, int]] = []
        child = await spawn(
            client,
            **(
                {
                    "argv": ["/bin/sh", "-c", script],
                    "env": {**PATH, **(env or {}), **dict([marker.split("=", 1)])},
                    "cwd": "/",
                    "stdio": [NULL_DEVICE, 0, 0],
                    "marker": marker,
                    "limits": rlimits(limited or Limits()),
                    "processes": processes,
                    "on_limit": lambda limit, value: reached.append((limit, value)),
                }
                | options
            ),
        )
        program = Program(child, output)
        program.limits_reached = reached
        return program


SHAPES = ["auto"] if is_gvisor() else ["auto", "off"]
"""gVisor refuses no daemon the namespaces: a daemon there has no other shape."""


@pytest.fixture(params=SHAPES)
def wardens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wardens]:
    """With namespaces, required of the kernel under test, and without."""
    return Wardens(tmp_path, request.param)


@pytest.fixture
async def client(wardens: Wardens) -> AsyncIterator[WardenClient]:
    async with wardens.start() as client:
        assert client.started is not None
        assert (client.started.shape != "none") == wardens.in_namespaces
        yield client
