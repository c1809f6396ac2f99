"""A deep agent with a scripted model works in a sandbox. Prints what the backend answers."""

import asyncio
import json
import sys

from deepagents import create_deep_agent
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from execd_client import Execd
from execd_client.adapters.deepagents import ExecdBackend


class Scripted(GenericFakeChatModel):
    """Says the next message of a list; tools are accepted and ignored."""

    def bind_tools(self, tools, **kwargs):
        return self


def of_agent(backend: ExecdBackend, folder: str) -> list[str]:
    calls = [
        ("write_file", {"file_path": f"{folder}/agent.txt", "content": "by the agent\n"}),
        ("execute", {"command": f"cat {folder}/agent.txt; exit 4"}),
    ]
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])
        for number, (name, arguments) in enumerate(calls)
    ]
    agent = create_deep_agent(Scripted(messages=iter([*said, AIMessage("done")])), backend=backend)
    state = agent.invoke({"messages": [("user", "begin")]})
    return [str(m.content) for m in state["messages"] if isinstance(m, ToolMessage)]


def main(url: str, folder: str) -> None:
    with Execd(url) as sandbox:
        backend = ExecdBackend(sandbox, timeout_seconds=60)
        mixed = backend.execute("echo out; echo err >&2; echo out again; exit 3")
        late = backend.execute("echo before; sleep 1000", timeout=1)
        large = backend.execute("head -c 3000000 /dev/zero")
        sent = backend.upload_files([(f"{folder}/a.bin", b"\0\xff"), ("/proc/no/file", b"")])
        fetched = backend.download_files([f"{folder}/a.bin", f"{folder}/none", folder])
        written = backend.write(f"{folder}/b.txt", "one\ntwo\n")
        edited = backend.edit(f"{folder}/b.txt", "two", "three")
        found = {
            "is a sandbox": isinstance(backend, SandboxBackendProtocol),
            "mixed": [mixed.output, mixed.exit_code, mixed.truncated],
            "late": late.output,
            "large": [large.truncated, len(large.output) < 2_000_000],
            "async": asyncio.run(backend.aexecute("echo async")).output,
            "sent": [answer.error is None for answer in sent],
            "fetched": [answer.error for answer in fetched],
            "bytes": fetched[0].content == b"\0\xff",
            "write": written.error,
            "edit": edited.error,
            "read": backend.read(f"{folder}/b.txt").file_data["content"],
            "ls": sorted(item["path"] for item in backend.ls(folder).entries),
            "grep": [m["path"] for m in backend.grep("three", folder).matches],
            "glob": [m["path"] for m in backend.glob("*.bin", folder).matches],
            "agent": of_agent(backend, folder),
        }
    print(json.dumps(found))


main(*sys.argv[1:])
