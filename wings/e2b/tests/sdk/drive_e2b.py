"""Drives E2B's SDKs, e2b and e2b-code-interpreter, through one scenario and prints the results as a
line of JSON.

    drive_e2b.py SCENARIO sync|async ENVD_URL CODE_URL [TOKEN]

Runs in an environment that has the SDKs and nothing of execd. Scenarios are written once: ``done``
awaits the results of the async classes and passes on the results of the sync classes. In the SDK's
debug mode no control plane is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import io
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

os.environ["E2B_DEBUG"] = "true"
os.environ["E2B_SANDBOX_URL"] = sys.argv[3]

from e2b import CommandExitException, NotFoundException, TimeoutException
from e2b.connection_config import ConnectionConfig
from e2b.exceptions import SandboxException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAMES = [
    "plain.txt",
    "with space.txt",
    "naïve-日本.txt",
    "it's.txt",
    'say "hi".txt',
    "100%.txt",
    "100%25.txt",
    "a;b=c&d+e#f?.txt",
    "-dash",
    "dots..txt",
]
SECONDS = 30.0


class SyncSandbox(Sandbox):
    """The code interpreter is where the caller says, which the SDK cannot be told."""

    _jupyter_url = sys.argv[4]


class AwaitedSandbox(AsyncSandbox):
    _jupyter_url = sys.argv[4]


async def done(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def error_of(action: Callable[[], Awaitable[Any] | Any]) -> str | None:
    """The name of the exception's class, and the exit code if there is one."""
    try:
        await done(action())
    except CommandExitException as error:
        return f"exit {error.exit_code}"
    except Exception as error:
        return type(error).__name__
    return None


async def until(condition: Callable[[], Awaitable[Any] | Any]) -> bool:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if await done(condition()):
            return True
        await asyncio.sleep(0.05)
    return False


async def commands(box: Any) -> Any:
    run = box.commands.run
    plain = await done(run("echo out; echo err >&2"))
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)

    binary = await done(run(r"printf 'a\xffb'; printf '\xc3'; sleep 0.1; printf '\xa9'"))
    large = await done(run("yes 0123456789abcde | head -c 8000000", timeout=60))
    try:
        await done(run("echo some; echo bad >&2; exit 7"))
    except CommandExitException as error:
        failed = [error.exit_code, error.stdout, error.stderr, error.error]
    await done(run("echo one; echo two", on_stdout=hear))
    return {
        "plain": [plain.stdout, plain.stderr, plain.exit_code],
        "failed": failed,
        "callback": "".join(heard),
        "invalid": binary.stdout,
        "large": [len(large.stdout), hashlib.sha256(large.stdout.encode()).hexdigest()],
        "variable": (await done(run("echo $GREETING", envs={"GREETING": "hé llo"}))).stdout,
        "cwd": (await done(run("pwd", cwd="/tmp"))).stdout,
        "login shell": (await done(run("shopt -q login_shell && echo yes"))).stdout,
        "missing": await error_of(lambda: run("no-such-program-here")),
        "missing cwd": await error_of(lambda: run("true", cwd="/no/such/dir")),
        "signal": await error_of(lambda: run("kill -9 $$")),
        "root": (await done(run("echo ok", user="root"))).stdout,
        "unknown user": await error_of(lambda: run("true", user="no-such-user")),
        "health": await done(box.is_running()),
    }


async def given(box: Any) -> Any:
    """Write the file and run the lines of the variable GIVEN."""
    what, found = json.loads(os.environ["GIVEN"]), []
    await done(box.files.write(*what["file"]))
    for line in what["lines"]:
        try:
            result = await done(box.commands.run(line))
        except CommandExitException as error:
            result = error
        found.append([result.exit_code, result.stdout])
    return found


async def timeouts(box: Any) -> Any:
    began = time.monotonic()
    raised = await error_of(lambda: box.commands.run("echo started; exec sleep 97531", timeout=1))
    elapsed = time.monotonic() - began

    async def is_gone() -> bool:
        return not [p for p in await done(box.commands.list()) if "97531" in " ".join(p.args)]

    return {
        "raised": raised,
        "elapsed_seconds": elapsed,
        "gone": await until(is_gone),
        "unlimited": (await done(box.commands.run("echo fine", timeout=0))).stdout,
    }


