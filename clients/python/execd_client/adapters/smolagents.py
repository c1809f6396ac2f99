"""An executor for the CodeAgent of smolagents. The extra is ``smolagents``."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from execd_client.blocking import Execd
    from execd_client.results import CellResult

OUTPUT_BYTES = 50_000
"""Of each stream of a step; a longer stream has head, marker line, tail."""


class ExecdExecutor(RemotePythonExecutor):
    """Runs the agent's code in a session of a sandbox.

    Example:
        executor = ExecdExecutor(Execd("http://127.0.0.1:8888"))
        with CodeAgent(tools=[], model=model, executor=executor) as agent:
            agent.run("What is the 20th Fibonacci number?")

    ``packages`` are installed in the sandbox. ``timeout_seconds`` bounds each step. Variables and
    the final answer travel as JSON; ``allow_pickle`` lets pickled objects through as well, and a
    sandbox that sends a pickle can run code here.
    """

    def __init__(
        self,
        sandbox: Execd,
        packages: Sequence[str] = (),
        *,
        timeout_seconds: float | None = None,
        allow_pickle: bool = False,
        logger: AgentLogger | None = None,
    ) -> None:
        logger = logger or AgentLogger(level=LogLevel.ERROR)
        super().__init__(list(packages), logger, allow_pickle)
        self._session = sandbox.sessions.create(reply_bytes=OUTPUT_BYTES)
        self._timeout_seconds = timeout_seconds
        self.installed_packages = self.install_packages(list(packages))

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a step. Raises AgentError if the code raises an error or is ended."""
        if self._timeout_seconds is None:
            cell = self._session.run(code)
        else:
            cell = self._session.run(code, timeout_seconds=self._timeout_seconds)
        logs = cell.stdout + cell.stderr
        if cell.ok:
            return CodeOutput(output=_value(cell), logs=logs, is_final_answer=False)
        if cell.error is not None and cell.error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(cell.error.value, self.allow_pickle)
            return CodeOutput(output=answer, logs=logs, is_final_answer=True)
        told = cell.error.traceback if cell.error is not None else [cell.message or ""]
        lost = ["The interpreter was replaced: all variables are gone."] if cell.state_lost else []
        raise AgentError("\n".join([logs, *told, *lost]).strip(), self.logger)

    def cleanup(self) -> None:
        """End the session."""
        self._session.delete()


def _value(cell: CellResult) -> Any:
    """An image of the step, or the value of the last expression as text."""
    for bundle in cell.images:
        if "image/svg+xml" not in bundle.data and bundle.image is not None:
            return Image.open(BytesIO(bundle.image))
    return cell.text or None
