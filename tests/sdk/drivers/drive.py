"""Drives the installed SDK through one scenario and prints the results as a line of JSON.

    drive.py SCENARIO sync|async direct|in-cluster|sandboxd URL [GRPC-PORT]

Runs in an environment that has the SDK and nothing of execd. Scenarios are written once: ``done``
awaits the results of the async classes and passes on the results of the sync classes.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import k8s_agent_sandbox.async_sandbox_client as async_client
import k8s_agent_sandbox.sandbox_client as sync_client
from k8s_agent_sandbox.async_sandbox import AsyncSandbox
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig, SandboxInClusterConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox
from kubernetes_stand_in import SANDBOX, AsyncKubernetes, Kubernetes

if TYPE_CHECKING:
    from collections.abc import Awaitable

# The programs of KubeRay's agent-sandbox sample, keyed by their output.
PROGRAMS = {
    "compute_fib.py": (
        "a, b = 0, 1\nfor _ in range(20):\n    a, b = b, a + b\nprint(f'fib(20) = {a}')\n"
    ),
    "json_aggregation.py": (
        "import json\n"
        "values = json.loads('[1, 4, 9, 16, 25]')\n"
        "print(json.dumps({'mean': sum(values) / len(values), 'max': max(values)}))\n"
    ),
}
NAMES = [
    "plain.txt",
    "with space.txt",
    "naïve-日本.txt",
    "it's.txt",
    'say "hi".txt',
    "100%.txt",
    "100%25.txt",
    "a;b=c&d.txt",
]


async def done(value: Awaitable[Any] | Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def shown(result: Any) -> dict[str, Any]:
    return {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
        "timed_out": getattr(result, "timed_out", None),
    }


def connection_config(connection: str, url: str, grpc_port: int | None) -> Any:
    port = urlsplit(url).port or 80
    if connection == "direct":
        return SandboxDirectConnectionConfig(api_url=url, server_port=port)
    if connection == "sandboxd":
        # The newest only. The files go to the first of the two listeners, commands to the second.
        from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig

        return SandboxdInClusterConnectionConfig(
            mode="in-cluster-pod-ip", rest_port=port, grpc_port=grpc_port or port
        )
    # Versions without use_pod_ip use the pod's address anyway.
    return SandboxInClusterConnectionConfig(server_port=port, use_pod_ip=True)


async def commands(sandbox: Any) -> dict[str, Any]:
    lines = [
        "echo hi | tr a-z A-Z",
        "echo out; echo err >&2; exit 7",
        "printf 'a\\r\\n\\377'",
        "no-such-program",
    ]
    return {line: shown(await done(sandbox.commands.run(line))) for line in lines}


async def given(sandbox: Any) -> list[list[Any]]:
    """Write the file and run the lines of the variable GIVEN."""
    what = json.loads(os.environ["GIVEN"])
    await done(sandbox.files.write(*what["file"]))
    results = [await done(sandbox.commands.run(line)) for line in what["lines"]]
    return [[result.exit_code, result.stdout] for result in results]


async def files(sandbox: Any) -> dict[str, Any]:
    await done(sandbox.commands.run("rm -rf sdk; mkdir sdk"))
    content = bytes(range(256)) * 100
    await done(sandbox.files.write("sdk/nested/deep/data.bin", content))
    await done(sandbox.files.write("sdk/text.txt", "first"))
    await done(sandbox.files.write("sdk/text.txt", "second, naïve"))
    found = {
        "nested": await done(sandbox.files.read("sdk/nested/deep/data.bin")) == content,
        "text": (await done(sandbox.files.read("sdk/text.txt"))).decode(),
        "seen by a command": shown(await done(sandbox.commands.run("cat sdk/text.txt; ls sdk")))[
            "stdout"
        ],
        "list": [[e.name, e.type, e.size] for e in await done(sandbox.files.list("sdk"))],
        "exists": [
            await done(sandbox.files.exists(p))
            for p in ("sdk", "sdk/text.txt", "sdk/none", "sdk/nested/deep")
        ],
    }
    await done(sandbox.commands.run("rm -r sdk"))
    return found


async def basenames(sandbox: Any) -> dict[str, Any]:
    """0.4.6 sends the last part of a name only."""
    await done(sandbox.files.write("nested/sdk-base.txt", "flat"))
    found = {
        "flat": (await done(sandbox.files.read("sdk-base.txt"))).decode(),
        "nested": await done(sandbox.files.exists("nested/sdk-base.txt")),
    }
    await done(sandbox.commands.run("rm sdk-base.txt"))
    return found


async def names(sandbox: Any) -> dict[str, Any]:
    found = {}
    for name in NAMES:
        await done(sandbox.files.write(name, name))
        there = await done(sandbox.files.exists(name))
        found[name] = [there, (await done(sandbox.files.read(name))).decode()]
    listed = {entry.name for entry in await done(sandbox.files.list("."))}
    await done(sandbox.commands.run("rm -f ./*.txt"))
    return {"found": found, "listed": sorted(listed & set(NAMES)), "names": NAMES}


async def base_dir(sandbox: Any) -> dict[str, Any]:
    await done(sandbox.files.write("in-base.txt", "x"))
    # The async SDK cannot do the first of these with a server that redirects: httpx drops the dot.
    found = {
        path: [e.name for e in await done(sandbox.files.list(path))] for path in (".", "", "/")
    }
    exists = {path: await done(sandbox.files.exists(path)) for path in (".", "", "/")}
    await done(sandbox.commands.run("rm in-base.txt"))
    return {"list": found, "exists": exists}


async def missing(sandbox: Any) -> dict[str, Any]:
    found = {}
    for what, call in (("read", sandbox.files.read), ("list", sandbox.files.list)):
        started = time.monotonic()
        try:
            await done(call("no-such-file"))
        except Exception as error:  # the class depends on the version
            found[what] = [getattr(error, "status_code", None), time.monotonic() - started]
    return found


async def wiped(sandbox: Any) -> dict[str, Any]:
    await done(
        sandbox.files.write(
            "agent_action.py", "import os\nos.system('rm -rf ./* ./.[!.]*')\nraise SystemExit(1)"
        )
    )
    destroyed = shown(await done(sandbox.commands.run("python agent_action.py", timeout=30)))
    await done(sandbox.files.write("agent_action.py", "print(55)"))
    return {
        "destroyed": destroyed,
        "next": shown(await done(sandbox.commands.run("python agent_action.py", timeout=30))),
    }


async def once(sandbox: Any) -> dict[str, Any]:
    """Whatever a command does, the reply is a 200: the SDK has nothing to retry."""
    await done(sandbox.commands.run("rm -f runs"))
    for end in ("exit 1", "kill -9 $$", "no-such-program", "printf '\\377'"):
        await done(sandbox.commands.run(f"echo ran >> runs; {end}"))
    return {
        "runs": shown(await done(sandbox.commands.run("wc -l < runs; rm runs")))["stdout"].strip()
    }


async def timeouts(sandbox: Any) -> dict[str, Any]:
    started = time.monotonic()
    result = await done(sandbox.commands.run("echo partial; sleep 60", command_timeout=1))
    return {**shown(result), "elapsed_seconds": time.monotonic() - started}


async def abandoned(sandbox: Any) -> dict[str, Any]:
    """The client gives up, as Ray's driver does with timeout=5: the command must not run on."""
    try:
        await done(sandbox.commands.run("echo $$ > abandoned.pid; exec sleep 4001", timeout=1))
        raised = False
    except Exception:  # the class depends on the version
        raised = True
    alive = (
        "for i in $(seq 100); do kill -0 $(cat abandoned.pid) 2>/dev/null || break; "
        "sleep 0.1; done; "
    )
    state = await done(
        sandbox.commands.run(
            alive + "kill -0 $(cat abandoned.pid) 2>/dev/null && echo alive || echo gone"
        )
    )
    await done(sandbox.commands.run("kill -9 $(cat abandoned.pid); rm abandoned.pid"))
    return {"raised": raised, "state": state.stdout.strip()}