async def background(box: Any) -> Any:
    run, found = box.commands.run, {}
    handle = await done(run("read line; echo got $line; cat; exit 3", background=True, stdin=True))
    listed = await done(box.commands.list())
    found["listed"] = [p.pid == handle.pid for p in listed if "got" in " ".join(p.args)]
    await done(box.commands.send_stdin(handle.pid, "first\n"))
    await done(box.commands.send_stdin(handle.pid, "rest"))
    await done(box.commands.close_stdin(handle.pid))
    try:
        await done(handle.wait())
    except CommandExitException as error:
        found["stdin"] = [error.stdout, error.exit_code]
    victim = await done(run("sleep 86421 & sleep 86422; true", background=True))
    found["killed"] = await done(box.commands.kill(victim.pid))
    found["wait"] = await error_of(victim.wait)
    left = await done(run("pgrep -f 'sleep 8642[12]' || true"))
    found["tree"] = left.stdout
    found["unknown"] = await done(box.commands.kill(4_000_000))
    return found


async def reconnect(box: Any) -> Any:
    found = {}
    release = "/tmp/e2b-release-" + os.urandom(4).hex()
    handle = await done(
        box.commands.run(
            f"echo early; until [ -e {release} ]; do sleep 0.05; done; echo late; exit 4",
            background=True,
        )
    )
    await done(handle.disconnect())
    again = await done(box.commands.connect(handle.pid))
    await done(box.commands.run(f"touch {release}"))
    try:
        await done(again.wait())
    except CommandExitException as error:
        found["running"] = [error.stdout.endswith("late\n"), error.exit_code]
    ended = await done(box.commands.run("sleep 0.3; echo unseen; exit 5", background=True))
    await done(ended.disconnect())

    async def is_over() -> bool:
        return ended.pid not in [p.pid for p in await done(box.commands.list())]

    assert await until(is_over)
    late = await done(box.commands.connect(ended.pid))
    try:
        await done(late.wait())
    except CommandExitException as error:
        found["ended"] = [error.stdout, error.exit_code]
    found["unknown"] = await error_of(lambda: box.commands.connect(4_000_000))
    await done(box.commands.run(f"rm {release}"))
    return found


async def files(box: Any) -> Any:
    top = "/tmp/e2b-files-" + os.urandom(4).hex()
    fs, found = box.files, {}
    content = random.Random(1).randbytes(8 << 20)
    await done(fs.write(f"{top}/big.bin", content))
    found["bytes"] = bytes(await done(fs.read(f"{top}/big.bin", format="bytes"))) == content
    await done(fs.write(f"{top}/stream.bin", io.BytesIO(content)))
    found["object"] = bytes(await done(fs.read(f"{top}/stream.bin", format="bytes"))) == content
    await done(fs.write(f"{top}/zip.bin", content, gzip=True))
    found["gzip"] = bytes(await done(fs.read(f"{top}/zip.bin", format="bytes"))) == content
    written = await done(fs.write(f"{top}/sub/text.txt", "naïve"))
    found["written"] = [written.name, written.path == f"{top}/sub/text.txt"]
    await done(fs.write_files([{"path": f"{top}/n/{name}", "data": name} for name in NAMES]))
    found["names"] = [await done(fs.read(f"{top}/n/{name}")) for name in NAMES] == NAMES
    found["listed"] = sorted(e.name for e in await done(fs.list(f"{top}/n"))) == sorted(NAMES)
    found["depth"] = sorted(
        e.path.removeprefix(top) for e in await done(fs.list(top, depth=2)) if "/n/" not in e.path
    )
    info = await done(fs.get_info(f"{top}/sub/text.txt"))
    found["info"] = [info.name, info.size, info.type.value, info.permissions]
    tagged = await done(fs.write(f"{top}/tagged", "x", metadata={"Owner": "a b"}))
    found["metadata"] = [
        tagged.metadata,
        (await done(fs.get_info(f"{top}/tagged"))).metadata,
        next(e.metadata for e in await done(fs.list(top)) if e.name == "tagged"),
        info.metadata,
    ]
    found["made"] = [await done(fs.make_dir(f"{top}/made/deep")) for _ in range(2)]
    moved = await done(fs.rename(f"{top}/sub/text.txt", f"{top}/moved.txt"))
    found["moved"] = [moved.name, await done(fs.exists(f"{top}/sub/text.txt"))]
    await done(fs.write("relative-e2b.txt", "home"))
    found["relative"] = (await done(box.commands.run("cat ~/relative-e2b.txt"))).stdout
    await done(fs.remove("relative-e2b.txt"))
    found["missing"] = await error_of(lambda: fs.read(f"{top}/nothing"))
    found["directory"] = await error_of(lambda: fs.read(top))
    found["not a directory"] = await error_of(lambda: fs.list(f"{top}/moved.txt"))
    await done(box.commands.run(f"ln -s nowhere {top}/dangling"))
    found["dangling"] = "dangling" in [e.name for e in await done(fs.list(top))]
    await done(fs.remove(top))
    await done(fs.remove(top))
    found["exists"] = await done(fs.exists(top))
    return found


