"""A CodeAgent with a scripted model runs its steps in a sandbox. Prints the results."""

import json
import sys

from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from execd_client import Execd
from execd_client.adapters.smolagents import ExecdExecutor


class Scripted(Model):
    """Says the next step of a list."""

    def __init__(self, steps):
        super().__init__(model_id="scripted")
        self._steps = iter(steps)

    def generate(self, messages, **kwargs):
        return ChatMessage(role=MessageRole.ASSISTANT, content=next(self._steps))


@tool
def doubled(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return number * 2


def step(code: str) -> str:
    return f"Thought: go on.\n<code>\n{code}\n</code>"


def of_agent(sandbox: Execd, path: str) -> dict:
    executor = ExecdExecutor(sandbox)
    steps = [
        step("import os\nx = doubled(given)\nprint('x is', x)"),
        step("1 / 0"),
        step(f"final_answer({{'x': x, 'here': os.path.exists({path!r})}})"),
    ]
    with CodeAgent(
        tools=[doubled], model=Scripted(steps), executor=executor, verbosity_level=0
    ) as agent:
        answer = agent.run("Double the number.", additional_args={"given": 21})
        remembered = [
            s.observations or "" for s in agent.memory.steps if hasattr(s, "observations")
        ]
        errors = [str(s.error) for s in agent.memory.steps if getattr(s, "error", None)]
    return {"answer": answer, "observations": remembered, "errors": errors}


def main(url: str, folder: str) -> None:
    with Execd(url) as sandbox:
        before = {each.id for each in sandbox.sessions.list()}
        sandbox.files.write(f"{folder}/made", "")
        executor = ExecdExecutor(sandbox, timeout_seconds=60)
        executor.send_variables({"numbers": [1, 2], "pair": (3, 4)})
        plain = executor("print('printed')\nsum(numbers) + sum(pair)")
        picture = executor("from PIL import Image\nImage.new('RGB', (3, 2))")
        try:
            executor("print('so far')\nno_such_name")
        except AgentError as error:
            failure = str(error)
        executor.cleanup()
        found = {
            "plain": [plain.output, plain.logs, plain.is_final_answer],
            "picture": list(picture.output.size),
            "failure": failure,
            "agent": of_agent(sandbox, f"{folder}/made"),
            "sessions left": len({each.id for each in sandbox.sessions.list()} - before),
        }
    print(json.dumps(found))


main(*sys.argv[1:])
