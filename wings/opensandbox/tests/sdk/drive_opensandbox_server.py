"""Takes a sandbox from a server of OpenSandbox with OpenSandbox's SDKs, uses the sandbox and ends
the sandbox. Prints the results as a line of JSON.

    drive_opensandbox_server.py sync|async SERVER_HOST:PORT IMAGE API_KEY
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from code_interpreter import CodeInterpreter, CodeInterpreterSync
from opensandbox import Sandbox, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxException

if TYPE_CHECKING:
    from collections.abc import Awaitable

READY_SECONDS = 60
KIND, DOMAIN, IMAGE, API_KEY = sys.argv[1:5]


async def done(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def main() -> None:
    logging.disable()  # the SDK logs each refusal
    is_async = KIND == "async"
    config = (ConnectionConfig if is_async else ConnectionConfigSync)(
        domain=DOMAIN, api_key=API_KEY, request_timeout=timedelta(seconds=READY_SECONDS)
    )
    box = await done(
        (Sandbox if is_async else SandboxSync).create(
            IMAGE,
            env={"GREETING": "hello"},
            ready_timeout=timedelta(seconds=READY_SECONDS),
            connection_config=config,
        )
    )
    found: dict[str, Any] = {"state": (await done(box.get_info())).status.state}
    ran = await done(box.commands.run("echo out; exit 4"))
    found["command"] = [ran.text, ran.exit_code]
    await done(box.files.write_file("notes.txt", "written", mode=644))
    found["file"] = (await done(box.commands.run("cat notes.txt"))).text
    await done(box.commands.set_env("SET_BY_SDK", "yes"))
    found["set"] = (await done(box.commands.run("echo $SET_BY_SDK"))).text
    # The strict check connects to 127.0.0.1. In a pod the daemon listens on all addresses,
    # and here on the pod's address alone; drive_opensandbox.py has the strict check.
    kind = CodeInterpreter if is_async else CodeInterpreterSync
    interpreter = await done(kind.create(box, skip_health_check=True))
    found["code"] = (await done(interpreter.codes.run("6 * 7", language="python"))).text
    await done(box.renew(timedelta(hours=1)))
    other = (Sandbox if is_async else SandboxSync).connect(box.id, config)
    again = await done(other)
    found["reconnected"] = (await done(again.commands.run("cat notes.txt"))).text
    await done(box.kill())
    try:
        await done(box.get_info())
    except SandboxException as error:
        found["after kill"] = getattr(error, "status_code", None)
    await done(box.close())
    print(json.dumps(found), flush=True)


asyncio.run(main())
