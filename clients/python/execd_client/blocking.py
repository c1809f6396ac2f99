"""Generated from ``generator/sources/aio.py`` by ``generator/blocking.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import httpx

from execd_client import cells, checkpointing, directories, executions, models, transfers
from execd_client.address import parse_address
from execd_client.calls import RETRY_SECONDS, Patience, call, decoded
from execd_client.drive_blocking import Driver
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
from execd_client.target import FixedTarget, SandboxTarget, tls_of
from execd_client.terminal_blocking import Terminal
from execd_client.watching import follow_changes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from execd_client.events import Event
    from execd_client.options import CellOptions, SessionOptions
    from execd_client.results import CellResult, Result
    from execd_client.target import Target
    from execd_client.transfers import Progress


class Execd:
    """A client of one daemon. Close the client at the end, or use ``with``.

    Example:
        with Execd("http://127.0.0.1:8888") as sandbox:
            print(sandbox.run("echo hello").stdout)

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
        self._begin(FixedTarget(address), uds, verify, retry_seconds, deadline_seconds)

    def _begin(
        self,
        target: Target,
        uds: str | None,
        verify: Any,
        retry_seconds: float,
        deadline_seconds: float | None,
    ) -> None:
        options, transport = client_options(uds, verify)
        if transport:
            options["transport"] = httpx.HTTPTransport(**transport)
        self._uds = uds
        self._verify = verify
        self._driver = Driver(target, httpx.Client(**options))
        self._retry_seconds = retry_seconds
        self._deadline_seconds = deadline_seconds
        self.sessions = Sessions(self)
        """Python sessions."""
        self.files = Files(self)
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
            with Execd.from_sandbox(sandbox) as execd:
                print(execd.run("echo hello").stdout)
        """
        made = cls.__new__(cls)
        target = SandboxTarget(sandbox, token)
        made._begin(target, None, tls_of(sandbox), retry_seconds, deadline_seconds)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Detached runs and sessions go on."""
        self._driver.close()

    def _patience(self, deadline_seconds: float | None = None) -> Patience:
        wished = self._deadline_seconds if deadline_seconds is None else deadline_seconds
        return Patience(self._retry_seconds, wished)

    # --- commands

    def run(
        self,
        command: str | Sequence[str],
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Run a command, and wait for the result. A string is a line for ``/bin/sh``; a list is a
        program with its arguments. ``on_event`` gets each event while the command runs.

        Example:
            result = sandbox.run(["wc", "-c"], stdin="four")
            print(result.exit_code, result.stdout)

        A program that fails is a result: ``result.check()`` raises CommandFailed. A command whose
        caller is gone for 30 s ends (``--reattach-seconds``).
        """
        patience = self._patience(options.pop("deadline_seconds", None))
        kind = RunOptions if on_event is None else StreamOptions
        body = run_body(command, options, kind)
        if on_event is None:
            return self._driver.run(executions.run(executions.EXECUTIONS, body, patience))
        plan = executions.run_with_events(executions.EXECUTIONS, body, patience, on_event)
        return self._driver.run(plan)

    def stream(
        self, command: str | Sequence[str], **options: Unpack[StreamOptions]
    ) -> Iterator[Event]:
        """Run a command, and iterate over its events, to ``exited``. A stream that breaks goes on
        at the next event.

        Example:
            for event in sandbox.stream("make"):
                print(event.kind, event.text)
        """
        patience = self._patience(options.pop("deadline_seconds", None))
        plan = executions.follow(executions.EXECUTIONS, run_body(command, options), patience)
        return self._driver.iterate(plan)

    def start(self, command: str | Sequence[str], **options: Unpack[StreamOptions]) -> Handle:
        """Start a command that goes on without readers, and return its handle.

        Example:
            handle = sandbox.start("sleep 1; echo done")
            print(handle.wait().stdout)
        """
        patience = self._patience(options.pop("deadline_seconds", None))
        body = run_body(command, options)
        plan = executions.start(executions.EXECUTIONS, body, patience)
        return Handle(self, self._driver.run(plan).id)

    def handle(self, execution_id: str) -> Handle:
        """The handle of a command or a cell that runs, or has run.

        Example:
            print((sandbox.handle("deploy-17").wait()).exit_code)
        """
        return Handle(self, execution_id)

    def list(self, state: str | None = None) -> list[models.ExecutionItem]:
        """The commands and cells that execd remembers, newest first.

        Example:
            running = sandbox.list("RUNNING")
        """
        return self._driver.run(executions.list_all(state, self._patience()))

    # --- checkpoints

    def checkpoint(
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
            made = sandbox.checkpoint("before", roots=["project"], exclude=["**/.cache"])
        """
        body = {
            "id": checkpoint_id or new_id("checkpoint"),
            "roots": roots,
            "watched": watched,
            "exclude": exclude,
        }
        return self._driver.run(checkpointing.create(body, self._patience()))

    def checkpoints(self) -> Sequence[models.CheckpointReply]:
        """All checkpoints.

        Example:
            print([found.id for found in sandbox.checkpoints()])
        """
        return self._driver.run(checkpointing.list_all(self._patience()))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Forget a checkpoint. A checkpoint that is gone is no error; ``start`` is a Conflict.

        Example:
            sandbox.delete_checkpoint("before")
        """
        self._driver.run(checkpointing.delete(checkpoint_id, self._patience()))

    def changes(
        self, checkpoint_id: str = checkpointing.START, path: str | None = None
    ) -> Sequence[models.ChangeItem]:
        """What has changed since a checkpoint: created, modified, deleted, or of another type or
        mode. ``path`` restricts to a file or a directory.

        Example:
            for found in sandbox.changes("before"):
                print(found.change, found.path)
        """
        plan = checkpointing.changes(checkpoint_id, path, self._patience())
        return self._driver.run(plan)

    def patch(self, checkpoint_id: str = checkpointing.START, path: str | None = None) -> bytes:
        """The changes since a checkpoint for ``git apply``. Comment lines at the beginning name
        what a patch cannot have, for example large binary files.

        Example:
            Path("work.patch").write_bytes(sandbox.patch("before"))
        """
        plan = checkpointing.exported(checkpoint_id, "patch", path, self._patience())
        return self._driver.run(plan)

    def restore(self, checkpoint_id: str = checkpointing.START) -> models.RestoreReply:
        """Make the files of a checkpoint as they were. Programs go on.

        Example:
            print(sandbox.restore("before").restored)
        """
        return self._driver.run(checkpointing.restore(checkpoint_id, self._patience()))

    def reset(
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
            outcome = sandbox.reset()
            if not outcome.clean:
                print(outcome.differences.items)
        """
        body = {"checkpoint": checkpoint_id, "verify": verify, "keep_records": keep_records}
        outcome = self._driver.run(checkpointing.reset(body, self._patience()))
        self._driver.episode.id = outcome.episode
        return outcome

    # --- the sandbox

    def capabilities(self) -> models.CapabilitiesReply:
        """What execd found on this kernel, and which protections hold.

        Example:
            print(sandbox.capabilities().namespaces)
        """
        plan = call(Request("GET", "/v1/capabilities"), self._patience())
        return decoded(self._driver.run(plan), models.CapabilitiesReply)

    def stats(self) -> models.Stats:
        """Figures of executions, sessions, CPU, memory, disk and traffic.

        Example:
            print(sandbox.stats().executions.running)
        """
        plan = call(Request("GET", "/v1/stats"), self._patience())
        return decoded(self._driver.run(plan), models.Stats)


class Handle:
    """A command or a cell that runs without this client. ``id`` is its name."""

    def __init__(self, execd: Execd, execution_id: str) -> None:
        self._execd = execd
        self._driver = execd._driver
        self.id = execution_id

    def wait(self, deadline_seconds: float | None = None) -> Result:
        """The result, at the end of the command.

        Example:
            print(handle.wait().exit_code)
        """
        patience = self._execd._patience(deadline_seconds)
        return self._driver.run(executions.wait(self.id, patience))

    def result(self) -> Result:
        """The result as far as the command is, at once.

        Example:
            print(handle.result().state)
        """
        return self._driver.run(executions.get(self.id, self._execd._patience()))

    def events(self, after: int = 0) -> Iterator[Event]:
        """All events behind the number ``after``, to ``exited``.

        Example:
            for event in handle.events():
                print(event.kind)
        """
        patience = self._execd._patience()
        plan = executions.follow("", {"id": self.id}, patience, has_started=True, after=after)
        return self._driver.iterate(plan)

    def output(self, stream: str = "stdout", start: int = 0, size: int | None = None) -> bytes:
        """The bytes of ``stdout`` or ``stderr`` from ``start`` on, as far as they are, but at most
        ``size``. Raises RangeNotSatisfiable where ``start`` is behind the last byte.

        Example:
            print(handle.output("stderr"))
        """
        plan = executions.output(self.id, stream, start, size, self._execd._patience())
        return self._driver.run(plan)

    def kill(self, grace_seconds: float | None = None) -> Result:
        """End all processes of the command: TERM, then KILL after the grace.

        Example:
            handle.kill()
        """
        plan = executions.kill(self.id, grace_seconds, self._execd._patience())
        return self._driver.run(plan)

    def signal(self, name: str | int = "SIGINT") -> None:
        """Send a signal to the program.

        Example:
            handle.signal("SIGUSR1")
        """
        self._driver.run(executions.signal(self.id, name, self._execd._patience()))

    def stdin(self, data: bytes | str = b"", *, eof: bool = False) -> int:
        """Give input to a command that was started with ``stdin_open=True``; ``eof`` ends the
        input. Returns the number of bytes that the program has taken. Raises ConnectionLost where
        some of the bytes may have arrived.

        Example:
            handle.stdin("yes\\n", eof=True)
        """
        content = data.encode() if isinstance(data, str) else data
        plan = executions.stdin(self.id, content, eof, self._execd._patience())
        return self._driver.run(plan)

    def resize(self, cols: int, rows: int) -> None:
        """Set the size of the command's terminal.

        Example:
            handle.resize(120, 40)
        """
        self._driver.run(executions.resize(self.id, cols, rows, self._execd._patience()))

    def terminal(self, offset: int = 0) -> Terminal:
        """Open the command's terminal: bytes both ways. ``offset`` is the number of output bytes
        that the viewer has already.

        Example:
            with handle.terminal() as terminal:
                terminal.write(b"ls\\n")
                print(terminal.read())
        """
        address = self._driver.target.resolve()
        address = replace(address, headers=self._driver.episode.headers_of(address))
        uds, verify = self._execd._uds, self._execd._verify
        return Terminal.open(address, uds, verify, self.id, offset)

    def forget(self) -> None:
        """End the command, and forget its record.

        Example:
            handle.forget()
        """
        self._driver.run(executions.forget(self.id, self._execd._patience()))


class Sessions:
    """Python sessions: interpreters that stay."""

    def __init__(self, execd: Execd) -> None:
        self._execd = execd
        self._driver = execd._driver

    def create(self, session_id: str | None = None, **options: Unpack[SessionOptions]) -> Session:
        """Make a session. Raises Conflict if the id is taken.

        Example:
            session = sandbox.sessions.create("notebook")
        """
        body = session_body(session_id, options)
        made = self._driver.run(cells.create(body, self._execd._patience()))
        return Session(self._execd, made.id)

    def get(self, session_id: str) -> Session:
        """The session of this id. Raises NotFound.

        Example:
            session = sandbox.sessions.get("notebook")
        """
        self._driver.run(cells.get(session_id, self._execd._patience()))
        return Session(self._execd, session_id)

    def get_or_create(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        """The session of this id, made if missing.

        Example:
            session = sandbox.sessions.get_or_create("notebook")
        """
        plan = cells.get_or_create(session_body(session_id, options), self._execd._patience())
        self._driver.run(plan)
        return Session(self._execd, session_id)

    def list(self) -> list[models.SessionReply]:
        """All sessions, oldest first.

        Example:
            print([session.id for session in sandbox.sessions.list()])
        """
        return self._driver.run(cells.list_all(self._execd._patience()))


class Session:
    """A Python interpreter whose variables stay from cell to cell. ``with`` deletes the
    session at the end.

    Example:
        with sandbox.sessions.create() as session:
            session.run("x = 20")
            print(session.run("x + 22").text)
    """

    def __init__(self, execd: Execd, session_id: str) -> None:
        self._execd = execd
        self._driver = execd._driver
        self.id = session_id
        self.warnings: list[str] = []
        """The parts of the state that ``fork`` could not copy into this session."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def run(
        self,
        code: str,
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[CellOptions],
    ) -> CellResult:
        """Run a cell, and wait for the result. ``on_event`` gets each event meanwhile.

        Example:
            cell = session.run("1 + 1")
            print(cell.text)

        An error in the code is a result: ``cell.error``; ``cell.check()`` raises CellFailed. After
        a loss of the interpreter ``cell.state_lost`` is true: run the setup again.
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        if on_event is None:
            found = self._driver.run(executions.run(path, body, patience))
        else:
            plan = executions.run_with_events(path, body, patience, on_event)
            found = self._driver.run(plan)
        return cast("CellResult", found)

    def stream(self, code: str, **options: Unpack[CellOptions]) -> Iterator[Event]:
        """Run a cell, and iterate over its events, to ``exited``.

        Example:
            for event in session.stream("for n in range(3): print(n)"):
                print(event.kind, event.text)
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        return self._driver.iterate(executions.follow(path, body, patience))

    def start(self, code: str, **options: Unpack[CellOptions]) -> Handle:
        """Start a cell that goes on without readers, and return its handle.

        Example:
            handle = session.start("train()")
        """
        patience = self._execd._patience(options.pop("deadline_seconds", None))
        path, body = f"{cells.path_of(self.id)}/execute", cell_body(code, options)
        started = self._driver.run(executions.start(path, body, patience))
        return Handle(self._execd, started.id)

    def info(self) -> models.SessionReply:
        """State, generation, memory and age of the session.

        Example:
            print(session.info().state)
        """
        return self._driver.run(cells.get(self.id, self._execd._patience()))

    def interrupt(self) -> bool:
        """Interrupt the running cell. False: no cell runs.

        Example:
            session.interrupt()
        """
        return self._driver.run(cells.interrupt(self.id, self._execd._patience()))

    def input(self, text: str) -> None:
        """Answer the ``input()`` of a cell that runs with ``allow_input=True``.

        Example:
            session.input("yes")
        """
        self._driver.run(cells.give_input(self.id, text, self._execd._patience()))

    def variables(self, limit: int = 1000) -> list[models.VariableReply]:
        """The user's variables.

        Example:
            print([variable.name for variable in session.variables()])
        """
        return self._driver.run(cells.variables(self.id, limit, self._execd._patience()))

    def complete(self, code: str, cursor: int | None = None) -> models.CompleteReply:
        """Completions of code at the cursor.

        Example:
            print(session.complete("import o").matches)
        """
        plan = cells.complete(self.id, code, cursor, self._execd._patience())
        return self._driver.run(plan)

    def restart(self) -> models.SessionReply:
        """Give the session a new interpreter, without state.

        Example:
            session.restart()
        """
        return self._driver.run(cells.restart(self.id, self._execd._patience()))

    def fork(self, n: int = 1) -> list[Session]:
        """Branch the live state into ``n`` new sessions. ``warnings`` of each branch names the
        parts of the state that the branches do not have, for example threads.

        Example:
            a, b = session.fork(2)
            print(a.warnings)
        """
        forked = self._driver.run(cells.fork(self.id, n, self._execd._patience()))
        branches = [Session(self._execd, branch.id) for branch in forked.sessions]
        for branch in branches:
            branch.warnings = list(forked.warnings)
        return branches

    def delete(self) -> None:
        """End the session. A session that is gone is no error.

        Example:
            session.delete()
        """
        self._driver.run(cells.delete(self.id, self._execd._patience()))


class Files:
    """Files of the sandbox. Paths are those that commands see: absolute, or relative to the base
    dir, in which commands start."""

    def __init__(self, execd: Execd) -> None:
        self._execd = execd
        self._driver = execd._driver

    def read(self, path: str) -> bytes:
        """The content of a file.

        Example:
            print(sandbox.files.read("notes.txt").decode())
        """
        return self._driver.run(transfers.read(path, self._execd._patience()))

    def stream(self, path: str) -> Iterator[bytes]:
        """The content of a file, piece by piece. Raises TransferFailed if the file changes.

        Example:
            for piece in sandbox.files.stream("big.bin"):
                digest.update(piece)
        """
        return self._driver.iterate(transfers.chunks(path, self._execd._patience()))

    def write(
        self, path: str, data: bytes | str | IO[bytes] | IO[str], *, mode: str | None = None
    ) -> None:
        """Write a file as a whole, and its missing parents. ``mode`` has four octal digits.

        Example:
            sandbox.files.write("notes.txt", "hello")
        """
        given = data if isinstance(data, bytes | str) else data.read()
        content = given.encode() if isinstance(given, str) else given
        self._driver.run(transfers.write(path, content, mode, self._execd._patience()))

    def list(self, path: str = ".") -> list[models.EntryReply]:
        """The entries of a directory.

        Example:
            print([entry.name for entry in sandbox.files.list()])
        """
        return self._driver.run(transfers.listing(path, self._execd._patience()))

    def exists(self, path: str) -> bool:
        """Whether there is something at the path.

        Example:
            print(sandbox.files.exists("notes.txt"))
        """
        return self._driver.run(transfers.exists(path, self._execd._patience()))

    def stat(self, path: str) -> models.DescriptionReply:
        """Type, size, time and mode of a path. Raises NotFound.

        Example:
            print(sandbox.files.stat("notes.txt").size)
        """
        return self._driver.run(transfers.stat(path, self._execd._patience()))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, an empty directory, or with ``recursive`` any directory.

        Example:
            sandbox.files.remove("build", recursive=True)
        """
        self._driver.run(transfers.remove(path, recursive, self._execd._patience()))

    def mkdir(self, path: str) -> None:
        """Make a directory and its missing parents.

        Example:
            sandbox.files.mkdir("build/objects")
        """
        plan = transfers.change("mkdir", {"path": path}, self._execd._patience())
        self._driver.run(plan)

    def move(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        """Rename a file or a directory. ``dest`` is the new name itself.

        Example:
            sandbox.files.move("draft.txt", "final.txt")
        """
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        self._driver.run(transfers.change("move", body, self._execd._patience()))

    def copy(self, src: str, dest: str, *, overwrite: bool = False) -> None:
        """Copy a file or a directory. ``dest`` is the new name itself.

        Example:
            sandbox.files.copy("final.txt", "backup.txt")
        """
        body = {"src": src, "dest": dest, "overwrite": overwrite}
        self._driver.run(transfers.change("copy", body, self._execd._patience()))

    def search(self, glob: str, path: str = ".", limit: int = 1000) -> models.SearchReply:
        """Paths below a directory that fit a pattern; ``**`` stands for any directories.

        Example:
            found = sandbox.files.search("**/*.py")
            print([item.path for item in found.items])
        """
        body = {"glob": glob, "path": path, "limit": limit}
        return self._driver.run(transfers.search(body, self._execd._patience()))

    def upload(
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
            sandbox.files.upload("model.bin", "models/model.bin")
        """
        plan = transfers.upload(Path(local), remote, mode, progress, self._execd._patience())
        self._driver.run(plan)

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Fetch a file. A download that broke off, also in another process, goes on. The digest is
        checked.

        Example:
            sandbox.files.download("results.csv", "results.csv")
        """
        plan = transfers.download(remote, Path(local), progress, self._execd._patience())
        self._driver.run(plan)

    def upload_dir(
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
            sandbox.files.upload_dir("project", "project")

        Links that lead out of the directory are left out; returns a sentence for each.
        """
        plan = directories.upload_dir(Path(local), remote, progress, self._execd._patience())
        return self._driver.run(plan)

    def download_dir(
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
            sandbox.files.download_dir("project/results", "results")

        Links that lead out of the directory are left out; returns a sentence for each.
        """
        plan = directories.download_dir(remote, Path(local), progress, self._execd._patience())
        return self._driver.run(plan)

    def watch(
        self, path: str = ".", *, recursive: bool = False, debounce_seconds: float | None = None
    ) -> Iterator[Event]:
        """The changes below a directory of the base dir: events ``watching``, ``changes``,
        ``overflow`` (changes were missed) and ``gone``.

        Example:
            for event in sandbox.files.watch():
                print([change.path for change in event.changes])
        """
        plan = follow_changes(path, recursive, debounce_seconds, self._execd._patience())
        return self._driver.iterate(plan)