async def terminal(box: Any) -> Any:
    from e2b.sandbox.commands.command_handle import PtySize

    shown = bytearray()
    if isinstance(box, AsyncSandbox):
        handle = await box.pty.create(PtySize(rows=24, cols=80), on_data=shown.extend)
    else:
        handle = box.pty.create(PtySize(rows=24, cols=80))
    await done(box.pty.resize(handle.pid, PtySize(rows=31, cols=97)))
    await done(
        box.pty.send_stdin(handle.pid, b"stty size; echo $TERM; tty -s && echo yes; exit 6\n")
    )
    if not isinstance(box, AsyncSandbox):
        try:
            handle.wait(on_pty=shown.extend)
        except CommandExitException as error:
            return [error.exit_code, shown.decode()]
    try:
        await done(handle.wait())
    except CommandExitException as error:
        return [error.exit_code, shown.decode()]
    return None


async def watch(box: Any) -> Any:
    top = "/tmp/e2b-watch-" + os.urandom(4).hex()
    await done(box.files.make_dir(top))
    seen: list[Any] = []
    if isinstance(box, AsyncSandbox):
        handle = await box.files.watch_dir(top, seen.append, recursive=True)
    else:
        handle = box.files.watch_dir(top, recursive=True)
    await done(
        box.commands.run(
            f"cd {top}; echo x > new; mv new newer; chmod 600 newer; mkdir sub; sleep 0.3;"
            "echo y > sub/deep; rm newer"
        )
    )
    await done(box.files.write(f"{top}/uploaded", "x"))

    def has_all() -> bool:
        if not isinstance(box, AsyncSandbox):
            seen.extend(handle.get_new_events())
        return any((event.type.value, event.name) == ("write", "uploaded") for event in seen)

    assert await until(has_all), seen
    await done(handle.stop())
    await done(box.files.remove(top))
    return [[event.type.value, event.name] for event in seen]


CHART = """
from IPython.display import display
axis = {"label": None, "unit": None, "ticks": [], "tick_labels": [], "scale": "linear"}
chart = {"type": "line", "title": "t", "elements": [{"label": "l", "points": [[1, 2.5]]}]}
chart |= {f"{xy}_{key}": value for xy in "xy" for key, value in axis.items()}
display({"e2b/chart": chart}, raw=True)
"""


async def code(box: Any) -> Any:
    run, found = box.run_code, {}
    first = await done(run("x = 41\nprint('printed')\nx + 1"))
    found["first"] = [first.text, first.logs.stdout, first.error]
    found["state"] = (await done(run("x"))).text
    failed = await done(run("1/0"))
    found["error"] = [
        failed.error.name,
        failed.error.value,
        "ZeroDivisionError" in failed.error.traceback,
    ]
    html = await done(run("from IPython.display import HTML, display\ndisplay(HTML('<b>é</b>'))"))
    found["html"] = [[r.html, r.is_main_result] for r in html.results]
    png = await done(
        run(
            "import base64\nfrom IPython.display import Image\n"
            "Image(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQ"
            "DwAEhQGAhKmMIQAAAABJRU5ErkJggg=='), format='png')"
        )
    )
    found["png"] = [(r.png or "")[:4] for r in png.results]
    chart = await done(run(CHART))
    found["chart"] = [[r.chart.type.value, r.chart.elements[0].points] for r in chart.results]
    found["env"] = (await done(run("import os; os.environ['LABEL']", envs={"LABEL": "a'b"}))).text
    found["env after"] = (await done(run("os.environ.get('LABEL')"))).text
    odd = await done(run("print('line\\u2028sep\\x85end')\nprint()\nprint('last')"))
    found["odd"] = "".join(odd.logs.stdout)
    began = time.monotonic()
    found["timeout"] = await error_of(lambda: run("import time; time.sleep(600)", timeout=1))
    found["elapsed_seconds"] = time.monotonic() - began
    found["after"] = (await done(run("x + 2"))).text
    found["language"] = await error_of(lambda: run("1", language="r"))
    found["count"] = (await done(run("1"))).execution_count is not None
    return found


