"""The source of both clients, from which ``generator/blocking.py`` writes the package's files."""

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
    """A client of one daemon. Close the client at the end, or use ``async with``.

    Example:
        async with AsyncExecd("http://127.0.0.1:8888") as sandbox:
            print((await sandbox.run("echo hello")).stdout)

    ``url`` may have a path prefix, and may be ``unix:/path/of/socket``; or ``uds`` is the path of
    the socket. The ``token`` is sent as ``Authorization`` and as ``X-Access-Token``, because
    routers strip the former. ``headers`` are sent with each request.

    A request that failed is repeated until ``retry_seconds`` have passed without a sign of life.
    Each run has an id, so a repeated request never runs twice. ``deadline_seconds`` bounds each
    call as a whole, if the call does not say otherwise.
    """

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
        """A client for a sandbox of the SDK ``k8s_agent_sandbox``. Requests go to the same address
        as the SDK's own requests, with the same headers.

        Example:
            sandbox = sandbox_client.create_sandbox(warmpool="python-runtime-pool")
            async with AsyncExecd.from_sandbox(sandbox) as execd:
                print((await execd.run("echo hello")).stdout)
        """
        made = cls.__new__(cls)
        target = AsyncSandboxTarget(sandbox, token)
        made._begin(target, None, tls_of(sandbox), retry_seconds, deadline_seconds)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Detached runs and sessions go on."""
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
        """Run a command, and wait for the result. A string is a line for ``/bin/sh``; a list is a
        program with its arguments. ``on_event`` gets each event while the command runs.

        Example:
            result = await sandbox.run(["wc", "-c"], stdin="four")
            print(result.exit_code, result.stdout)

        A program that fails is a result: ``result.check()`` raises CommandFailed. A command whose
        caller is gone for 30 s ends (``--reattach-seconds``).
        """
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
        """Run a command, and iterate over its events, to ``exited``. A stream that breaks goes on
        at the next event.

        Example:
            async for event in sandbox.stream("make"):
                print(event.kind, event.text)
        """
        patience = self._patience(options.pop("deadline_seconds", None))
        plan = executions.follow(executions.EXECUTIONS, run_body(command, options), patience)
        return self._driver.iterate(plan)

    async def start(
        self, command: str | Sequence[str], **options: Unpack[StreamOptions]
    ) -> AsyncHandle:
        """Start a command that goes on without readers, and return its handle.

        Example:
            handle = await sandbox.start("sleep 1; echo done")
            print((await handle.wait()).stdout)
        """
        patience = self._patience(options.pop("deadline_seconds", None))
        body = run_body(command, options)
        plan = executions.start(executions.EXECUTIONS, body, patience)
        return AsyncHandle(self, (await self._driver.run(plan)).id)

    def handle(self, execution_id: str) -> AsyncHandle:
        """The handle of a command or a cell that runs, or has run.

        Example:
            print((await sandbox.handle("deploy-17").wait()).exit_code)
        """
        return AsyncHandle(self, execution_id)

    async def list(self, state: str | None = None) -> list[models.ExecutionItem]:
        """The commands and cells that execd remembers, newest first.

        Example:
            running = await sandbox.list("RUNNING")
        """
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
        """Remember directories: of ``roots`` (by itself the base dir) the content, of ``watched``
        only what tells that something has changed. ``exclude`` has patterns of paths below the
        roots. Raises Conflict if the id is taken.

        Example:
            made = await sandbox.checkpoint("before", roots=["project"], exclude=["**/.cache"])
        """
        body = {
            "id": checkpoint_id or new_id("checkpoint"),
            "roots": roots,
            "watched": watched,
            "exclude": exclude,
        }
        return await self._driver.run(checkpointing.create(body, self._patience()))

    async def checkpoints(self) -> Sequence[models.CheckpointReply]:
        """All checkpoints.

        Example:
            print([found.id for found in await sandbox.checkpoints()])
        """
        return await self._driver.run(checkpointing.list_all(self._patience()))

    async def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Forget a checkpoint. A checkpoint that is gone is no error; ``start`` is a Conflict.

        Example:
            await sandbox.delete_checkpoint("before")
        """
        await self._driver.run(checkpointing.delete(checkpoint_id, self._patience()))

    async def changes(
        self, checkpoint_id: str = checkpointing.START, path: str | None = None
    ) -> Sequence[models.ChangeItem]:
        """What has changed since a checkpoint: created, modified, deleted, or of another type or
        mode. ``path`` restricts to a file or a directory.

        Example:
            for found in await sandbox.changes("before"):
                print(found.change, found.path)
        """
        plan = checkpointing.changes(checkpoint_id, path, self._patience())
        return await self._driver.run(plan)

    async def patch(
        self, checkpoint_id: str = checkpointing.START, path: str | None = None
    ) -> bytes:
        """The changes since a checkpoint for ``git apply``. Comment lines at the beginning name
        what a patch cannot have, for example large binary files.

        Example:
            Path("work.patch").write_bytes(await sandbox.patch("before"))
        """
        plan = checkpointing.exported(checkpoint_id, "patch", path, self._patience())
        return await self._driver.run(plan)

    async def restore(self, checkpoint_id: str = checkpointing.START) -> models.RestoreReply:
        """Make the files of a checkpoint as they were. Programs go on.

        Example:
            print((await sandbox.restore("before")).restored)
        """
        return await self._driver.run(checkpointing.restore(checkpoint_id, self._patience()))

    async def reset(
        self,
        checkpoint_id: str | None = None,
        *,
        verify: str | None = None,
        keep_records: bool | None = None,
    ) -> models.ResetReply:
        """End all programs and sessions, make the files of a checkpoint (by itself ``start``) as
        they were, and verify that the sandbox is as it was: ``clean`` says so, and ``differences``
        names what is not. A new episode begins, to which this client then belongs; other clients
        get EpisodeEnded.

        Example:
            outcome = await sandbox.reset()
            if not outcome.clean:
                print(outcome.differences.items)
        """
        body = {"checkpoint": checkpoint_id, "verify": verify, "keep_records": keep_records}
        outcome = await self._driver.run(checkpointing.reset(body, self._patience()))
        self._driver.episode.id = outcome.episode
        return outcome

    # --- the sandbox

    async def capabilities(self) -> models.CapabilitiesReply:
        """What execd found on this kernel, and which protections hold.

        Example:
            print((await sandbox.capabilities()).namespaces)
        """
        plan = call(Request("GET", "/v1/capabilities"), self._patience())
        return decoded(await self._driver.run(plan), models.CapabilitiesReply)

    async def stats(self) -> models.Stats:
        """Figures of executions, sessions, CPU, memory, disk and traffic.

        Example:
            print((await sandbox.stats()).executions.running)
        """
        plan = call(Request("GET", "/v1/stats"), self._patience())
        return decoded(await self._driver.run(plan), models.Stats)


