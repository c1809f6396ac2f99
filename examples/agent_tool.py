"""A tool of an agent: the schema for function calling, and the function that the schema describes.

python examples/agent_tool.py [URL]     needs execd-client
"""

import json
import sys

from execd_client import Execd

TOOL = {
    "type": "function",
    "function": {
        "name": "run_python",
        "description": "Run Python in a notebook that keeps its variables. Shows the output, the "
        "value of the last line, and errors.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code of a cell."}},
            "required": ["code"],
        },
    },
}


def run_python(session, arguments: str) -> str:
    """The answer to a call of the tool. ``arguments`` is JSON, as the model writes it."""
    cell = session.run(**json.loads(arguments), timeout_seconds=30)
    error = "\n".join(cell.error.traceback) if cell.error else cell.message or ""
    return (cell.stdout + cell.stderr + cell.text + error)[-10_000:] or "done, no output"


sandbox = Execd([*sys.argv, "http://127.0.0.1:8888"][1])
with sandbox, sandbox.sessions.create() as session:
    print("schema:", TOOL["function"]["name"])
    for arguments in ('{"code": "x = 20"}', '{"code": "x + 22"}', '{"code": "x / 0"}'):
        print(run_python(session, arguments).splitlines()[-1])
