"""The results of commands and cells, with output as text and as bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from execd_client import models
from execd_client.errors import CellFailed, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


def decode_json(data: bytes | str) -> Any:
    """Any JSON of execd. An older execd sends numbers of cells that msgspec refuses: an integer of
    more digits than Python converts then is its digits."""
    try:
        return msgspec.json.decode(data)
    except msgspec.ValidationError:
        return json.loads(data, parse_int=_integer)


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


OUTPUTS = ("stdout", "stderr")
SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}


class Bundle(models.Bundle, frozen=True, kw_only=True):
    """A display or a result of a cell, in all formats that the code made.

    A notebook shows a bundle that is the last value of a cell.
    """

    @property
    def text(self) -> str:
        """The format text/plain; empty without one."""
        return str(self.data.get("text/plain", ""))

    @property
    def image(self) -> bytes | None:
        """The bytes of the first image format; None without one."""
        found = self._image()
        return found[1] if found else None

    def save(self, path: str | Path) -> Path:
        """Write the image to a file, and return the path. A path without a suffix gets the suffix
        of the format. Raises ValueError without an image."""
        found = self._image()
        if found is None:
            raise ValueError(f"the bundle has no image; its formats are {', '.join(self.data)}")
        kind, content = found
        target = Path(path)
        target = target if target.suffix else target.with_suffix(SUFFIXES.get(kind, ".img"))
        target.write_bytes(content)
        return target

    def _image(self) -> tuple[str, bytes] | None:
        for kind, content in self.data.items():
            if kind.startswith("image/"):
                is_text = kind == "image/svg+xml"
                return kind, content.encode() if is_text else base64.b64decode(content)
        return None

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.data, self.metadata


class Result(models.ExecutionReply, frozen=True, kw_only=True):
    """How a command ended, or how far the command is, with the fields of execd's reply.

    Example:
        result = sandbox.run("ls /")
        print(result.exit_code, result.stdout)
    """

    stdout_bytes: bytes = b""
    """The bytes of stdout: the head and the tail if ``truncated`` says so."""
    stderr_bytes: bytes = b""

    @property
    def stdout(self) -> str:
        """stdout as UTF-8, with replacement characters for other bytes."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """stderr as UTF-8, with replacement characters for other bytes."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and self.exit_reason == "exited"

    def check(self) -> Result:
        """The result itself. Raises CommandFailed unless the exit code is 0."""
        if not self.ok:
            raise CommandFailed(self._ending(), self)
        return self

    def _ending(self) -> str:
        last_lines = self.stderr.strip().splitlines()[-3:]
        reason = self.message or f"exit code {self.exit_code}"
        return "\n".join([reason, *last_lines])


class CellResult(Result, frozen=True, kw_only=True):
    """How a cell ended: its value, its displays, its error, its output.

    Example:
        cell = session.run("1 + 1")
        print(cell.text)

    A notebook shows the output, the displays and the value of a cell that is its last value.
    """

    result: Bundle | None = None
    """The value of the last expression."""
    displays: list[Bundle] = msgspec.field(default_factory=list)
    """What the cell displayed: figures, tables, texts."""

    @property
    def text(self) -> str:
        """The value of the last expression as text; empty without a value."""
        return self.result.text if self.result else ""

    @property
    def images(self) -> list[Bundle]:
        """The displays, and the value, that are images."""
        shown = [*self.displays, *([self.result] if self.result else [])]
        return [bundle for bundle in shown if bundle.image is not None]

    @property
    def ok(self) -> bool:
        """Whether the cell ended without an error."""
        return self.exit_code == 0

    def check(self) -> CellResult:
        """The result itself. Raises CellFailed if the cell raised an error or was ended."""
        if not self.ok:
            raise CellFailed(self._ending(), self)
        return self

    def _ending(self) -> str:
        if self.error is not None:
            return f"{self.error.name}: {self.error.value}"
        return super()._ending()

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.result is not None:
            return self.result.data, self.result.metadata
        if self.displays:
            return self.displays[-1].data, self.displays[-1].metadata
        text = self.stdout + self.stderr + "\n".join(self.error.traceback if self.error else [])
        return {"text/plain": text}, {}

    def _ipython_display_(self) -> None:
        import IPython.display  # only a notebook calls this method

        display: Any = IPython.display.display
        print(self.stdout, end="")
        for bundle in [*self.displays, *([self.result] if self.result else [])]:
            display(bundle.data, metadata=bundle.metadata, raw=True)
        if self.error is not None:
            print("\n".join(self.error.traceback))


def result_of(fields: Mapping[str, Any]) -> Result:
    """The result of a reply, or of the event ``exited``, that has output as base64."""
    said = dict(fields)
    for name in OUTPUTS:
        said[f"{name}_bytes"] = base64.b64decode(said.pop(f"{name}_base64", None) or "")
    kind = CellResult if "code" in said else Result
    return msgspec.convert(said, kind)