class AsyncBuffer(io.BytesIO):
    """The target of a download with the async SDK."""

    async def write(self, data: bytes) -> int:  # type: ignore[override]
        return super().write(data)


async def streams(sandbox: Any) -> dict[str, Any]:
    """File objects go out chunked, without a length; downloads come in pieces."""
    content = bytes(range(256)) * 20_000
    await done(sandbox.files.write("streamed.bin", io.BytesIO(content)))
    back = AsyncBuffer() if inspect.iscoroutinefunction(sandbox.files.read_to) else io.BytesIO()
    size = await done(sandbox.files.read_to("streamed.bin", back))
    await done(sandbox.commands.run("rm streamed.bin"))
    return {"same": back.getvalue() == content, "size": size, "wanted": len(content)}


async def sandboxd_files(sandbox: Any) -> dict[str, Any]:
    """Every file operation of the SDK in sandboxd mode."""
    content = bytes(range(256)) * 1000
    await done(sandbox.files.write("sdk-rest/nested/deep/data.bin", content))
    await done(sandbox.files.write("sdk-rest/text.txt", "first"))
    await done(sandbox.files.write("sdk-rest/text.txt", "second, naïve"))
    await done(sandbox.files.write("sdk-rest/streamed.bin", io.BytesIO(content)))
    back = AsyncBuffer() if inspect.iscoroutinefunction(sandbox.files.read_to) else io.BytesIO()
    found: dict[str, Any] = {
        "nested": await done(sandbox.files.read("sdk-rest/nested/deep/data.bin")) == content,
        "text": (await done(sandbox.files.read("sdk-rest/text.txt"))).decode(),
        "size": await done(sandbox.files.read_to("sdk-rest/streamed.bin", back)),
        "streamed": back.getvalue() == content,
        "list": [
            [e.name, e.type, e.size, e.mode] for e in await done(sandbox.files.list("sdk-rest"))
        ],
        "exists": [
            await done(sandbox.files.exists(f"sdk-rest/{p}"))
            for p in (".", "text.txt", "none", "nested/deep")
        ],
        "root": [
            "sdk-rest" in [e.name for e in await done(sandbox.files.list(path))]
            for path in (".", "/")
        ],
    }
    for name in NAMES:
        await done(sandbox.files.write(f"sdk-rest/names/{name}", name))
    found["names"] = {
        name: (await done(sandbox.files.read(f"sdk-rest/names/{name}"))).decode() for name in NAMES
    }
    found["listed"] = sorted(
        e.name for e in await done(sandbox.files.list("sdk-rest/names"))
    ) == sorted(NAMES)
    found["refused"] = {}
    for what, call in (
        ("read", lambda: sandbox.files.read("sdk-rest/none")),
        ("outside", lambda: sandbox.files.read("../../etc/passwd", allow_unsafe_paths=True)),
        ("delete", lambda: sandbox.files.delete("sdk-rest/none")),
        ("not empty", lambda: sandbox.files.delete("sdk-rest")),
    ):
        try:
            await done(call())
        except Exception as error:  # the SDK's own class, with the answer inside
            found["refused"][what] = getattr(error, "status_code", None)
    await done(sandbox.files.delete("sdk-rest/text.txt"))
    found["deleted"] = not await done(sandbox.files.exists("sdk-rest/text.txt"))
    await done(sandbox.files.delete("sdk-rest", recursive=True))
    found["all deleted"] = not await done(sandbox.files.exists("sdk-rest"))
    return found


