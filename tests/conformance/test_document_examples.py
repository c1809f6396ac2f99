"""Each example of the daemon's OpenAPI document can be asked, and gives the reply of the example.
``examples`` explains the comparison."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from . import examples
from .examples import Example, Examples, Found, has_shape, is_alike, is_as_shown
from .target import READ_SECONDS, Target, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


STORY = """
write_file; write_fs_file; write_base_dir, refused; read_file; read_file, in part
read_file, directory; read_base_dir; read_fs_file; stat_path; make_directory
copy_path; move_path; change_mode; search_paths; delete_file; delete_fs_file
unpack_directory; unpack_base_dir; pack_directory; pack_base_dir; watch_path; watch_base_dir
execute; execute_with_slash; list_directory; list_base_dir; exists; base_dir_exists; download
download_base_dir, refused; upload; upload_with_slash
run_command, with an error; run_command, to the end; run_command, in the background
run_command, in a terminal; list_executions; get_execution; read_stdout; read_stderr
stream_execution; stream_execution, lines; write_stdin; give_execution_input; resize_terminal
attach_terminal; signal_execution; kill_execution; delete_execution
create_session; stream_session; run_cell; get_session; list_sessions; list_variables; complete_code
fork_session; interrupt_session; run_cell, with a question; give_session_input; restart_session
delete_session; run_code
write_file, before a checkpoint; create_checkpoint; create_checkpoint, refused; list_checkpoints
get_checkpoint; write_file, after a checkpoint; get_changes; get_changes, as a patch
restore_checkpoint
check_root; check_liveness; check_readiness; check_health; get_metadata; get_capabilities
get_stats; report_restore; get_metrics; get_openapi; get_docs; get_docs_with_slash
get_docs_settings
get_docs_styles; get_docs_viewer
reset_sandbox, refused; reset_sandbox; delete_checkpoint; delete_base_dir
"""
"""The operations and the names of their examples, in the order of a visit to a fresh daemon."""
EXAMPLES = [
    (operation, name or "example")
    for operation, _, name in (
        one.strip().partition(", ") for one in STORY.replace("\n", ";").split(";") if one.strip()
    )
]
ARCHIVES = {"pack_directory": {"shopping.txt"}, "pack_base_dir": {"notes/todo.txt"}}
"""Names of files that the archive of the example must have."""


@pytest.fixture
def fresh(own_daemon: Callable[..., Target], monkeypatch: pytest.MonkeyPatch) -> Target:
    for name in [name for name in os.environ if name.startswith("SANDBOX_")]:
        monkeypatch.delenv(name)
    return own_daemon(SANDBOX_NAME="sandbox-1")


def test_every_example_of_the_document_can_be_asked_and_gives_its_reply(fresh: Target) -> None:
    assert fresh.state_dir is not None
    base_dir = str(Path(fresh.state_dir).parent / "base")
    with httpx.Client(base_url=fresh.url, timeout=READ_SECONDS, trust_env=False) as client:
        shown = Examples(client.get("/openapi.json").json(), client, base_dir)
        assert shown.names() == set(EXAMPLES)
        assert len(EXAMPLES) == len(set(EXAMPLES))
        for operation_id, name in EXAMPLES:
            if operation_id == "attach_terminal":
                received, expected = asyncio.run(shown.attach(operation_id, name))
                *begun, exited = received
                assert all(map(is_alike, begun, expected)), received
                assert len(begun) == len(expected), received
                assert (exited["type"], exited["signal"]) == ("exited", "SIGKILL")
                continue
            if operation_id == "kill_execution":  # whose reply has all of the program's output
                wait_until(lambda: has_said_all(client), 20, "the program has answered all input")
            found = shown.ask(operation_id, name)
            where = f"{operation_id}, {name}: {found.status} {found.headers} {found.text[:5000]}"
            example = shown.reply(operation_id, name)
            if example is None:
                assert (found.status, found.content) in ((204, b""), (202, found.content)), where
                continue
            assert is_as_shown(operation_id, found, example), f"{where}\n\n{example}"
            if operation_id == "get_stats":  # of a healthy daemon, as this one is
                assert flags(json.loads(found.content)) == flags(example.value), where
            if operation_id in ARCHIVES:
                assert ARCHIVES[operation_id] <= file_names(found), where


def has_said_all(client: httpx.Client) -> bool:
    return client.get("/v1/executions/reader/stdout").text == "typed\nmore\n"


def flags(value: Any) -> dict[str, Any]:
    """The booleans of the objects inside of each other, by name."""
    if not isinstance(value, dict):
        return {}
    inner = {name: flags(one) for name, one in value.items()}
    return {
        name: one if isinstance(one, bool) else inner[name]
        for name, one in value.items()
        if isinstance(one, bool) or inner[name]
    }


def file_names(archive: Found) -> set[str]:
    content = io.BytesIO(archive.content)
    if archive.media_type == "application/zip":
        with zipfile.ZipFile(content) as zipped:
            return set(zipped.namelist())
    assert archive.media_type == "application/gzip"
    with tarfile.open(fileobj=content, mode="r:gz") as packed:
        return {name.removeprefix("./") for name in packed.getnames()}


SHOWN = {
    "get_stats": ("application/json", {"load": None, "ready": True, "memory": {"bytes": 1}}),
    "get_openapi": ("application/json", {"openapi": "3.1.0", "tags": [{"name": "files"}]}),
    "get_session": ("application/json", {"id": "a", "pid": 7, "limits": {"processes": 512}}),
    "get_metrics": ("text/plain", "# TYPE execd_ready gauge\nexecd_ready 1\n"),
    "get_docs": ("text/html", "<!DOCTYPE html>\n"),
    "watch_path": ("text/event-stream", {"id": "1", "event": "gone", "data": '{"a":1}'}),
    "stream_session": ("text/event-stream", {"id": "1", "event": "gone", "data": '{"a":1}'}),
    "stream_execution": ("application/x-ndjson", {"event": "stdout", "sequence": 2}),
}
"""An example of each comparison."""
ALIKE = {
    "get_stats": [b'{"load":0.5,"ready":false,"memory":{"bytes":null}}'],
    "get_openapi": [b'{"openapi":"3.1.0","tags":[{"name":"x"},{"name":"files","more":1}]}'],
    "get_session": [b'{"id":"a","pid":8,"limits":{"processes":9}}'],
    "get_metrics": [b"# TYPE execd_ready gauge\nexecd_ready 0\nmore 1\n"],
    "get_docs": [b"<!DOCTYPE html>\n<html>"],
    "watch_path": [b'id: 1\nevent: gone\ndata: {"a": 1}'],
    "stream_session": [b'id: 12\nevent: gone\ndata: {"a":1}'],
    "stream_execution": [b'{"sequence":2,"event":"stdout"}'],
}
UNLIKE = {
    "get_stats": [
        b'{"load":0.5,"ready":1,"memory":{"bytes":1}}',
        b'{"load":0.5,"ready":true,"memory":{}}',
        b'{"load":0.5,"ready":true,"memory":null}',
        b'{"load":0.5,"ready":true,"memory":{"bytes":1},"more":1}',
        b'{"load":{},"ready":true,"memory":{"bytes":1}}',
    ],
    "get_openapi": [b'{"openapi":"3.0.0","tags":[{"name":"files"}]}', b'{"openapi":"3.1.0"}'],
    "get_session": [
        b'{"id":"b","pid":7,"limits":{"processes":512}}',
        b'{"id":"a","limits":{"processes":512}}',
        b'{"id":"a","pid":"7","limits":{"processes":512}}',
        b'{"id":"a","pid":7,"limits":{}}',
    ],
    "get_metrics": [b"# TYPE execd_ready counter\nexecd_ready 1\n", b"execd_ready 1\n"],
    "get_docs": [b"<html>\n<!DOCTYPE html>\n"],
    "watch_path": [
        b'id: 2\nevent: gone\ndata: {"a":1}',
        b'id: 1\nevent: left\ndata: {"a":1}',
        b'id: 1\nevent: gone\ndata: {"a":2}',
    ],
    "stream_session": [b'id: x\nevent: gone\ndata: {"a":1}', b'id: 1\nevent: gone\ndata: {"b":1}'],
    "stream_execution": [b'{"sequence":3,"event":"stdout"}'],
}


@pytest.mark.parametrize("operation_id", SHOWN)
def test_a_reply_unlike_the_example_is_found(operation_id: str) -> None:
    media_type, value = SHOWN[operation_id]
    example = Example(200, media_type, value, {"ETag": '"1"', "Location": "/x"})
    headers = httpx.Headers({"content-type": media_type, "etag": '"2"', "location": "/x"})

    def is_found_alike(content: bytes, status: int = 200, **changed: str) -> bool:
        reply = Found(status, httpx.Headers({**headers, **changed}), content)
        return is_as_shown(operation_id, reply, example)

    for content in ALIKE[operation_id]:
        assert is_found_alike(content)
        assert not is_found_alike(content, 201)
        assert not is_found_alike(content, location="/y")
        assert not is_found_alike(content, etag="2")
        assert not is_found_alike(content, **{"content-type": "image/png"})
    for content in UNLIKE[operation_id]:
        assert not is_found_alike(content), content


def test_the_comparisons_are_those_of_operations_of_the_story() -> None:
    operations = {operation_id for operation_id, _ in EXAMPLES}
    loose = (
        examples.FIGURES
        | examples.CUT_OBJECTS
        | examples.BEGINNINGS
        | examples.NUMBERED_BY_TIME
        | set(ARCHIVES)
    )
    assert loose <= operations
    assert has_shape([1, 2], [3])
    assert not has_shape(["1"], [3])


def test_an_archive_is_opened(tmp_path: Path) -> None:
    content: Any = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        zipped.writestr("a.txt", "a")
    headers = httpx.Headers({"content-type": "application/zip"})
    assert file_names(Found(200, headers, content.getvalue())) == {"a.txt"}
    with pytest.raises(zipfile.BadZipFile):
        file_names(Found(200, headers, b"no archive"))
