"""The tools for files. Their docstrings and the descriptions of their parameters are what a model
reads."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated, Any, cast

from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from execd_client import AsyncExecd
from execd_client.mcp_server import bounds
from execd_client.mcp_server.tools import Answer, told

IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
MAX_FOUND = 5000
"""Names whose files are searched for text."""
GREP = ["xargs", "-0", "grep", "-nIE", "-e"]

Path = Annotated[
    str, Field(description="Absolute, or relative to the base directory where commands start.")
]


class FileTools:
    """The tools for files of one sandbox."""

    def __init__(self, sandbox: AsyncExecd) -> None:
        self._sandbox = sandbox

    @told
    async def read_file(
        self,
        path: Path,
        start_line: Annotated[int, Field(ge=1, description="First line to show.")] = 1,
        max_lines: Annotated[int, Field(ge=1, le=10_000, description="Lines to show.")] = 1000,
    ) -> Answer:
        """Read a text file, or see an image (PNG, JPEG, GIF). A long file comes in parts; each
        answer says with which start_line the next part begins."""
        part = bounds.Part(start_line, max_lines)
        is_first = True
        stream = cast("AsyncGenerator[bytes, None]", self._sandbox.files.stream(path))
        async with aclosing(stream):
            async for piece in stream:
                if is_first:
                    if kind := next((IMAGES[it] for it in IMAGES if piece.startswith(it)), None):
                        return await self._image(path, kind)
                    if b"\0" in piece:
                        raise ToolError(
                            f"{path} is not a text file.\nNext: run_command with `file` or `xxd` "
                            "shows what it is, and run_python can open it."
                        )
                    is_first = False
                part.take(piece)
                if part.is_full:
                    break
        return part.text(path)

    async def _image(self, path: str, kind: str) -> Answer:
        size = (await self._sandbox.files.stat(path)).size or 0
        if size > bounds.IMAGE_BYTES:
            raise ToolError(
                f"the image {path} has {size} bytes, and an answer takes {bounds.IMAGE_BYTES}.\n"
                "Next: make a smaller copy with run_python."
            )
        content = await self._sandbox.files.read(path)
        return [f"{path}: {len(content)} bytes", Image(data=content, format=kind)]

    @told
    async def write_file(
        self,
        path: Path,
        content: Annotated[str, Field(description="The whole text of the file.")],
    ) -> str:
        """Write a text file as a whole, and make its missing directories. A file that exists is
        replaced in one step."""
        await self._sandbox.files.write(path, content)
        return f"wrote {len(content.encode())} bytes to {path}"

    @told
    async def list_files(self, path: Path = ".") -> str:
        """List a directory: names, with a slash behind directories, and sizes in bytes."""
        entries = sorted(await self._sandbox.files.list(path), key=lambda entry: entry.name)
        if not entries:
            return f"{path} is empty"
        found = [
            f"{entry.name}/" if entry.type == "directory" else f"{entry.name}  {entry.size}"
            for entry in entries
        ]
        return bounds.lines(found, "search_files with a glob shows a part")

    @told
    async def search_files(
        self,
        glob: Annotated[
            str, Field(description="Pattern for paths, for example **/*.py; ** is any directories.")
        ] = "**",
        path: Path = ".",
        text: Annotated[
            str | None,
            Field(description="Only lines that match this extended regular expression (grep -E)."),
        ] = None,
    ) -> str:
        """Find files by name, or with text find lines in files: path:number:line."""
        found = await self._sandbox.files.search(glob, path, MAX_FOUND)
        rest = "narrow glob or path" + ("" if text is None else ", or text")
        if text is None:
            names = [f"{it.path}/" if it.type == "directory" else it.path for it in found.items]
        else:
            files = [item.path for item in found.items if item.type == "file"]
            names = await self._lines_with(text, files, path) if files else []
        shown = bounds.lines(names, rest) if names else f"nothing found below {path}"
        if found.truncated is not None:
            shown += f"\n[the search ended early, by its bound of {found.truncated.by}: {rest}]"
        return shown

    async def _lines_with(self, text: str, files: list[str], path: str) -> list[str]:
        names = "".join(f"./{name}\0" for name in files)
        # /dev/null as a second file: grep names the file where xargs gives it one file only.
        ended = await self._sandbox.run([*GREP, text, "/dev/null"], cwd=path, stdin=names)
        # xargs: 123 where a grep has found nothing or could not read a file.
        if ended.exit_code not in (0, 123) or (not ended.stdout and ended.stderr):
            raise ToolError(
                f"grep failed: {ended.stderr.strip() or ended.message}\n"
                "Next: check the regular expression; brackets need a backslash to be literal."
            )
        lines = bounds.text_of(ended.stdout_bytes).splitlines()
        return [line.removeprefix("./")[: bounds.LINE_CHARACTERS] for line in lines]

    def registered(self) -> list[Callable[..., Any]]:
        """All tools."""
        return [self.read_file, self.write_file, self.list_files, self.search_files]
