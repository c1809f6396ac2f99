"""A sandbox backend for deepagents and LangChain. The extra is ``deepagents``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from execd_client.errors import Conflict, ExecdError, InvalidArgument, NotFound, PermissionDenied
from execd_client.options import new_id

if TYPE_CHECKING:
    from execd_client.blocking import Execd

TIMEOUT_SECONDS = 30 * 60.0
WORDS: dict[type[ExecdError], str] = {
    NotFound: "file_not_found",
    PermissionDenied: "permission_denied",
    Conflict: "is_directory",
    InvalidArgument: "invalid_path",
}
"""The words of deepagents for the errors of files."""


class ExecdBackend(BaseSandbox):
    """Commands and files of a sandbox, for ``create_deep_agent(backend=...)``.

    Example:
        agent = create_deep_agent(model, backend=ExecdBackend(Execd("http://127.0.0.1:8888")))

    ``timeout_seconds`` bounds commands for which the agent gives no time.
    """

    def __init__(
        self,
        sandbox: Execd,
        sandbox_id: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._sandbox = sandbox
        self._id = sandbox_id or new_id("sandbox")
        self._timeout_seconds = timeout_seconds

    @property
    def id(self) -> str:
        """The name of this backend."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a line for ``/bin/sh``. The output has stdout and stderr as the program wrote them.
        ``timeout`` is in seconds; 0: no bound."""
        line = f"exec 2>&1\n{command}"
        seconds = self._timeout_seconds if timeout is None else float(timeout)
        if seconds:
            result = self._sandbox.run(line, timeout_seconds=seconds)
        else:
            result = self._sandbox.run(line)
        told = f"[{result.message}]" if result.message else ""
        output = "\n".join(part for part in (result.stdout, told) if part)
        return ExecuteResponse(output, result.exit_code, result.truncated is not None)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, and their missing parents. A file that fails does not stop the others."""
        answers = []
        for path, content in files:
            try:
                self._sandbox.files.write(path, content)
                answers.append(FileUploadResponse(path=path))
            except ExecdError as error:
                answers.append(FileUploadResponse(path=path, error=_word(error)))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files. A file that fails does not stop the others."""
        answers = []
        for path in paths:
            try:
                content = self._sandbox.files.read(path)
                answers.append(FileDownloadResponse(path=path, content=content))
            except ExecdError as error:
                answers.append(FileDownloadResponse(path=path, error=_word(error)))
        return answers


def _word(error: ExecdError) -> str:
    return WORDS.get(type(error), error.message)
