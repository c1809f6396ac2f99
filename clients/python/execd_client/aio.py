"""Generated from ``generator/sources/aio.py`` by ``generator/blocking.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import httpx

from execd_client import cells, checkpointing, directories, executions, models, transfers
from execd_client.address import parse_address
from execd_client.calls import RETRY_SECONDS, Patience, call, decoded
from execd_client.drive_async import AsyncDriver
from execd_client.drive_common import client_options
from execd_client.effects import Request
from execd_client.options import (
    RunOptions,
    StreamOptions,
    cell_body,
    new_id,
    run_body,
    session_body,
)
from execd_client.target import AsyncFixedTarget, AsyncSandboxTarget, tls_of
from execd_client.terminal_async import AsyncTerminal
from execd_client.watching import follow_changes

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Unpack

    from execd_client.events import Event
    from execd_client.options import CellOptions, SessionOptions
    from execd_client.results import CellResult, Result
    from execd_client.target import AsyncTarget
    from execd_client.transfers import Progress


class AsyncExecd:
    def __init__(
        self,
        url: str = "http://127.0.0.1:8888",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        uds: str | None = None,
        verify: Any = True,
        retry_seconds: float = RETRY_SECONDS,
        deadline_seconds: float | None = None,
    ) -> None:
        address, uds = parse_address(url, token, headers, uds)
        self._begin(AsyncFixedTarget(address), uds, verify, retry_seconds, deadline_seconds)

    def _begin(
        self,
        target: AsyncTarget,
        uds: str | None,
        verify: Any,
        retry_seconds: float,
        deadline_seconds: float | None,
    ) -> None:
        options, transport = client_options(uds, verify)
        if transport:
            options["transport"] = httpx.AsyncHTTPTransport(**transport)
        self._uds = uds
        self._verify = verify
        self._driver = AsyncDriver(target, httpx.AsyncClient(**options))
        self._retry_seconds = retry_seconds
        self._deadline_seconds = deadline_seconds
        self.sessions = AsyncSessions(self)
        """Python sessions."""
        self.files = AsyncFiles(self)
        """Files and directories."""

    @classmethod
    def from_sandbox(
        cls,
        sandbox: Any,
        token: str | None = None,
        *,
        retry_seconds: float = RETRY_SECONDS,
        deadline_seconds: float | None = None,
    ) -> Self:
        made = cls.__new__(cls)
        target = AsyncSandboxTarget(sandbox, token)
        made._begin(target, None, tls_of(sandbox), retry_seconds, deadline_seconds)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._driver.close()

    def _patience(self, deadline_seconds: float | None = None) -> Patience:
        wished = self._deadline_seconds if deadline_seconds is None else deadline_seconds
        return Patience(self._retry_seconds, wished)

    # --- commands

    async def run(
        self,
        command: str | Sequence[str],
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        patience = self._patience(options.pop("deadline_seconds", None))
        kind = RunOptions if on_event is None else StreamOptions
        body = run_body(command, options, kind)
        if on_event is None:
            return await self._driver.run(executions.run(executions.EXECUTIONS, body, patience))
        plan = executions.run_with_events(executions.EXECUTIONS, body, patience, on_event)
        return await self._driver.run(plan)

    def stream(
        self, command: str | Sequence[str], **options: Unpack[StreamOptions]
    ) -> AsyncIterator[Event]:
        patience = self._patience(options.pop("deadline_seconds", None))
        plan = executions.follow(executions.EXECUTIONS, run_body(command, options), patience)
        return self._driver.iterate(plan)

    async def start(
        self, command: str | Sequence[str], **options: Unpack[StreamOptions]
    ) -> AsyncHandle:
        patience = self._patience(options.pop("deadline_seconds", None))
        body = run_body(command, options)
        plan = executions.start(executions.EXECUTIONS, body, patience)
        return AsyncHandle(self, (await self._driver.run(plan)).id)

    def handle(self, execution_id: str) -> AsyncHandle:
        return AsyncHandle(self, execution_id)

    async def list(self, state: str | None = None) -> list[models.ExecutionItem]:
        return await self._driver.run(executions.list_all(state, self._patience()))

    # --- checkpoints

    async def checkpoint(
        self,
        checkpoint_id: str | None = None,
        *,
        roots: Sequence[str] | None = None,
        watched: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
    ) -> models.CheckpointReply:
        body = {
            "id": checkpoint_id or new_id("checkpoint"),
            "roots": roots,
            "watched": watched,
            "exclude": exclude,
        }
        return await self._driver.run(checkpointing.create(body, self._patience()))

    async def checkpoints(self) -> Sequence[models.CheckpointReply]:
        return await self._driver.run(checkpointing.list_all(self._patience()))

    async def delete_checkpoint(self, checkpoint_id: str) -> None:
        await self._driver.run(checkpointing.delete(checkpoint_id, self._patience()))

    async def changes(
        self, checkpoint_id: str = checkpointing.START, path: str | None = None
    ) -> Sequence[models.ChangeItem]:
        plan = checkpointing.changes(checkpoint_id, path, self._patience())
        return await self._driver.run(plan)

    async def patch(
        self, checkpoint_id: str = checkpointing.START, path: str | None = None
    ) -> bytes:
        plan = checkpointing.exported(checkpoint_id, "patch", path, self._patience())
        return await self._driver.run(plan)

    async def restore(self, checkpoint_id: str = checkpointing.START) -> models.RestoreReply:
        return await self._driver.run(checkpointing.restore(checkpoint_id, self._patience()))

    async def reset(
        self,
        checkpoint_id: str | None = None,
        *,
        verify: str | None = None,
        keep_records: bool | None = None,
    ) -> models.ResetReply:
        body = {"checkpoint": checkpoint_id, "verify": verify, "keep_records": keep_records}
        outcome = await self._driver.run(checkpointing.reset(body, self._patience()))
        self._driver.episode.id = outcome.episode
        return outcome

    # --- the sandbox

    async def capabilities(self) -> models.CapabilitiesReply:
        plan = call(Request("GET", "/v1/capabilities"), self._patience())
        return decoded(await self._driver.run(plan), models.CapabilitiesReply)

    async def stats(self) -> models.Stats:
        plan = call(Request("GET", "/v1/stats"), self._patience())
        return decoded(await self._driver.run(plan), models.Stats)


class AsyncHandle:
    def __init__(self, execd: AsyncExecd, execution_id: str) -> None:
        self._execd = execd
        self._driver = execd._driver
        self.id = execution_id

    async def wait(self, deadline_seconds: float | None = None) -> Result:
        patience = self._execd._patience(deadline_seconds)
        return await self._driver.run(executions.wait(self.id, patience))

    async def result(self) -> Result:
        return await self._driver.run(executions.get(self.id, self._execd._patience()))

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        patience = self._execd._patience()
        plan = executions.follow("", {"id": self.id}, patience, has_started=True, after=after)
        return self._driver.iterate(plan)

    async def output(
        self, stream: str = "stdout", start: int = 0, size: int | None = None
    ) -> bytes:
        plan = executions.output(self.id, stream, start, size, self._execd._patience())
        return await self._driver.run(plan)

    async def kill(self, grace_seconds: float | None = None) -> Result:
        plan = executions.kill(self.id, grace_seconds, self._execd._patience())
        return await self._driver.run(plan)

    async def signal(self, name: str | int = "SIGINT") -> None:
        await self._driver.run(executions.signal(self.id, name, self._execd._patience()))

    async def stdin(self, data: bytes | str = b"", *, eof: bool = False) -> int:
        content = data.encode() if isinstance(data, str) else data
        plan = executions.stdin(self.id, content, eof, self._execd._patience())
        return await self._driver.run(plan)

    async def resize(self, cols: int, rows: int) -> None:
        await self._driver.run(executions.resize(self.id, cols, rows, self._execd._patience()))

    async def terminal(self, offset: int = 0) -> AsyncTerminal:
        address = await self._driver.target.resolve()
        address = replace(address, headers=self._driver.episode.headers_of(address))
        uds, verify = self._execd._uds, self._execd._verify
        return await AsyncTerminal.open(address, uds, verify, self.id, offset)

    async def forget(self) -> None:
        await self._driver.run(executions.forget(self.id, self._execd._patience()))


class AsyncSessions:
    def __init__(self, execd: AsyncExecd) -> None:
        self._execd = execd
        self._driver = execd._driver

    async def create(
        self, session_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AsyncSession:
        body = session_body(session_id, options)
        made = await self._driver.run(cells.create(body, self._execd._patience()))
        return AsyncSession(self._execd, made.id)

    async def get(self, session_id: str) -> AsyncSession:
        await self._driver.run(cells.get(session_id, self._execd._patience()))
        return AsyncSession(self._execd, session_id)

    async def get_or_create(
        self, session_id: str, **options: Unpack[SessionOptions]
    ) -> AsyncSession:
        plan = cells.get_or_create(session_body(session_id, options), self._execd._patience())
        await self._driver.run(plan)
        return AsyncSession(self._execd, session_id)

    async def list(self) -> list[models.SessionReply]:
        return await self._driver.run(cells.list_all(self._execd._patience()))


class AsyncSession:
    def __init__(self, execd: AsyncExecd, session_id: str) -> None:
        self._execd = execd
        self._driver = execd._driver
        self.id = session_id
        self.warnings: list[str] = []
        """The parts of the state that ``fork`` could not copy into this session."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()

    async def run(
        self,
        code: str,
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[CellOptions],
    ) -> CellResult:
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        if on_event is None:
            found = await self._driver.run(executions.run(path, body, patience))
        else:
            plan = executions.run_with_events(path, body, patience, on_event)
            found = await self._driver.run(plan)
        return cast("CellResult", found)

    def stream(self, code: str, **options: Unpack[CellOptions]) -> AsyncIterator[Event]:
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        return self._driver.iterate(executions.follow(path, body, patience))

    async def start(self, code: str, **options: Unpack[CellOptions]) -> AsyncHandle:
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        started = await self._driver.run(executions.start(path, body, patience))
        return AsyncHandle(self._execd, started.id)

    async def info(self) -> models.SessionReply:
        return await self._driver.run(cells.get(self.id, self._execd._patience()))

    async def interrupt(self) -> bool:
        return await self._driver.run(cells.interrupt(self.id, self._execd._patience()))

    async def input(self, text: str) -> None:
        await self._driver.run(cells.give_input(self.id, text, self._execd._patience()))

    async def variables(self, limit: int = 1000) -> list[models.VariableReply]:
        return await self._driver.run(cells.variables(self.id, limit, self._execd._patience()))

    async def complete(self, code: str, cursor: int | None = None) -> models.CompleteReply:
        plan = cells.complete(self.id, code, cursor, self._execd._patience())
        return await self._driver.run(plan)

    async def restart(self) -> models.SessionReply:
        return await self._driver.run(cells.restart(self.id, self._execd._patience()))

    async def fork(self, n: int = 1) -> list[AsyncSession]:
        forked = await self._driver.run(cells.fork(self.id, n, self._execd._patience()))
        branches = [AsyncSession(self._execd, branch.id) for branch in forked.sessions]
        for branch in branches:
            branch.warnings = list(forked.warnings)
        return branches

    async def delete(self) -> None:
        await self._driver.run(cells.delete(self.id, self._execd._patience()))