class AsyncHandle:
    """A command or a cell that runs without this client. ``id`` is its name."""

    def __init__(self, execd: AsyncExecd, execution_id: str) -> None:
        self._execd = execd
        self._driver = execd._driver
        self.id = execution_id

    async def wait(self, deadline_seconds: float | None = None) -> Result:
        """The result, at the end of the command.

        Example:
            print((await handle.wait()).exit_code)
        """
        patience = self._execd._patience(deadline_seconds)
        return await self._driver.run(executions.wait(self.id, patience))

    async def result(self) -> Result:
        """The result as far as the command is, at once.

        Example:
            print((await handle.result()).state)
        """
        return await self._driver.run(executions.get(self.id, self._execd._patience()))

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """All events behind the number ``after``, to ``exited``.

        Example:
            async for event in handle.events():
                print(event.kind)
        """
        patience = self._execd._patience()
        plan = executions.follow("", {"id": self.id}, patience, has_started=True, after=after)
        return self._driver.iterate(plan)

    async def output(
        self, stream: str = "stdout", start: int = 0, size: int | None = None
    ) -> bytes:
        """The bytes of ``stdout`` or ``stderr`` from ``start`` on, as far as they are, but at most
        ``size``. Raises RangeNotSatisfiable where ``start`` is behind the last byte.

        Example:
            print(await handle.output("stderr"))
        """
        plan = executions.output(self.id, stream, start, size, self._execd._patience())
        return await self._driver.run(plan)

    async def kill(self, grace_seconds: float | None = None) -> Result:
        """End all processes of the command: TERM, then KILL after the grace.

        Example:
            await handle.kill()
        """
        plan = executions.kill(self.id, grace_seconds, self._execd._patience())
        return await self._driver.run(plan)

    async def signal(self, name: str | int = "SIGINT") -> None:
        """Send a signal to the program.

        Example:
            await handle.signal("SIGUSR1")
        """
        await self._driver.run(executions.signal(self.id, name, self._execd._patience()))

    async def stdin(self, data: bytes | str = b"", *, eof: bool = False) -> int:
        """Give input to a command that was started with ``stdin_open=True``; ``eof`` ends the
        input. Returns the number of bytes that the program has taken. Raises ConnectionLost where
        some of the bytes may have arrived.

        Example:
            await handle.stdin("yes\\n", eof=True)
        """
        content = data.encode() if isinstance(data, str) else data
        plan = executions.stdin(self.id, content, eof, self._execd._patience())
        return await self._driver.run(plan)

    async def resize(self, cols: int, rows: int) -> None:
        """Set the size of the command's terminal.

        Example:
            await handle.resize(120, 40)
        """
        await self._driver.run(executions.resize(self.id, cols, rows, self._execd._patience()))

    async def terminal(self, offset: int = 0) -> AsyncTerminal:
        """Open the command's terminal: bytes both ways. ``offset`` is the number of output bytes
        that the viewer has already.

        Example:
            async with await handle.terminal() as terminal:
                await terminal.write(b"ls\\n")
                print(await terminal.read())
        """
        address = await self._driver.target.resolve()
        address = replace(address, headers=self._driver.episode.headers_of(address))
        uds, verify = self._execd._uds, self._execd._verify
        return await AsyncTerminal.open(address, uds, verify, self.id, offset)

    async def forget(self) -> None:
        """End the command, and forget its record.

        Example:
            await handle.forget()
        """
        await self._driver.run(executions.forget(self.id, self._execd._patience()))


