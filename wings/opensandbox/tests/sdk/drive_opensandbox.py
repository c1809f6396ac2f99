"""Drives OpenSandbox's SDKs, opensandbox and opensandbox-code-interpreter, through one scenario and
prints the results as a line of JSON.

    drive_opensandbox.py SCENARIO sync|async HOST:PORT [TOKEN]

Runs in an environment that has the SDKs and nothing of execd. Scenarios are written once: ``done``
awaits the results of the async classes and passes on the results of the sync classes. The SDKs have
no call for terminals, and none for the standard input of a command.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

from opensandbox import SandboxSync
from opensandbox.models.execd import ExecutionHandlers
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox_sdk import (
    SECONDS,
    connect,
    done,
    error_in,
    error_of,
    handlers,
    interpreter_of,
    options,
    stderr_of,
    stdout_of,
    until,
)

NAMES = ["with space.txt", "naïve-名前.txt", "q'uote\"d.txt", "per%20cent+plus&and.txt", "-dash"]


async def commands(box: Any) -> Any:
    async def run(command: str | list[str], **given: Any) -> Any:
        return await done(box.commands.run(command, opts=options(**given)))

    heard: list[str] = []
    plain = await run("echo out; echo err >&2")
    failed = await run("echo some; exit 7")
    signaled = await run("kill -9 $$")
    missing = await run("no-such-program-here")
    invalid = await run(r"printf 'a\xffb'; printf '\xc3'; sleep 0.1; printf '\xa9'")
    large = await run("yes 0123456789abcde | head -c 1600000")
    lost = await run("true", working_directory="/no/such")
    hear = handlers(
        box,
        on_init=lambda message: heard.append(f"init {bool(message.id)}"),
        on_stdout=lambda message: heard.append(message.text),
        on_error=lambda message: heard.append(f"error {message.value}"),
        on_execution_complete=lambda _: heard.append("complete"),
    )
    await done(box.commands.run("echo one; echo two", handlers=hear))
    await done(box.commands.run("exit 3", handlers=hear))
    await done(box.commands.set_env("SET_BY_SDK", 'it\'s "set" $HOME'))
    return {
        "plain": [stdout_of(plain), stderr_of(plain), plain.exit_code, plain.text],
        "failed": [stdout_of(failed), failed.exit_code, error_in(failed)],
        "signal": [signaled.exit_code, error_in(signaled), signaled.error.traceback],
        "missing": [missing.exit_code, "no-such-program-here" in stderr_of(missing)],
        "invalid": stdout_of(invalid),
        "large": [len(stdout_of(large)), hashlib.sha256(stdout_of(large).encode()).hexdigest()],
        "lines": stdout_of(await run(r"printf 'a\n\nb\r\nc\rd'")),
        "heard": heard,
        "argv": stdout_of(await run(["printf", "%s|", "a b", "$HOME", "*"])),
        "variable": stdout_of(await run("echo $GREETING", envs={"GREETING": "hé llo"})),
        "cwd": stdout_of(await run("pwd", working_directory="/tmp")),
        "missing cwd": [lost.exit_code, error_in(lost)],
        "own uid": (await run("true", uid=int(stdout_of(await run("id -u"))))).exit_code,
        "set": stdout_of(await run("echo $SET_BY_SDK")),
        "silent": (await run("sleep 4")).exit_code,
        "health": await done(box.is_healthy()),
        "unset": await unset_env(box),
    }


async def unset_env(box: Any) -> int | None:
    """Remove the variable of ``set_env``, which belongs to all commands of the sandbox."""
    return (await done(box.commands.run('sed -i /SET_BY_SDK/d "$EXECD_ENVS"'))).exit_code


async def timeouts(box: Any) -> Any:
    command = "echo started; sleep 97531 & exec sleep 97532"
    began = time.monotonic()
    ended = await done(box.commands.run(command, opts=options(timeout=1)))
    elapsed = time.monotonic() - began
    left = await done(box.commands.run("pgrep -f '[s]leep 9753[12]'"))
    return {
        "elapsed_seconds": elapsed,
        "partial": stdout_of(ended),
        "exit_code": ended.exit_code,
        "error": error_in(ended),
        "left": stdout_of(left),
        "status": (await done(box.commands.get_command_status(ended.id))).exit_code,
    }


async def background(box: Any) -> Any:
    found: dict[str, Any] = {}
    release = "/tmp/opensandbox-release-" + os.urandom(4).hex()
    began = await done(
        box.commands.run(
            f"echo early; echo err >&2; until [ -e {release} ]; do sleep 0.05; done; echo late;"
            "exit 4",
            opts=options(background=True),
        )
    )
    found["began"] = [bool(began.id), began.exit_code, stdout_of(began)]
    # Another client knows only the id: this is how clients of this API come back.
    again = await connect(sys.argv[2])
    status = await done(again.commands.get_command_status(began.id))
    found["running"] = [status.running, status.exit_code, "echo early" in status.content]

    async def first_logs() -> Any:
        logs = await done(again.commands.get_background_command_logs(began.id))
        return logs if "err" in logs.content else None

    logs = await until(first_logs)
    found["logs"] = logs.content
    await done(box.commands.run(f"touch {release}"))

    async def end() -> Any:
        now = await done(again.commands.get_command_status(began.id))
        return None if now.running else now

    ended = await until(end)
    rest = await done(again.commands.get_background_command_logs(began.id, logs.cursor))
    found["ended"] = [ended.exit_code, ended.finished_at >= ended.started_at]
    found["rest"] = rest.content
    last = await done(again.commands.get_background_command_logs(began.id, rest.cursor))
    found["last"] = [last.content, last.cursor == rest.cursor]
    found["unknown"] = await error_of(lambda: box.commands.get_command_status("nothing"))
    foreground = await done(box.commands.run("true"))
    found["foreground"] = await error_of(
        lambda: box.commands.get_background_command_logs(foreground.id)
    )
    await done(box.commands.run(f"rm {release}"))
    await done(again.close())
    return found


async def interrupt(box: Any) -> Any:
    found: dict[str, Any] = {}
    victim = await done(
        box.commands.run("sleep 86421 & sleep 86422; true", opts=options(background=True))
    )
    await done(box.commands.interrupt(victim.id))
    status = await done(box.commands.get_command_status(victim.id))
    found["background"] = [status.running, status.exit_code]
    left = await done(box.commands.run("pgrep -f '[s]leep 8642[12]'"))
    found["tree"] = stdout_of(left)
    found["again"] = await error_of(lambda: box.commands.interrupt(victim.id))
    found["unknown"] = await error_of(lambda: box.commands.interrupt("nothing"))
    ids: list[str] = []
    hear = handlers(box, on_init=lambda message: ids.append(message.id))

    async def interrupt_when_known() -> None:
        # On another connection, because a sync client waits for its command.
        again = await connect("async")
        await until(lambda: ids)
        await again.commands.interrupt(ids[0])
        await again.close()

    def run_foreground() -> Any:
        return box.commands.run("echo seen; exec sleep 86423", handlers=hear)

    ended, _ = await asyncio.gather(
        asyncio.to_thread(run_foreground) if isinstance(box, SandboxSync) else run_foreground(),
        interrupt_when_known(),
    )
    found["foreground"] = [ended.exit_code, error_in(ended)]
    return found


async def sessions(box: Any) -> Any:
    session = await done(box.commands.create_session(working_directory="/tmp"))

    async def run(command: str, **given: Any) -> Any:
        return await done(box.commands.run_in_session(session, command, **given))

    found: dict[str, Any] = {"cwd": (await run("pwd")).text}
    await run("plain=1; export OUT=2; hello() { echo hello $1; }; cd /; set -f")
    found["state"] = (await run("echo $plain $OUT $(hello you) $PWD *")).text
    failed = await run("echo partial; exit 5")
    found["failed"] = [stdout_of(failed), failed.exit_code]
    found["after exit"] = (await run("echo $plain $PWD")).text
    forged = await run("echo __EXIT_CODE__:0; echo __PWD__:/etc; (exit 3)")
    found["forged"] = [forged.exit_code, (await run("pwd")).text]
    found["one-time cwd"] = (await run("pwd", working_directory="/usr")).text
    late = await run("echo on time; sleep 86424", timeout=timedelta(seconds=1))
    found["timeout"] = [stdout_of(late), late.exit_code, error_in(late)]
    found["after timeout"] = (await run("echo $plain")).text
    began = time.monotonic()
    await run("sleep 60 & echo begun")
    found["elapsed_seconds"] = time.monotonic() - began
    both = await run("echo err >&2")
    found["stderr"] = stdout_of(both) + stderr_of(both)
    await done(box.commands.delete_session(session))
    found["deleted"] = await error_of(lambda: run("true"))
    found["deleted twice"] = await error_of(lambda: box.commands.delete_session(session))
    return found


async def files(box: Any) -> Any:
    top = "/tmp/opensandbox-files-" + os.urandom(4).hex()
    fs, found = box.files, {}
    content = random.Random(1).randbytes(8 << 20)
    await done(fs.create_directories([WriteEntry(path=f"{top}/made/deep", mode=750)]))
    await done(fs.write_file(f"{top}/big.bin", content))
    found["bytes"] = await done(fs.read_bytes(f"{top}/big.bin")) == content
    await done(fs.write_file(f"{top}/stream.bin", io.BytesIO(content), mode=600))
    found["streamed"] = await streamed(box, f"{top}/stream.bin") == content
    part = await done(fs.read_bytes(f"{top}/big.bin", range_header="bytes=1000-1999"))
    found["range"] = part == content[1000:2000]
    entries = [WriteEntry(path=f"{top}/n/{name}", data=name, mode=644) for name in NAMES]
    await done(fs.write_files(entries))
    found["names"] = [await done(fs.read_file(f"{top}/n/{name}")) for name in NAMES] == NAMES
    await done(fs.write_file(f"{top}/lines.txt", "one\ntwo\nthree\nfour\n", mode=644))
    found["lines"] = await done(fs.read_file(f"{top}/lines.txt", offset=2, limit=2))
    found["info"] = await facts(fs, f"{top}/lines.txt")
    found["directory"] = await facts(fs, f"{top}/made/deep")
    await done(fs.set_permissions([SetPermissionEntry(path=f"{top}/lines.txt", mode=640)]))
    found["permissions"] = (await facts(fs, f"{top}/lines.txt"))[2]
    replaced = ContentReplaceEntry(path=f"{top}/lines.txt", old_content="o", new_content="0")
    [result] = await done(fs.replace_contents_detailed([replaced]))
    found["replaced"] = [result.replaced_count, await done(fs.read_file(f"{top}/lines.txt"))]
    await done(fs.replace_contents([replaced]))
    await done(fs.move_files([MoveEntry(source=f"{top}/lines.txt", destination=f"{top}/moved")]))
    found["listed"] = await paths(fs.list_directory(DirectoryListEntry(path=top)), top)
    deep = DirectoryListEntry(path=top, depth=2)
    found["deep"] = await paths(fs.list_directory(deep), f"{top}/made")
    found["search"] = await paths(fs.search(SearchEntry(path=top, pattern="*.bin")), top)
    found["odd names"] = len(await done(fs.search(SearchEntry(path=f"{top}/n", pattern="*"))))
    await done(fs.write_file("~/opensandbox-home.txt", "home", mode=644))
    shown = await done(box.commands.run("cat ~/opensandbox-home.txt; rm ~/opensandbox-home.txt"))
    found["home"] = stdout_of(shown)
    found["errors"] = [
        await error_of(lambda: fs.read_file(f"{top}/nothing")),
        await error_of(lambda: fs.read_file(f"{top}/made")),
        await error_of(lambda: fs.get_file_info([f"{top}/nothing"])),
        await error_of(lambda: fs.delete_files([f"{top}/made"])),
        await error_of(lambda: fs.list_directory(DirectoryListEntry(path=f"{top}/moved"))),
    ]
    await done(fs.delete_files([f"{top}/moved", f"{top}/nothing"]))
    await done(fs.delete_directories([top]))
    found["gone"] = await error_of(lambda: fs.get_file_info([top]))
    return found


async def streamed(box: Any, path: str) -> bytes:
    if isinstance(box, SandboxSync):
        return b"".join(box.files.read_bytes_stream(path))
    chunks = await done(box.files.read_bytes_stream(path))
    return b"".join([chunk async for chunk in chunks])


async def facts(fs: Any, path: str) -> list[Any]:
    [entry] = (await done(fs.get_file_info([path]))).values()
    return [entry.entry_type, entry.size if entry.entry_type == "file" else 0, entry.mode]


async def paths(entries: Any, below: str) -> list[str]:
    all_paths = [entry.path for entry in await done(entries)]
    return sorted(path.removeprefix(below) for path in all_paths if path.startswith(below))


async def metrics(box: Any) -> Any:
    shown = await done(box.get_metrics())
    return [
        shown.cpu_count > 0,
        0 <= shown.cpu_used_percentage <= 100,
        0 < shown.memory_used_in_mib <= shown.memory_total_in_mib,
    ]


async def isolation(box: Any) -> Any:
    """What this daemon refuses, and with what words."""
    found = await done(box.isolation.capabilities())
    uid, gid = stdout_of(await done(box.commands.run("echo $(id -u) $(id -g)"))).split()
    path = "/tmp/opensandbox-identity-" + os.urandom(4).hex()
    own, other = box.files_with_identity(int(uid), int(gid)), box.files_with_identity(54321, 54321)
    await done(own.write_file(path, "x", mode=644))
    read = await done(own.read_file(path))
    await done(own.delete_files([path]))
    return {
        "available": found.available,
        "list": await error_of(box.isolation.list),
        "own identity": read,
        "other identity": await error_of(lambda: other.read_file(path)),
    }


async def refused(box: Any) -> Any:
    """With a wrong token or none."""
    interpreter = await interpreter_of(box, skip_health_check=True)
    return {
        "command": await error_of(lambda: box.commands.run("true")),
        "file": await error_of(lambda: box.files.read_file("/etc/hostname")),
        "info": await error_of(lambda: box.files.get_file_info(["/etc/hostname"])),
        "code": await error_of(lambda: interpreter.codes.run("1", language="python")),
        "context": await error_of(lambda: interpreter.codes.create_context("python")),
        "metrics": await error_of(box.get_metrics),
    }


async def code(box: Any) -> Any:
    interpreter = await interpreter_of(box)  # with the strict check of the interpreter's health
    run = interpreter.codes.run
    context = await done(interpreter.codes.create_context("python"))
    found: dict[str, Any] = {"language": context.language}
    first = await done(run("x = 41\nprint('printed')\nx + 1", context=context))
    found["first"] = [stdout_of(first), [one.text for one in first.result], error_in(first)]
    found["state"] = (await done(run("x", context=context))).text
    failed = await done(run("1/0", context=context))
    found["error"] = [error_in(failed), "ZeroDivisionError" in "".join(failed.error.traceback)]
    # The SDK keeps the plain text of a result and drops the other formats.
    html = "from IPython.display import HTML, display\ndisplay(HTML('<b>é</b>'))"
    found["html"] = (await done(run(html, context=context))).text
    odd = await done(
        run("print('line\\u2028sep\\x85end')\nprint()\nprint('last')", context=context)
    )
    found["odd"] = stdout_of(odd)
    large = await done(run("print('é' * 1_000_000)", context=context))
    found["large"] = len(stdout_of(large))
    found["default"] = [
        (await done(run("y = 1; y", language="python"))).text,
        (await done(run("y", language="python"))).text,
        error_in(await done(run("y", context=context))),
    ]
    return {**found, **await other_contexts(interpreter, context), **await interrupted_cell(box)}


async def other_contexts(interpreter: Any, context: Any) -> dict[str, Any]:
    codes, found = interpreter.codes, {}
    bash = await done(codes.create_context("bash"))
    await done(codes.run("word=bash", context=bash))
    found["bash"] = (await done(codes.run("echo from $word", context=bash))).text
    found["other language"] = await error_of(lambda: codes.run("1", language="java"))
    found["listed"] = context.id in [one.id for one in await done(codes.list_contexts("python"))]
    found["got"] = (await done(codes.get_context(bash.id))).language
    await done(codes.delete_context(context.id))
    await done(codes.delete_contexts("bash"))
    found["deleted"] = [
        await error_of(lambda: codes.get_context(context.id)),
        await error_of(lambda: codes.get_context(bash.id)),
        await error_of(lambda: codes.run("1", context=context)),
    ]
    return found


async def interrupted_cell(box: Any) -> dict[str, Any]:
    again = await connect("async")
    interpreter = await interpreter_of(again)
    context = await interpreter.codes.create_context("python")
    begun = asyncio.Event()

    async def hear(_: Any) -> None:
        begun.set()

    cell = asyncio.ensure_future(
        interpreter.codes.run(
            "import time\nz = 5\nprint('begun', flush=True)\ntime.sleep(86425)",
            context=context,
            handlers=ExecutionHandlers(on_stdout=hear),
        )
    )
    await asyncio.wait_for(begun.wait(), SECONDS)
    await interpreter.codes.interrupt(context.id)
    ended = await asyncio.wait_for(cell, SECONDS)
    after = await interpreter.codes.run("z", context=context)
    await interpreter.codes.delete_context(context.id)
    await again.close()
    return {"interrupted": [ended.error.name, after.text]}


async def plot(box: Any) -> Any:
    interpreter = await interpreter_of(box)
    path = "/tmp/opensandbox-plot-" + os.urandom(4).hex() + ".png"
    drawn = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.savefig({!r})\nplt.show()"
    shown = await done(interpreter.codes.run(drawn.format(path), language="python"))
    if shown.error is not None:
        return shown.error.name
    saved = await done(box.files.read_bytes(path))
    await done(box.files.delete_files([path]))
    return [shown.text, saved[:4].decode("latin-1")]


async def main() -> None:
    logging.disable()  # the SDK logs each refusal
    box = await connect(sys.argv[2])
    print(json.dumps(await globals()[sys.argv[1]](box)), flush=True)
    await done(box.close())


asyncio.run(main())