async def plot(box: Any) -> Any:
    shown = await done(
        box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()")
    )
    return {
        "error": None if shown.error is None else shown.error.name,
        "png": [(r.png or "")[:4] for r in shown.results if r.png],
    }


async def contexts(box: Any) -> Any:
    found = {}
    one = await done(box.create_code_context(cwd="/tmp"))
    two = await done(box.create_code_context())
    found["cwd"] = [one.cwd, bool(two.cwd), one.language]
    await done(box.run_code("y = 'in one'", context=one))
    found["one"] = (await done(box.run_code("import os; y, os.getcwd()", context=one))).text
    missing = await done(box.run_code("y", context=two))
    found["two"] = missing.error.name
    listed = [context.id for context in await done(box.list_code_contexts())]
    found["listed"] = [one.id in listed, two.id in listed]
    await done(box.restart_code_context(one))
    found["restarted"] = (await done(box.run_code("y", context=one))).error.name
    await done(box.remove_code_context(one))
    await done(box.remove_code_context(two))
    found["removed"] = await error_of(lambda: box.run_code("1", context=one))
    return found


async def token(box: Any) -> Any:
    """With the token in its place: everything but the contexts works."""
    return {
        "command": (await done(box.commands.run("echo in"))).stdout,
        "file": await error_of(lambda: box.files.write("e2b-token.txt", "x")),
        "code": (await done(box.run_code("6 * 7"))).text,
        "contexts": await message_of(box.list_code_contexts),
    }


async def single_port(box: Any) -> Any:
    await done(box.files.write("e2b-one.txt", "x"))
    return {
        "command": (await done(box.commands.run("echo in"))).stdout,
        "file": await done(box.files.read("e2b-one.txt")),
        "code": (await done(box.run_code("6 * 7"))).text,
        "contexts": bool(await done(box.list_code_contexts())),
    }


async def refused(box: Any) -> Any:
    return {
        "command": await error_of(lambda: box.commands.run("true")),
        "file": await error_of(lambda: box.files.read("/etc/hostname")),
        "stat": await error_of(lambda: box.files.get_info("/etc/hostname")),
        "code": await message_of(lambda: box.run_code("1")),
        "contexts": await message_of(box.list_code_contexts),
        "health": await done(box.is_running()),
    }


async def message_of(action: Callable[[], Awaitable[Any] | Any]) -> str | None:
    try:
        await done(action())
    except (SandboxException, NotFoundException, TimeoutException) as error:
        return str(error)
    return None


async def streamed_input(box: Any) -> Any:
    """StreamInput, which the SDK has for terminals and commands."""
    handle = await done(box.commands.run("head -c 300000 | md5sum", background=True, stdin=True))
    pieces = [b"x" * 100_000] * 3
    if isinstance(box, AsyncSandbox):
        stream = box.commands.stream_input(handle.pid)
        for piece in pieces:
            await stream.send(piece)
        await stream.close()
    else:
        box.commands.stream_input(handle.pid, pieces)
    ended = await done(handle.wait())
    return ended.stdout.split()[0] == hashlib.md5(b"x" * 300_000).hexdigest()


def make(kind: str, token_: str | None) -> Any:
    kind_ = AwaitedSandbox if kind == "async" else SyncSandbox
    if token_ is None:
        return kind_.create()
    # The deprecated constructor is the only way to a token without a control plane.
    return kind_(
        sandbox_id="execd",
        sandbox_domain=None,
        envd_version=Version("99.99.99"),
        envd_access_token=token_,
        traffic_access_token=None,
        connection_config=ConnectionConfig(
            debug=True, extra_sandbox_headers={"X-Access-Token": token_}
        ),
    )


async def main() -> None:
    scenario, kind = sys.argv[1:3]
    token_ = sys.argv[5] if len(sys.argv) > 5 else None
    box = await done(make(kind, token_))
    print(json.dumps(await globals()[scenario](box)), flush=True)


asyncio.run(main())
# The threads of the SDK's HTTP library (pyqwest 0.x, in Rust) crash now and then at the end of the
# interpreter, when all results are printed.
os._exit(0)