class AsyncSessions:
    """Python sessions: interpreters that stay."""

    def __init__(self, execd: AsyncExecd) -> None:
        self._execd = execd
        self._driver = execd._driver

    async def create(
        self, session_id: str | None = None, **options: Unpack[SessionOptions]
    ) -> AsyncSession:
        """Make a session. Raises Conflict if the id is taken.

        Example:
            session = await sandbox.sessions.create("notebook")
        """
        body = session_body(session_id, options)
        made = await self._driver.run(cells.create(body, self._execd._patience()))
        return AsyncSession(self._execd, made.id)

    async def get(self, session_id: str) -> AsyncSession:
        """The session of this id. Raises NotFound.

        Example:
            session = await sandbox.sessions.get("notebook")
        """
        await self._driver.run(cells.get(session_id, self._execd._patience()))
        return AsyncSession(self._execd, session_id)

    async def get_or_create(
        self, session_id: str, **options: Unpack[SessionOptions]
    ) -> AsyncSession:
        """The session of this id, made if missing.

        Example:
            session = await sandbox.sessions.get_or_create("notebook")
        """
        plan = cells.get_or_create(session_body(session_id, options), self._execd._patience())
        await self._driver.run(plan)
        return AsyncSession(self._execd, session_id)

    async def list(self) -> list[models.SessionReply]:
        """All sessions, oldest first.

        Example:
            print([session.id for session in await sandbox.sessions.list()])
        """
        return await self._driver.run(cells.list_all(self._execd._patience()))


