"""An agent with a scripted model calls the tools of a sandbox. Prints the schemas and outputs."""

import asyncio
import json
import sys

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from execd_client import AsyncExecd
from execd_client.adapters.openai_agents import tools

CALLS = [
    ("run_command", {"command": "echo out; echo err >&2; exit 3", "cwd": "/tmp"}),
    ("run_command", {"command": "pwd", "cwd": None}),
    ("run_python", {"code": "x = 20"}),
    ("run_python", {"code": "x + 22"}),
    ("run_python", {"code": "1 / 0"}),
    ("run_python", {"code": "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"}),
]


class Scripted(Model):
    """Makes the next call of a list, and then says that all is done."""

    def __init__(self):
        self._turn = 0
        self.seen = []

    async def get_response(self, system_instructions, input, *arguments, **named):
        self.seen = input
        number, self._turn = self._turn, self._turn + 1
        if number < len(CALLS):
            name, given = CALLS[number]
            output = ResponseFunctionToolCall(
                name=name,
                arguments=json.dumps(given),
                call_id=f"call-{number}",
                type="function_call",
            )
        else:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id="1", content=[text], role="assistant", status="completed", type="message"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *arguments, **named):
        raise AssertionError("the driver does not stream")


async def main(url: str) -> None:
    set_tracing_disabled(True)
    async with AsyncExecd(url) as sandbox:
        model, made = Scripted(), tools(sandbox, "of-the-agent")
        result = await Runner.run(Agent("Coder", tools=made, model=model), "begin")
        outputs = [
            item["output"] for item in model.seen if item.get("type") == "function_call_output"
        ]
    found = {
        "final": result.final_output,
        "schemas": {tool.name: tool.params_json_schema["properties"] for tool in made},
        "outputs": outputs,
    }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