async def sandboxd_commands(sandbox: Any) -> dict[str, Any]:
    """Commands in sandboxd mode go by gRPC."""
    run = sandbox.commands.run
    await done(sandbox.files.write("sdk-grpc/data.bin", bytes(range(256)) * 32768))
    found: dict[str, Any] = {
        "commands": await commands(sandbox),
        "env and cwd": shown(
            await done(run("echo $X; pwd | tail -c 9", env={"X": "1"}, cwd="sdk-grpc"))
        ),
        "signal": shown(await done(run("kill -9 $$")))["exit_code"],
        "background": shown(await done(run("sleep 1000 & echo up")))["stdout"],
        "size": shown(await done(run("wc -c < sdk-grpc/data.bin")))["stdout"],
        "large": len((await done(run("head -c 20000000 /dev/zero | tr '\\0' x"))).stdout),
    }
    started = time.monotonic()
    late = await done(run("sleep 1000", command_timeout=1))
    found["late"] = [late.exit_code, late.timed_out, time.monotonic() - started]
    found["refused"] = {}
    for what, options in (
        ("outside", {"cwd": "../.."}),
        ("missing", {"cwd": "none"}),
        ("deadline", {"timeout": 1}),
    ):
        try:
            await done(run("exec sleep 4002", **options))
        except RuntimeError as error:
            found["refused"][what] = str(error).partition("StatusCode.")[2].partition(")")[0]
    living = "grep -lxz '[4]002' /proc/[0-9]*/cmdline | wc -l"
    found["left"] = shown(await done(run(f"sleep 1; {living}")))["stdout"]
    await done(sandbox.files.delete("sdk-grpc", recursive=True))
    return found