class AsyncSession:
    """A Python interpreter whose variables stay from cell to cell. ``async with`` deletes the
    session at the end.

    Example:
        async with await sandbox.sessions.create() as session:
            await session.run("x = 20")
            print((await session.run("x + 22")).text)
    """

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
        """Run a cell, and wait for the result. ``on_event`` gets each event meanwhile.

        Example:
            cell = await session.run("1 + 1")
            print(cell.text)

        An error in the code is a result: ``cell.error``; ``cell.check()`` raises CellFailed. After
        a loss of the interpreter ``cell.state_lost`` is true: run the setup again.
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        if on_event is None:
            found = await self._driver.run(executions.run(path, body, patience))
        else:
            plan = executions.run_with_events(path, body, patience, on_event)
            found = await self._driver.run(plan)
        return cast("CellResult", found)

    def stream(self, code: str, **options: Unpack[CellOptions]) -> AsyncIterator[Event]:
        """Run a cell, and iterate over its events, to ``exited``.

        Example:
            async for event in session.stream("for n in range(3): print(n)"):
                print(event.kind, event.text)
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        return self._driver.iterate(executions.follow(path, body, patience))

    async def start(self, code: str, **options: Unpack[CellOptions]) -> AsyncHandle:
        """Start a cell that goes on without readers, and return its handle.

        Example:
            handle = await session.start("train()")
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        started = await self._driver.run(executions.start(path, body, patience))
        return AsyncHandle(self._execd, started.id)

    async def info(self) -> models.SessionReply:
        """State, generation, memory and age of the session.

        Example:
            print((await session.info()).state)
        """
        return await self._driver.run(cells.get(self.id, self._execd._patience()))

    async def interrupt(self) -> bool:
        """Interrupt the running cell. False: no cell runs.

        Example:
            await session.interrupt()
        """
        return await self._driver.run(cells.interrupt(self.id, self._execd._patience()))

    async def input(self, text: str) -> None:
        """Answer the ``input()`` of a cell that runs with ``allow_input=True``.

        Example:
            await session.input("yes")
        """
        await self._driver.run(cells.give_input(self.id, text, self._execd._patience()))

    async def variables(self, limit: int = 1000) -> list[models.VariableReply]:
        """The user's variables.

        Example:
            print([variable.name for variable in await session.variables()])
        """
        return await self._driver.run(cells.variables(self.id, limit, self._execd._patience()))

    async def complete(self, code: str, cursor: int | None = None) -> models.CompleteReply:
        """Completions of code at the cursor.

        Example:
            print((await session.complete("import o")).matches)
        """
        plan = cells.complete(self.id, code, cursor, self._execd._patience())
        return await self._driver.run(plan)

    async def restart(self) -> models.SessionReply:
        """Give the session a new interpreter, without state.

        Example:
            await session.restart()
        """
        return await self._driver.run(cells.restart(self.id, self._execd._patience()))

    async def fork(self, n: int = 1) -> list[AsyncSession]:
        """Branch the live state into ``n`` new sessions. ``warnings`` of each branch names the
        parts of the state that the branches do not have, for example threads.

        Example:
            a, b = await session.fork(2)
            print(a.warnings)
        """
        forked = await self._driver.run(cells.fork(self.id, n, self._execd._patience()))
        branches = [AsyncSession(self._execd, branch.id) for branch in forked.sessions]
        for branch in branches:
            branch.warnings = list(forked.warnings)
        return branches

    async def delete(self) -> None:
        """End the session. A session that is gone is no error.

        Example:
            await session.delete()
        """
        await self._driver.run(cells.delete(self.id, self._execd._patience()))


class AsyncFiles:
    """Files of the sandbox. Paths are those that commands see: absolute, or relative to the base
    dir, in which commands start."""

    def __init__(self, execd: AsyncExecd) -> None:
        self._execd = execd
        self._driver = execd._driver

    async def read(self, path: str) -> bytes:
        """The content of a file.

        Example:
            print((await sandbox.files.read("notes.txt")).decode())
        """
        return await self._driver.run(transfers.read(path, self._execd._patience()))

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """The content of a file, piece by piece. Raises TransferFailed if the file changes.

        Example:
            async for piece in sandbox.files.stream("big.bin"):
                digest.update(piece)
        """
        return self._driver.iterate(transfers.chunks(path, self._execd._patience()))

    async def write(
        self, path: str, data: bytes | str | IO[bytes] | IO[str], *, mode: str | None = None
    ) -> None:
        """Write a file as a whole, and its missing parents. ``mode`` has four octal digits.

        Example:
            await sandbox.files.write("notes.txt", "hello")
        """
        given = data if isinstance(data, bytes | str) else data.read()
        content = given.encode() if isinstance(given, str) else given
        await self._driver.run(transfers.write(path, content, mode, self._execd._patience()))

    async def list(self, path: str = ".") -> list[models.EntryReply]:
        """The entries of a directory.

        Example:
            print([entry.name for entry in await sandbox.files.list()])
        """
        return await self._driver.run(transfers.listing(path, self._execd._patience()))

    async def exists(self, path: str) -> bool:
        """Whether there is something at the path.

        Example:
            print(await sandbox.files.exists("notes.txt"))
        """
        return await self._driver.run(transfers.exists(path, self._execd._patience()))

    async def stat(self, path: str) -> models.DescriptionReply:
        """Type, size, time and mode of a path. Raises NotFound.

        Example:
            print((await sandbox.files.stat("notes.txt")).size)
        """
        return await self._driver.run(transfers.stat(path, self._execd._patience()))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, an empty directory, or with ``recursive`` any directory.

        Example:
            await sandbox.files.remove("build", recursive=True)
        """
        await self._driver.run(transfers.remove(path, recursive, self._execd._patience()))

    async def mkdir(self, path: str) -> None:
        """Make a directory and its missing parents.

        Example:
            await sandbox.files.mkdir("build/objects")
        """
        plan = transfers.change("mkdir", {"path": path}, self._execd._patience())
        await self._driver.run(plan)

    async def move(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        """Rename a file or a directory. ``dest`` is the new name itself.

        Example:
            await sandbox.files.move("draft.txt", "final.txt")
        """
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        await self._driver.run(transfers.change("move", body, self._execd._patience()))

    async def copy(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        """Copy a file or a directory. ``dest`` is the new name itself.

        Example:
            await sandbox.files.copy("final.txt", "backup.txt")
        """
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        await self._driver.run(transfers.change("copy", body, self._execd._patience()))

    async def search(self, glob: str, path: str = ".", limit: int = 1000) -> models.SearchReply:
        """Paths below a directory that fit a pattern; ``**`` stands for any directories.

        Example:
            found = await sandbox.files.search("**/*.py")
            print([item.path for item in found.items])
        """
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
        """Send a local file. An upload that broke off, also in another process, goes on. The digest
        is checked. ``progress`` gets the bytes done and the bytes of the whole.

        Example:
            await sandbox.files.upload("model.bin", "models/model.bin")
        """
        plan = transfers.upload(Path(local), remote, mode, progress, self._execd._patience())
        await self._driver.run(plan)

    async def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Fetch a file. A download that broke off, also in another process, goes on. The digest is
        checked.

        Example:
            await sandbox.files.download("results.csv", "results.csv")
        """
        plan = transfers.download(remote, Path(local), progress, self._execd._patience())
        await self._driver.run(plan)

    async def upload_dir(
        self,
        local: str | os.PathLike[str],
        remote: str,
        *,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Merge a local directory into a remote one. A new directory gets its name with the last
        file, and an upload that broke off, also in another process, goes on. Raises OSError, before
        anything is sent, for a directory that is missing or cannot be read.

        Example:
            await sandbox.files.upload_dir("project", "project")

        Links that lead out of the directory are left out; returns a sentence for each.
        """
        plan = directories.upload_dir(Path(local), remote, progress, self._execd._patience())
        return await self._driver.run(plan)

    async def download_dir(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Merge a remote directory into a local one. Files that are there with the same size and
        time are not fetched again. A new directory gets its name with the last file, and a download
        that broke off, also in another process, goes on.

        Example:
            await sandbox.files.download_dir("project/results", "results")

        Links that lead out of the directory are left out; returns a sentence for each.
        """
        plan = directories.download_dir(remote, Path(local), progress, self._execd._patience())
        return await self._driver.run(plan)

    def watch(
        self, path: str = ".", *, recursive: bool = False, debounce_seconds: float | None = None
    ) -> AsyncIterator[Event]:
        """The changes below a directory of the base dir: events ``watching``, ``changes``,
        ``overflow`` (changes were missed) and ``gone``.

        Example:
            async for event in sandbox.files.watch():
                print([change.path for change in event.changes])
        """
        plan = follow_changes(path, recursive, debounce_seconds, self._execd._patience())
        return self._driver.iterate(plan)
