"""The tools. Their docstrings and the descriptions of their parameters are what a model reads."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import anyio
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from execd_client import (
    AsyncExecd,
    AsyncHandle,
    DeadlineExceeded,
    EpisodeEnded,
    ExecdError,
    RangeNotSatisfiable,
    Result,
)
from execd_client.mcp_server import answers, bounds
from execd_client.results import CellResult

P = ParamSpec("P")
T = TypeVar("T")
Answer = str | list[str | Image]
WAIT_SECONDS = 45.0
"""Shorter than the 60 s after which clients of the TypeScript SDK give up a call by default."""
KILL_SECONDS = 10.0
SHOWN = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}

Command = Annotated[str, Field(description="A line for /bin/sh; pipes and && work.")]
Directory = Annotated[
    str | None, Field(description="Directory to run in. Default: the base directory.")
]
Wait = Annotated[
    float,
    Field(
        gt=0, le=3600, description="Seconds to wait. What runs longer goes on as a background job."
    ),
]
Timeout = Annotated[
    float | None, Field(gt=0, description="Seconds after which the run is killed. Default: never.")
]
JobId = Annotated[str, Field(description="The job_id of an earlier answer, or of list_jobs.")]


def told(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The tool, whose errors of the client become errors that name the next step."""

    @functools.wraps(tool)
    async def wrapped(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return await tool(*arguments, **named)
        except ExecdError as error:
            if isinstance(error, EpisodeEnded):
                tools: Any = arguments[0]  # the next call belongs to the new episode
                tools._sandbox._driver.episode.id = None
            raise ToolError(answers.next_step(error)) from error

    return wrapped


class Tools:
    """The tools of one sandbox."""

    def __init__(self, sandbox: AsyncExecd, session_id: str) -> None:
        self._sandbox = sandbox
        self._session_id = session_id

    @told
    async def run_command(
        self,
        command: Command,
        cwd: Directory = None,
        stdin: Annotated[str, Field(description="Text for the standard input.")] = "",
        wait_seconds: Wait = WAIT_SECONDS,
        timeout_seconds: Timeout = None,
    ) -> str:
        """Run a shell command in the sandbox and get its exit code, stdout and stderr.

        Each command starts in a new shell: cd and export do not last to the next command. A command
        that is not done after wait_seconds goes on in the background, and the answer has its job_id
        for wait_job, read_job and kill_job. For servers and other programs that never end use
        start_job."""
        options = self._options(cwd, timeout_seconds)
        handle = await self._sandbox.start(command, stdin=stdin, **options)
        return answers.of_job(await _end_of(handle, wait_seconds))

    @told
    async def run_python(
        self,
        code: Annotated[str, Field(description="Python code. The last expression is shown.")],
        restart: Annotated[
            bool, Field(description="Begin with a new interpreter, without variables.")
        ] = False,
        wait_seconds: Wait = WAIT_SECONDS,
        timeout_seconds: Timeout = None,
        session_id: Annotated[
            str | None, Field(description="Another session with variables of its own.")
        ] = None,
    ) -> Answer:
        """Run Python code in a session whose variables, imports and functions stay from call to
        call, like the cells of a notebook.

        Shows what the code prints, the value of the last expression, errors with the traceback, and
        figures of matplotlib as images (plt.show() is not needed). Code that is not done after
        wait_seconds goes on, and the answer has its job_id for wait_job, read_job and kill_job; the
        next code in this session waits for the end. To run shell commands use run_command."""
        name = session_id or self._session_id
        session = await self._sandbox.sessions.get_or_create(name)
        if restart:
            await session.restart()
        options: dict[str, Any] = {}
        if timeout_seconds is not None:
            options["timeout_seconds"] = timeout_seconds
        handle = await session.start(code, **options)
        return _with_images(await _end_of(handle, wait_seconds))

    @told
    async def start_job(self, command: Command, cwd: Directory = None) -> str:
        """Start a shell command in the background, for example a server or a long build, and return
        its job_id at once. The job goes on until it ends or until kill_job."""
        handle = await self._sandbox.start(command, **self._options(cwd, None))
        return (
            f"started as job_id={handle.id!r}: read_job shows its output, wait_job waits for its "
            "end, kill_job ends it"
        )

    @told
    async def list_jobs(
        self,
        running_only: Annotated[bool, Field(description="Without jobs that have ended.")] = False,
    ) -> str:
        """List the commands and Python runs of this sandbox, newest first, with job_id and exit
        code."""
        return answers.of_list(await self._sandbox.list("RUNNING" if running_only else None))

    @told
    async def wait_job(self, job_id: JobId, wait_seconds: Wait = WAIT_SECONDS) -> Answer:
        """Wait until a job ends, and get its exit code and output. If the job still runs after
        wait_seconds, the answer says so; call wait_job again."""
        handle = self._sandbox.handle(job_id)
        return _with_images(await _waited(handle, wait_seconds))

    @told
    async def read_job(
        self,
        job_id: JobId,
        stream: Annotated[
            Literal["stdout", "stderr"], Field(description="Which output start_byte is about.")
        ] = "stdout",
        start_byte: Annotated[
            int | None,
            Field(ge=0, description="First byte to show. Default: state, beginning and end."),
        ] = None,
    ) -> Answer:
        """Look at a job without waiting: its state, and its output so far. With start_byte, read on
        in a long output; each answer says where the next one begins."""
        handle = self._sandbox.handle(job_id)
        if start_byte is None:
            return _with_images(await handle.result())
        try:
            content = await handle.output(stream, start_byte, bounds.STREAM_BYTES + 1)
        except RangeNotSatisfiable:
            return f"{stream} has no byte {start_byte} yet: wait_job waits for the end of the job"
        end = len(content)
        if end > bounds.STREAM_BYTES:
            end = bounds.character_start(content, bounds.STREAM_BYTES)
        more = "more follows there" if end < len(content) else "this is all so far"
        place = f"[next start_byte={start_byte + end}; {more}]"
        return f"{bounds.text_of(content[:end])}\n{place}"

    @told
    async def kill_job(self, job_id: JobId) -> str:
        """End a job with all its processes, and get its last output. Python code is interrupted;
        where it does not obey, its session loses its variables."""
        return answers.of_job(await self._sandbox.handle(job_id).kill())

    def _options(self, cwd: str | None, timeout_seconds: float | None) -> Any:
        """The options of a command that the model has given."""
        given = {"cwd": cwd, "timeout_seconds": timeout_seconds}
        return {name: value for name, value in given.items() if value is not None}

    def registered(self) -> list[Callable[..., Any]]:
        """All tools."""
        found: list[Callable[..., Any]] = [self.run_command, self.run_python]
        found += [self.start_job, self.list_jobs, self.wait_job, self.read_job, self.kill_job]
        return found


async def _end_of(handle: AsyncHandle, wait_seconds: float) -> Result:
    """The end of a job that this call has started, or the job after the time. A call that the
    peer cancels ends its job."""
    try:
        return await _waited(handle, wait_seconds)
    except asyncio.CancelledError:
        with anyio.move_on_after(KILL_SECONDS, shield=True):
            await handle.kill()
        raise


async def _waited(handle: AsyncHandle, wait_seconds: float) -> Result:
    try:
        return await handle.wait(wait_seconds)
    except DeadlineExceeded:
        return await handle.result()


def _with_images(result: Result) -> Answer:
    """The text, and the images that fit into one answer."""
    text = answers.of_job(result)
    if not isinstance(result, CellResult):
        return text
    images: list[str | Image] = []
    size = 0
    for bundle in result.images:
        kind = next((kind for kind in SHOWN if kind in bundle.data), None)
        content = bundle.image or b""
        if kind is None or size + len(content) > bounds.IMAGE_BYTES:
            images.append(
                f"[an image of {len(content)} bytes is left out: show fewer or smaller images, "
                "for example with plt.figure(dpi=60), or save the image to a file]"
            )
            continue
        size += len(content)
        images.append(Image(data=content, format=SHOWN[kind]))
    return [text, *images] if images else text
