"""The tools, called over both transports; the rest of the behaviour over stdio."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import TYPE_CHECKING

from execd_client.mcp_server import bounds
from tests.client.mcp_server.conftest import START_SECONDS, call, refused
from tests.waiting import wait_until_async

if TYPE_CHECKING:
    from execd_client import Execd
    from tests.client.mcp_server.conftest import Connect

TOOLS = {
    *("run_command", "run_python", "start_job", "list_jobs", "wait_job", "read_job", "kill_job"),
    *("read_file", "write_file", "list_files", "search_files", "changes", "reset"),
}
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
JOB_ID = re.compile(r"job_id='([^']+)'")


def job_in(answer: str) -> str:
    found = JOB_ID.search(answer)
    assert found is not None, answer
    return found[1]


async def test_every_tool_and_parameter_is_described(connect: Connect) -> None:
    async with connect() as client:
        listed = (await client.list_tools()).tools
        assert client.instructions is not None
        assert "run_command" in client.instructions
    assert {tool.name for tool in listed} == TOOLS
    for tool in listed:
        assert len(tool.description or "") > 50, tool.name
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), f"{tool.name}: {name}"


async def test_a_command_runs(connect: Connect) -> None:
    async with connect() as client:
        shown = await call(client, "run_command", command="cat; echo bad >&2; exit 3", stdin="in")
    assert shown.startswith("exit code 3 after ")
    assert shown.endswith("stdout:\nin\nstderr:\nbad")


async def test_python_keeps_variables_and_shows_images(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "run_python", code="x = 20", session_id="images")
        shown = await call(client, "run_python", code="print('a'); x + 22", session_id="images")
        assert "value:\n42" in shown
        assert "stdout:\na" in shown
        plot = await client.call_tool("run_python", {"code": PLOT, "session_id": "images"})
    (image,) = [part for part in plot.content if part.type == "image"]
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data).startswith(b"\x89PNG")


async def test_files_are_written_read_listed_and_found(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "write_file", path="tools-tree/a.py", content="one\ntwo = 2\n")
        await call(client, "write_file", path="tools-tree/sub/b.py", content="naïve\n")
        assert await call(client, "read_file", path="tools-tree/a.py") == "one\ntwo = 2\n"
        assert await call(client, "list_files", path="tools-tree") == "a.py  12\nsub/"
        found = await call(client, "search_files", glob="**/*.py", path="tools-tree")
        assert found == "a.py\nsub/b.py"
        found = await call(client, "search_files", path="tools-tree", text="t.o|na")
        assert sorted(found.splitlines()) == ["a.py:2:two = 2", "sub/b.py:1:naïve"]


async def test_changes_since_a_checkpoint_are_listed_and_shown(
    tools: Connect, sandbox: Execd
) -> None:
    sandbox.run("rm -rf tools-changes; mkdir tools-changes; seq 3 > tools-changes/a").check()
    sandbox.checkpoint("tools-changes", roots=["tools-changes"])
    async with tools() as client:
        assert await call(client, "changes", checkpoint="tools-changes") == "nothing has changed"
        sandbox.run("sed -i s/2/two/ a; seq 9999 > b", cwd="tools-changes").check()
        shown = await call(client, "changes", checkpoint="tools-changes")
        assert [line.split()[0] for line in shown.splitlines()] == ["modified", "created"]
        arguments = {"checkpoint": "tools-changes", "as_patch": True}
        shown = await call(client, "changes", **arguments)
        assert "\n-2\n+two\n" in shown
        assert shown.endswith("bytes are left out: narrow path]")
        shown = await call(client, "changes", path="tools-changes/a", **arguments)
        assert shown.endswith("\n 1\n-2\n+two\n 3\n")
        assert "no checkpoint" in await refused(client, "changes", checkpoint="never-made")
    sandbox.delete_checkpoint("tools-changes")


async def test_a_job_is_started_read_awaited_and_killed(connect: Connect) -> None:
    async with connect() as client:
        job = job_in(await call(client, "start_job", command="echo early; exec sleep 1000"))
        while "early" not in (shown := await call(client, "read_job", job_id=job)):
            assert "still" in shown
        assert "still running" in await call(client, "wait_job", job_id=job, wait_seconds=0.1)
        assert f"{job}  running  echo early; exec sleep 1000" in await call(
            client, "list_jobs", running_only=True
        )
        killed = await call(client, "kill_job", job_id=job)
        assert "canceled" in killed
        assert "stdout:\nearly" in killed
        assert await call(client, "wait_job", job_id=job) == killed


async def test_a_command_that_takes_long_goes_on_as_a_job(tools: Connect) -> None:
    async with tools() as client:
        command = "read line < gate; echo $line"
        await call(client, "run_command", command="mkfifo gate")
        shown = await call(client, "run_command", command=command, wait_seconds=2)
        assert "still running as a job" in shown
        await call(client, "run_command", command="echo opened > gate")
        ended = await call(client, "wait_job", job_id=job_in(shown))
    assert ended.startswith("exit code 0")
    assert ended.endswith("stdout:\nopened")


async def test_a_call_that_is_cancelled_ends_its_command(
    own_server: Connect, sandbox: Execd
) -> None:
    async with own_server() as client:
        arguments = {"command": "touch begun; exec sleep 1001", "wait_seconds": 600}
        cancelled = asyncio.ensure_future(client.call_tool("run_command", arguments))
        await wait_until_async(lambda: sandbox.files.exists("begun"), START_SECONDS)
        cancelled.cancel()
        await wait_until_async(lambda: not sandbox.list("RUNNING"), START_SECONDS)
    (ended,) = [job for job in sandbox.list() if "sleep 1001" in (job.command or "")]
    assert ended.exit_reason == "canceled"


async def test_output_that_is_cut_says_how_to_get_the_rest(tools: Connect) -> None:
    async with tools() as client:
        shown = await call(client, "run_command", command="seq 20000")
        assert len(shown) < bounds.STREAM_BYTES + 500
        assert shown.rstrip().endswith("\n20000")
        hint = re.search(r"\[(\d+) bytes .*start_byte=(\d+) shows", shown)
        assert hint is not None
        whole = b"".join(b"%d\n" % number for number in range(1, 20001))
        assert int(hint[1]) == len(whole) - bounds.STREAM_BYTES
        text, start = "".join(f"{n}\n" for n in range(1, 20001))[: int(hint[2])], int(hint[2])
        while "[next start_byte" in (
            part := await call(client, "read_job", job_id=job_in(shown), start_byte=start)
        ):
            piece, _, rest = part.rpartition("\n[next start_byte=")
            text += piece
            start = int(rest.partition(";")[0])
            if "this is all" in rest:
                break
    assert text.encode() == whole


async def test_output_of_which_the_reply_lacks_a_part_is_counted_whole(tools: Connect) -> None:
    async with tools() as client:
        shown = await call(client, "run_command", command="head -c 3000000 /dev/zero | tr '\\0' x")
    hint = re.search(r"\[(\d+) bytes of stdout are left out.*start_byte=(\d+)", shown)
    assert hint is not None
    assert int(hint[1]) == 3_000_000 - bounds.STREAM_BYTES
    assert int(hint[2]) == bounds.STREAM_BYTES // 2


async def test_a_long_file_is_read_in_parts(tools: Connect, sandbox: Execd) -> None:
    whole = "".join(f"line {number}: naïve\n" for number in range(1, 5001))
    sandbox.files.write("long.txt", whole)
    text, start = "", 1
    async with tools() as client:
        while True:
            shown = await call(client, "read_file", path="long.txt", start_line=start)
            assert len(shown.encode()) < bounds.FILE_BYTES + 200
            piece, mark, rest = shown.rpartition("[lines ")
            text += piece if mark else shown
            if not mark:
                break
            start = int(rest.rpartition("start_line=")[2].rstrip("]"))
        assert "no line 9999" in await call(client, "read_file", path="long.txt", start_line=9999)
    assert text == whole


async def test_images_are_seen_and_other_binary_files_are_refused(
    tools: Connect, sandbox: Execd
) -> None:
    sandbox.files.write("data.bin", b"\x7fELF\0\0")
    async with tools() as client:
        await call(client, "run_python", code=PLOT + "plt.savefig('seen.png')")
        seen = await client.call_tool("read_file", {"path": "seen.png"})
        assert [part.type for part in seen.content] == ["text", "image"]
        assert "run_python can open it" in await refused(client, "read_file", path="data.bin")


async def test_images_that_do_not_fit_are_named(tools: Connect) -> None:
    code = (
        "from IPython.display import Image, display\n"
        "display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(700_000), format='png'))"
    )
    async with tools() as client:
        shown = await client.call_tool("run_python", {"code": code})
    assert [part.type for part in shown.content] == ["text", "text"]
    assert "image of 700008 bytes is left out" in str(shown.content[1])


async def test_errors_of_python_have_the_traceback_without_colours(tools: Connect) -> None:
    async with tools() as client:
        shown = await call(client, "run_python", code="def f():\n    return 1 / 0\nf()")
        assert "ZeroDivisionError: division by zero" in shown
        assert "\x1b" not in shown
        assert "return 1 / 0" in shown
        await call(client, "run_python", code="kept = 1")
        shown = await call(client, "run_python", code="kept", restart=True)
        assert "NameError" in shown


async def test_errors_name_the_next_step(tools: Connect) -> None:
    async with tools() as client:
        missing = await refused(client, "read_file", path="no/such/file")
        assert "Next: list_files, search_files" in missing
        assert "list_jobs" in await refused(client, "wait_job", job_id="never")
        await call(client, "write_file", path="some.txt", content="text")
        assert "check the regular" in await refused(client, "search_files", text="(", glob="**")
        assert "wait_seconds" in await refused(
            client, "run_command", command="true", wait_seconds=-1
        )
        shown = await call(client, "run_command", command="no-such-program")
        assert "exit code 127" in shown