class AsyncFiles:
    def __init__(self, execd: AsyncExecd) -> None:
        self._execd = execd
        self._driver = execd._driver

    async def read(self, path: str) -> bytes:
        return await self._driver.run(transfers.read(path, self._execd._patience()))

    def stream(self, path: str) -> AsyncIterator[bytes]:
        return self._driver.iterate(transfers.chunks(path, self._execd._patience()))

    async def write(
        self, path: str, data: bytes | str | IO[bytes] | IO[str], *, mode: str | None = None
    ) -> None:
        given = data if isinstance(data, bytes | str) else data.read()
        content = given.encode() if isinstance(given, str) else given
        await self._driver.run(transfers.write(path, content, mode, self._execd._patience()))

    async def list(self, path: str = ".") -> list[models.EntryReply]:
        return await self._driver.run(transfers.listing(path, self._execd._patience()))

    async def exists(self, path: str) -> bool:
        return await self._driver.run(transfers.exists(path, self._execd._patience()))

    async def stat(self, path: str) -> models.DescriptionReply:
        return await self._driver.run(transfers.stat(path, self._execd._patience()))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._driver.run(transfers.remove(path, recursive, self._execd._patience()))

    async def mkdir(self, path: str) -> None:
        plan = transfers.change("mkdir", {"path": path}, self._execd._patience())
        await self._driver.run(plan)

    async def move(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        await self._driver.run(transfers.change("move", body, self._execd._patience()))

    async def copy(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        await self._driver.run(transfers.change("copy", body, self._execd._patience()))

    async def search(self, glob: str, path: str = ".", limit: int = 1000) -> models.SearchReply:
        body = {"glob": glob, "path": path, "limit": limit}
        return await self._driver.run(transfers.search(body, self._execd._patience()))

    async def upload(
        self,
        local: str | os.PathLike[str],
        remote: str,
        *,
        mode: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        plan = transfers.upload(Path(local), remote, mode, progress, self._execd._patience())
        await self._driver.run(plan)

    async def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> None:
        plan = transfers.download(remote, Path(local), progress, self._execd._patience())
        await self._driver.run(plan)

    async def upload_dir(
        self,
        local: str | os.PathLike[str],
        remote: str,
        *,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        plan = directories.upload_dir(Path(local), remote, progress, self._execd._patience())
        return await self._driver.run(plan)

    async def download_dir(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        plan = directories.download_dir(remote, Path(local), progress, self._execd._patience())
        return await self._driver.run(plan)

    def watch(
        self, path: str = ".", *, recursive: bool = False, debounce_seconds: float | None = None
    ) -> AsyncIterator[Event]:
        plan = follow_changes(path, recursive, debounce_seconds, self._execd._patience())
        return self._driver.iterate(plan)
