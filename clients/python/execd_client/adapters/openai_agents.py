"""Function tools for the OpenAI Agents SDK. The extra is ``openai-agents``."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from agents import FunctionTool, ToolOutputImage, ToolOutputText, function_tool

from execd_client.options import new_id

if TYPE_CHECKING:
    from execd_client.aio import AsyncExecd
    from execd_client.results import CellResult, Result

OUTPUT_BYTES = 16_000
"""Of each stream in one answer; a longer stream has head, marker line, tail."""
TIMEOUT_SECONDS = 120.0


def tools(
    sandbox: AsyncExecd, session_id: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[FunctionTool]:
    """The tools ``run_command`` and ``run_python`` of a sandbox. ``session_id`` names the Python
    session, so that a later agent goes on with the same variables.

    Example:
        agent = Agent("Coder", tools=tools(AsyncExecd("http://127.0.0.1:8888")))
        print((await Runner.run(agent, "How many files are in /etc?")).final_output)
    """
    session_name = session_id or new_id("agent")

    async def run_command(command: str, cwd: str | None = None) -> str:
        """Run a shell command in a Linux sandbox. Each command starts in a new shell.

        Args:
            command: A line for /bin/sh; pipes and && work.
            cwd: The directory to run in. Default: the base directory.
        """
        result = await sandbox.run(
            ["/bin/sh", "-c", "--", command],
            cwd=cwd or ".",
            timeout_seconds=timeout_seconds,
            reply_bytes=OUTPUT_BYTES,
        )
        return _text(result)

    async def run_python(code: str) -> list[ToolOutputText | ToolOutputImage]:
        """Run Python code in a session of a Linux sandbox. Variables stay from call to call. The
        value of the last expression, output, errors and figures are shown.

        Args:
            code: The code of one cell, as in a notebook.
        """
        session = await sandbox.sessions.get_or_create(session_name, reply_bytes=OUTPUT_BYTES)
        cell = await session.run(code, timeout_seconds=timeout_seconds)
        return [ToolOutputText(text=_text(cell) + _value(cell)), *_images(cell)]

    return [function_tool(run_command), function_tool(run_python)]


def _text(result: Result) -> str:
    ending = f"exit code {result.exit_code}" + (f": {result.message}" if result.message else "")
    streams = (("stdout", result.stdout), ("stderr", result.stderr))
    return "\n".join([ending, *(f"{name}:\n{text}" for name, text in streams if text)])


def _value(cell: CellResult) -> str:
    if cell.error is not None:
        return "\n" + "\n".join([*cell.error.traceback, f"{cell.error.name}: {cell.error.value}"])
    lost = "\nThe interpreter was replaced: all variables are gone." if cell.state_lost else ""
    return lost + (f"\nvalue:\n{cell.text[:OUTPUT_BYTES]}" if cell.text else "")


def _images(cell: CellResult) -> list[ToolOutputImage]:
    return [
        ToolOutputImage(image_url=f"data:{kind};base64,{base64.b64encode(bundle.image).decode()}")
        for bundle in cell.images
        for kind in ("image/png", "image/jpeg")
        if kind in bundle.data and bundle.image is not None
    ]
