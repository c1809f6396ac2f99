"""What the scenarios of ``drive_opensandbox.py`` share: connecting, and looking at results."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import lifecycle_stand_in
from code_interpreter import CodeInterpreter, CodeInterpreterSync
from opensandbox import Sandbox, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DAEMON = sys.argv[3]
TOKEN = sys.argv[4] if len(sys.argv) > 4 else None
SECONDS = 30.0


async def done(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def error_of(action: Callable[[], Awaitable[Any] | Any]) -> list[Any] | None:
    """The class of the exception, and the HTTP status and the code that the daemon gave."""
    try:
        await done(action())
    except SandboxException as error:
        http_status = getattr(error, "status_code", None)
        return [type(error).__name__, http_status, error.error.code]
    return None


async def until(condition: Callable[[], Awaitable[Any] | Any]) -> Any:
    """The first true result of the condition."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if result := await done(condition()):
            return result
        await asyncio.sleep(0.05)
    raise TimeoutError


def handlers(box: Any, **heard: Callable[[Any], None]) -> Any:
    if isinstance(box, SandboxSync):
        return ExecutionHandlersSync(**heard)

    def awaited(hear: Callable[[Any], None]) -> Any:
        async def handle(message: Any) -> None:
            hear(message)

        return handle

    return ExecutionHandlers(**{name: awaited(hear) for name, hear in heard.items()})


def options(**given: Any) -> RunCommandOpts:
    if "timeout" in given:
        given["timeout"] = timedelta(seconds=given["timeout"])
    return RunCommandOpts(**given)


def stdout_of(execution: Any) -> str:
    return "".join(message.text for message in execution.logs.stdout)


def stderr_of(execution: Any) -> str:
    return "".join(message.text for message in execution.logs.stderr)


def error_in(execution: Any) -> list[str] | None:
    return execution.error and [execution.error.name, execution.error.value]


async def interpreter_of(box: Any, **given: Any) -> Any:
    kind = CodeInterpreterSync if isinstance(box, SandboxSync) else CodeInterpreter
    return await done(kind.create(box, **given))


async def connect(kind: str) -> Any:
    domain = lifecycle_stand_in.begin(DAEMON, TOKEN)
    if kind == "async":
        return await Sandbox.connect("sandbox-1", ConnectionConfig(domain=domain))
    return SandboxSync.connect("sandbox-1", ConnectionConfigSync(domain=domain))