def ray_driver(config: Any) -> dict[str, Any]:
    """KubeRay's sample: for each program a sandbox, write, run, delete."""
    client = sync_client.SandboxClient(connection_config=config, cleanup=True)
    found = {}
    for name, program in PROGRAMS.items():
        sandbox = client.create_sandbox(
            warmpool="python-runtime-pool", **_template(client.create_sandbox)
        )
        sandbox.files.write(name, program)
        found[name] = shown(sandbox.commands.run(f"python {name}", timeout=5))
        client.delete_sandbox(sandbox.claim_name)
    return found


async def async_driver(config: Any) -> dict[str, Any]:
    found = {}
    async with async_client.AsyncSandboxClient(connection_config=config) as client:
        for name, program in PROGRAMS.items():
            sandbox = await client.create_sandbox(
                warmpool="python-runtime-pool", **_template(client.create_sandbox)
            )
            await sandbox.files.write(name, program)
            found[name] = shown(await sandbox.commands.run(f"python {name}", timeout=5))
            await client.delete_sandbox(sandbox.claim_name)
    return found


def _template(create: Any) -> dict[str, str]:
    """0.4.6 asks for the template as well."""
    return (
        {"template": "python-runtime-sandbox"}
        if "template" in inspect.signature(create).parameters
        else {}
    )


async def main(
    scenario: str, kind: str, connection: str, url: str, grpc_port: str = ""
) -> dict[str, Any]:
    Kubernetes.address = urlsplit(url).hostname or "127.0.0.1"
    sync_client.K8sHelper = Kubernetes  # type: ignore[misc,assignment]
    async_client.AsyncK8sHelper = AsyncKubernetes  # type: ignore[misc,assignment]
    config = connection_config(connection, url, int(grpc_port) if grpc_port else None)
    if scenario == "driver":
        return await async_driver(config) if kind == "async" else ray_driver(config)
    make, kubernetes = (AsyncSandbox, AsyncKubernetes) if kind == "async" else (Sandbox, Kubernetes)
    sandbox = make("claim-1", SANDBOX, "default", connection_config=config, k8s_helper=kubernetes())
    try:
        return await SCENARIOS[scenario](sandbox)
    finally:
        # 0.4.6 can close an async sandbox publicly only by closing the sandbox's client.
        close = getattr(sandbox, "close_connection", None) or sandbox._close_connection
        await done(close())


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        commands,
        given,
        files,
        basenames,
        names,
        base_dir,
        missing,
        wiped,
        once,
        timeouts,
        abandoned,
        streams,
        sandboxd_files,
        sandboxd_commands,
    )
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
