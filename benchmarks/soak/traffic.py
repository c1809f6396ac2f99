"""The mixed load: clients that call all routes, over and over, and compare each reply.

Each client is a thread with a connection of its own and names of its own. A wrong reply ends the
soak. The load holds nothing back: each round deletes what the round has made, so whatever grows is
the daemon's. tests/soak compares the routes called with the daemon's routes.
"""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import threading
import time
import zipfile
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_SECONDS = 60.0
NDJSON = {"Accept": "application/x-ndjson"}
CONTENT = b"0123456789" * 50_000

DOCS = {
    "/docs": "docs/viewer.js",
    "/docs/": "viewer.js",
    "/docs/viewer.js": "openapi.json",
    "/docs/swagger-ui.css": ".swagger-ui",
    "/docs/swagger-ui-bundle.js": "SwaggerUIBundle",
}
"""The files of the page, each with a word of its content."""


class Client:
    """One client. ``round`` tells each of the client's stories once."""

    def __init__(self, url: str, name: str, transport: httpx.BaseTransport | None = None) -> None:
        self.name = name
        self.n_requests = 0
        self.called: set[tuple[str, str]] = set()
        """Method and path of each request, without the query."""
        self._url = url
        self._n_rounds = 0
        self._http = httpx.Client(
            base_url=url, timeout=READ_SECONDS, trust_env=False, transport=transport
        )

    def close(self) -> None:
        self._http.close()

    @property
    def stories(self) -> list[Callable[[], None]]:
        return [
            self.probes,
            self.commands,
            self.executions,
            self.streams,
            self.terminal,
            self.sessions,
            self.cells,
            self.python_runtime_files,
            self.files,
            self.file_operations,
            self.archives,
            self.checkpoints,
            self.watches,
        ]

    def round(self) -> None:
        self._n_rounds += 1
        for story in self.stories:
            story()

    # --- asking and comparing

    def ask(self, method: str, path: str, *http_status: int, **request: Any) -> httpx.Response:
        reply = self._http.request(method, path, **request)
        self._count(method, path)
        if reply.status_code not in (http_status or (200,)):
            raise AssertionError(f"{method} {path}: {reply.status_code} {reply.text[:500]}")
        return reply

    def _count(self, method: str, path: str) -> None:
        self.n_requests += 1
        self.called.add((method, path.partition("?")[0]))

    def _equal(self, found: object, expected: object) -> None:
        if found != expected:
            raise AssertionError(f"{self.name}: {found!r}, expected {expected!r}")

    def _has(self, found: dict[str, Any], **expected: object) -> None:
        """These fields have these values."""
        self._equal({name: found.get(name) for name in expected}, expected)

    def _stream(self, method: str, path: str, **request: Any) -> Iterator[dict[str, Any]]:
        """The events of a stream of NDJSON. The caller may stop reading."""
        with self._http.stream(method, path, headers=NDJSON, **request) as reply:
            self._count(method, path)
            self._equal((reply.status_code, reply.headers["content-type"]), (200, NDJSON["Accept"]))
            for line in reply.iter_lines():
                if line:
                    yield json.loads(line)

    def _says(self, path: str, expected: bytes) -> None:
        """Wait until the stdout of the execution is ``expected``."""
        deadline = time.monotonic() + READ_SECONDS
        while (found := self.ask("GET", f"{path}/stdout").content) != expected:
            if time.monotonic() > deadline or not expected.startswith(found):
                self._equal(found, expected)
            time.sleep(0.02)

    def _ended(self, path: str, **expected: object) -> None:
        """Wait for the end of the execution, compare, and forget the execution."""
        body = self.ask("GET", path, params={"wait_seconds": 25}).json()
        self._has(body, state="EXITED", **expected)
        self.ask("DELETE", path, 204)

    def _start(self, **command: Any) -> str:
        """Start an execution in the background; return the path of the execution."""
        body = self.ask("POST", "/v1/executions", 202, json={**command, "detach": True}).json()
        self._has(body, exit_code=None)
        return f"/v1/executions/{body['id']}"

    # --- the stories

    def probes(self) -> None:
        self._has(self.ask("GET", "/").json(), status="ok", message="Sandbox Runtime is active.")
        for path in ("/healthz", "/readyz"):
            self._equal(self.ask("GET", path).json(), {"status": "ok"})
        self._has(self.ask("GET", "/v1/health").json(), status="ok")
        found = self.ask("GET", "/v1/capabilities").json()
        self._has(found, warden_restarts=0)
        self._has(found["sessions"], restarts=0, trouble=None)
        stats = self.ask("GET", "/v1/stats").json()
        self._has(stats, ready=True)
        self._has(stats["warden"], up=True, restarts=0)
        metrics = self.ask("GET", "/metrics").text.splitlines()
        assert "execd_warden_up 1" in metrics, metrics
        self._equal(list(self.ask("GET", "/v1/metadata").json()), ["env"])
        self._has(self.ask("GET", "/openapi.json").json(), openapi="3.1.0")
        for path, word in DOCS.items():
            self._equal(word in self.ask("GET", path).text, True)
        # No token, and no sign of a restore.
        self._has(self.ask("POST", "/v1/restored", 409).json(), code="CONFLICT")
        self._equal(self.ask("GET", "/no/such/route", 404).json(), {"detail": "Not Found"})

    def commands(self) -> None:
        for path in ("/execute", "/execute/"):
            command = {"command": "echo out; echo err >&2; exit 3"}
            ran = self.ask("POST", path, json=command).json()
            self._has(ran, stdout="out\n", stderr="err\n", exit_code=3, exit_reason="exited")
        command = {"command": "sleep 60 & sleep 60", "timeout_seconds": 0.1}
        late = self.ask("POST", "/execute", json=command).json()
        self._has(late, exit_code=124, timed_out=True)
        key = {"Idempotency-Key": f"{self.name}-{self._n_rounds}"}
        command = {"argv": ["seq", "20000"]}
        numbers = "".join(f"{number}\n" for number in range(1, 20_001))
        for _ in range(2):
            body = self.ask("POST", "/v1/executions", json=command, headers=key).json()
            self._has(body, stdout=numbers, exit_code=0)
        self.ask("DELETE", f"/v1/executions/{body['id']}", 204)
        sleeper = self._start(command="echo up; exec sleep 600")
        self._says(sleeper, b"up\n")  # a command that still waits for its turn gets no signal
        killed = self.ask("POST", f"{sleeper}/kill", json={"grace_seconds": 0.1}).json()
        self._has(killed, exit_reason="canceled", signal="SIGTERM")
        self.ask("DELETE", sleeper, 204)

    def executions(self) -> None:
        """Input, output by ranges, the list, a signal."""
        cat = self._start(argv=["cat"], stdin_open=True)
        written = self.ask("POST", f"{cat}/stdin", content=b"typed\n").json()
        self._equal(written, {"written_bytes": 6})
        self._says(cat, b"typed\n")
        written = self.ask("POST", f"{cat}/input", json={"text": "more\n"}).json()
        self._equal(written, {"written_bytes": 5})
        self._says(cat, b"typed\nmore\n")
        items = self.ask("GET", "/v1/executions", params={"limit": 1000}).json()["items"]
        [item] = [item for item in items if cat.endswith(item["id"])]
        self._has(item, argv=["cat"], state="RUNNING")
        ended = self.ask("POST", f"{cat}/stdin", content=b"", params={"eof": "true"}).json()
        self._equal(ended, {"written_bytes": 0})
        part = self.ask("GET", f"{cat}/stdout", 206, headers={"Range": "bytes=1-3"})
        self._equal((part.content, part.headers["content-range"]), (b"ype", "bytes 1-3/11"))
        self._equal(self.ask("GET", f"{cat}/stderr").content, b"")
        self._ended(cat, exit_code=0, stdout="typed\nmore\n", stderr="")

        script = "trap 'kill $!; echo got; exit 7' USR1; sleep 600 & echo ready; wait"
        waiting = self._start(command=script)
        self._says(waiting, b"ready\n")
        self.ask("POST", f"{waiting}/signal", 204, json={"signal": "USR1"})
        self._ended(waiting, exit_code=7, stdout="ready\ngot\n")

    def streams(self) -> None:
        """A stream read whole, a stream cut off, and the events again from a number on."""
        request = {"command": "for i in 1 2 3 4 5 6 7 8; do echo $i; done"}
        events = list(self._stream("POST", "/v1/executions", json=request))
        self._equal((events[0]["event"], events[-1]["event"]), ("started", "exited"))
        text = "1\n2\n3\n4\n5\n6\n7\n8\n"
        self._equal("".join(event.get("text", "") for event in events), text)
        self._has(events[-1], exit_code=0, stdout=text)
        path = f"/v1/executions/{events[-1]['id']}"
        self._equal(list(self._stream("GET", f"{path}/events", params={"after": 1})), events[1:])
        lines = self.ask("GET", f"{path}/events").text.splitlines()
        data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
        kinds = [line[7:] for line in lines if line.startswith("event: ")]
        self._equal(
            [
                {"event": kind, "sequence": number, **fields}
                for kind, number, fields in zip(kinds, ids, data, strict=True)
            ],
            events,
        )
        self.ask("DELETE", path, 204)
        cut = self._stream("POST", "/v1/executions", json=request)
        self._has(next(cut), event="started", command=request["command"])
        cut.close()

    def terminal(self) -> None:
        script = 'stty -echo; echo ready; read line; stty size; echo "got $line"'
        path = self._start(command=script, pty={"cols": 80, "rows": 24})
        self._says(path, b"ready\r\n")
        self.ask("POST", f"{path}/resize", 204, json={"cols": 100, "rows": 30})
        output, exited = asyncio.run(self._attach(f"{path}/attach", b"typed\r"))
        self._equal(output, b"ready\r\n30 100\r\ngot typed\r\n")
        self._has(exited, type="exited", exit_code=0)
        self._ended(path, exit_code=0, stdout=output.decode())

    async def _attach(self, path: str, typed: bytes) -> tuple[bytes, dict[str, Any]]:
        """The output and the last message of a viewer that types."""
        output, message = b"", {}
        timeout = aiohttp.ClientTimeout(total=READ_SECONDS)
        async with (
            aiohttp.ClientSession(self._url, timeout=timeout) as session,
            session.ws_connect(path) as socket,
        ):
            self._count("GET", path)
            await socket.send_bytes(typed)
            async for received in socket:
                if received.type is aiohttp.WSMsgType.BINARY:
                    output += received.data
                else:
                    message = json.loads(received.data)
        return output, message

    def sessions(self) -> None:
        name, branch = f"{self.name}-s", f"{self.name}-b"
        path = f"/v1/sessions/{name}"
        made = self.ask("POST", "/v1/sessions", 201, json={"id": name}).json()
        self._has(made, id=name, generation=1)
        listed = self.ask("GET", "/v1/sessions", params={"limit": 1000}).json()["items"]
        self._equal([item["id"] for item in listed].count(name), 1)
        self.ask("POST", f"{path}/execute", json={"code": "forty_one = 41"})
        found = self.ask("POST", f"{path}/complete", json={"code": "1 + forty_"}).json()
        self._equal(found, {"matches": ["forty_one"], "cursor_start": 4, "cursor_end": 10})
        found = self.ask("GET", f"{path}/variables").json()
        self._equal([found["total"], found["variables"][0]["name"]], [1, "forty_one"])
        forked = self.ask("POST", f"{path}/fork", 201, json={"id": branch}).json()
        self._equal([item["id"] for item in forked["sessions"]], [branch])
        for session in (name, branch):
            cell = {"code": "forty_one += 1; print('out'); forty_one"}
            body = self.ask("POST", f"/v1/sessions/{session}/execute", json=cell).json()
            self._has(body, stdout="out\n", result=bundle("42"))
        self._has(self.ask("POST", f"{path}/restart").json(), generation=2, execution_count=0)
        dead = self.ask("POST", f"{path}/execute", json={"code": "import os; os._exit(3)"}).json()
        self._has(dead, exit_reason="worker_died", exit_code=3, generation=2)
        self._has(self.ask("GET", path).json(), id=name, generation=2, execution_count=1)
        for session in (name, branch):
            self.ask("DELETE", f"/v1/sessions/{session}", 204)

    def cells(self) -> None:
        """A cell of its own, a cell that is interrupted, a cell that asks."""
        body = self.ask("POST", "/v1/code", json={"code": "print('out'); 6 * 7"}).json()
        self._has(body, status="success", stdout="out\n", result=bundle("42"))
        path = f"/v1/sessions/{self.name}-c"
        code = "import time; print('ready', flush=True); time.sleep(600)"
        cell = {"code": code, "detach": True}
        body = self.ask("POST", f"{path}/execute", 202, json=cell, params={"create": "true"}).json()
        self._says(f"/v1/executions/{body['id']}", b"ready\n")
        self._equal(self.ask("POST", f"{path}/interrupt").json(), {"interrupted": True})
        self._ended(f"/v1/executions/{body['id']}", status="error", stdout="ready\n")
        cell = {"code": "given = input('name? '); given", "allow_input": True}
        for event in self._stream("POST", f"{path}/execute", json=cell):
            if event["event"] == "input_request":
                self._has(event, prompt="name? ", password=False)
                given = self.ask("POST", f"{path}/input", json={"text": "typed"}).json()
                self._equal(given, {"written_bytes": 5})
        self._has(event, event="exited", status="success", result=bundle("'typed'"))
        for told in self._stream("GET", f"{path}/events"):
            if told["event"] == "cell_ended" and told["id"] == event["id"]:
                self._has(told, status="success", exit_reason="exited")
                break
        else:
            raise AssertionError("the stream of the session does not tell of the cell")
        self.ask("DELETE", path, 204)

    def python_runtime_files(self) -> None:
        folder = f"{self.name}-runtime"
        for path, name in (("/upload", f"{folder}/a"), ("/upload/", f"{folder}/b")):
            body = self.ask("POST", path, files={"file": (name, CONTENT)}).json()
            self._equal(body, {"message": f"File '{name}' uploaded successfully."})
            self._equal(self.ask("GET", f"/download/{name}").content, CONTENT)
        part = self.ask("GET", f"/download/{folder}/a", 206, headers={"Range": "bytes=10-14"})
        self._equal((part.content, part.headers["content-range"]), (b"01234", "bytes 10-14/500000"))
        missing = self.ask("GET", "/download", 404).json()
        self._equal(missing, {"message": "File not found"})
        listed = self.ask("GET", f"/list/{folder}").json()
        self._equal(
            [(entry["name"], entry["size"], entry["type"]) for entry in listed],
            [("a", len(CONTENT), "file"), ("b", len(CONTENT), "file")],
        )
        names = [entry["name"] for entry in self.ask("GET", "/list").json()]
        self._equal(names.count(folder), 1)
        for path, answer in ((f"{folder}/a", True), (f"{folder}/none", False)):
            found = self.ask("GET", f"/exists/{path}").json()
            self._equal(found, {"path": path, "exists": answer})
        self._equal(self.ask("GET", "/exists").json(), {"path": "", "exists": True})
        self._delete(folder)

    def _delete(self, folder: str) -> None:
        self.ask("DELETE", f"/v1/files/{folder}", 204, params={"recursive": "true"})

    def files(self) -> None:
        """The files of /v1/files, and the same files by /v1/fs/file."""
        folder = f"{self.name}-files"
        self.ask("PUT", f"/v1/files/{folder}/sub/a", 204, content=CONTENT)
        self._equal(self.ask("GET", f"/v1/files/{folder}/sub/a").content, CONTENT)
        for _ in range(2):
            self.ask("PUT", f"/v1/files/{folder}/b", 204, content=b"b", params={"append": "true"})
        entries = self.ask("GET", f"/v1/files/{folder}").json()["entries"]
        self._equal(
            [(entry["name"], entry["type"]) for entry in entries],
            [("b", "file"), ("sub", "directory")],
        )
        names = [entry["name"] for entry in self.ask("GET", "/v1/files").json()["entries"]]
        self._equal(names.count(folder), 1)
        # The base dir is no file, and is not empty.
        self._has(self.ask("PUT", "/v1/files", 400, content=b"x").json(), code="INVALID_ARGUMENT")
        self._has(self.ask("DELETE", "/v1/files", 409).json(), code="CONFLICT")
        query = {"path": f"{folder}/b"}
        self._equal(self.ask("GET", "/v1/fs/file", params=query).content, b"bb")
        self.ask("PUT", "/v1/fs/file", 204, content=b"new", params=query)
        self._equal(self.ask("GET", f"/v1/files/{folder}/b").content, b"new")
        self.ask("DELETE", "/v1/fs/file", 204, params=query)
        self._has(self.ask("GET", "/v1/fs/file", 404, params=query).json(), code="NOT_FOUND")
        self._delete(folder)

    def file_operations(self) -> None:
        folder = f"{self.name}-operations"
        made = {"path": f"{folder}/sub", "mode": "0750"}
        self._has(self.ask("POST", "/v1/fs/mkdir", json=made).json(), type="directory", mode="0750")
        self.ask("PUT", f"/v1/files/{folder}/sub/a", 204, content=b"content")
        moved = {"src": f"{folder}/sub/a", "dest": f"{folder}/sub/b"}
        self._has(self.ask("POST", "/v1/fs/move", json=moved).json(), type="file", size=7)
        mode = {"path": f"{folder}/sub/b", "mode": "0600"}
        self._has(self.ask("POST", "/v1/fs/chmod", json=mode).json(), mode="0600")
        found = self.ask("GET", "/v1/fs/stat", params={"path": f"{folder}/sub/b"}).json()
        self._has(found, type="file", size=7, mode="0600", links=1)
        copied = {"src": folder, "dest": f"{folder}-copy"}
        self._has(
            self.ask("POST", "/v1/fs/copy", json=copied).json()["copied"],
            files=1,
            directories=2,
            bytes=7,
        )
        self._equal(self.ask("GET", f"/v1/files/{folder}-copy/sub/b").content, b"content")
        searched = {"path": f"{folder}-copy", "glob": "**/b"}
        body = self.ask("POST", "/v1/fs/search", json=searched).json()
        self._has(body, truncated=None)
        self._equal(
            [(item["path"], item["size"]) for item in body["items"]],
            [("sub/b", 7)],
        )
        self._delete(folder)
        self._delete(f"{folder}-copy")

    def archives(self) -> None:
        folder = f"{self.name}-archive"
        self.ask("PUT", f"/v1/files/{folder}/sub/a", 204, content=CONTENT)
        self.ask("PUT", f"/v1/files/{folder}/b", 204, content=b"b")
        files = {"sub/a": CONTENT, "b": b"b"}
        for format_ in ("tar", "tar.gz", "zip"):
            query = {"format": format_}
            archive = self.ask("GET", f"/v1/archive/{folder}", params=query).content
            self._equal(unpacked(archive, format_), files)
            path, size = f"/v1/archive/{folder}-2", sum(map(len, files.values()))
            body = self.ask("PUT", path, params=query, content=archive).json()
            self._has(body, files=2, bytes=size)
            for name, content in files.items():
                self._equal(self.ask("GET", f"/v1/files/{folder}-2/{name}").content, content)
            self._delete(f"{folder}-2")
        archive = packed({f"{folder}-3/c": b"c"})
        self._has(self.ask("PUT", "/v1/archive", content=archive).json(), files=1, bytes=1)
        self._equal(self.ask("GET", f"/v1/files/{folder}-3/c").content, b"c")
        # Other clients change the base dir, and a change in the middle cuts an archive of all.
        refusal = self.ask("GET", "/v1/archive", 400, params={"format": "none"}).json()
        self._has(refusal, code="INVALID_ARGUMENT")
        self._delete(folder)
        self._delete(f"{folder}-3")

    def checkpoints(self) -> None:
        """All but a reset, which would end the other clients' commands: that is refused."""
        folder = f"{self.name}-kept"
        self.ask("PUT", f"/v1/files/{folder}/a", 204, content=b"before")
        asked = {"id": folder, "roots": [folder]}
        made = self.ask("POST", "/v1/checkpoints", 201, json=asked).json()
        self._has(made, id=folder, watched=[])
        self._equal([root["files"] for root in made["roots"]], [1])
        self._equal(self.ask("GET", f"/v1/checkpoints/{folder}").json(), made)
        found = self.ask("GET", "/v1/checkpoints").json()["items"]
        self._equal([item for item in found if item["id"] == folder], [made])
        self.ask("PUT", f"/v1/files/{folder}/a", 204, content=b"after")
        changes = self.ask("GET", f"/v1/checkpoints/{folder}/changes").json()["items"]
        self._equal(
            [(item["change"], item["was_size_bytes"], item["size_bytes"]) for item in changes],
            [("modified", 6, 5)],
        )
        restored = self.ask("POST", f"/v1/checkpoints/{folder}/restore").json()
        self._has(restored, removed=0)
        self._equal(self.ask("GET", f"/v1/files/{folder}/a").content, b"before")
        self.ask("DELETE", f"/v1/checkpoints/{folder}", 204)
        refusal = self.ask("POST", "/v1/reset", 404, json={"checkpoint": folder}).json()
        self._has(refusal, code="NOT_FOUND")
        self._delete(folder)

    def watches(self) -> None:
        folder = f"{self.name}-watch"
        self._has(self.ask("POST", "/v1/fs/mkdir", json={"path": folder}).json(), type="directory")
        watching = self._stream("GET", f"/v1/watch/{folder}", params={"debounce_seconds": 0.05})
        self._has(next(watching), event="watching", recursive=False, complete=True)
        self.ask("PUT", f"/v1/files/{folder}/new", 204, content=b"x")
        event = next(watching)
        self._equal(
            [(change["type"], change["path"]) for change in event["changes"]],
            [("created", "new")],
        )
        self._delete(folder)
        self._equal([event["event"] for event in watching][-1], "gone")
        watching = self._stream("GET", "/v1/watch")
        self._has(next(watching), event="watching", recursive=False, complete=True)
        watching.close()


def bundle(text: str) -> dict[str, Any]:
    """The result of a cell whose value prints as the text."""
    return {"data": {"text/plain": text}, "metadata": {}, "display_id": None}


def packed(files: dict[str, bytes]) -> bytes:
    """A tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpacked(archive: bytes, format_: str) -> dict[str, bytes]:
    """The regular files of an archive."""
    if format_ == "zip":
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return {n: opened.read(n) for n in opened.namelist() if not n.endswith("/")}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {
            member.name: opened.extractfile(member).read()  # type: ignore[union-attr]
            for member in opened
            if member.isfile()
        }


class Traffic:
    """``n_clients`` threads; ``stop`` ends them and raises the first client's error."""

    def __init__(self, url: str, n_clients: int) -> None:
        self._stopping = threading.Event()
        self.failed = threading.Event()
        self._errors: list[BaseException] = []
        self.clients = [Client(url, f"soak-{number}") for number in range(n_clients)]
        self._threads = [
            threading.Thread(target=self._run, args=(client,)) for client in self.clients
        ]
        for thread in self._threads:
            thread.start()

    @property
    def n_requests(self) -> int:
        return sum(client.n_requests for client in self.clients)

    def _run(self, client: Client) -> None:
        try:
            while not self._stopping.is_set():
                client.round()
        except BaseException as error:
            self._errors.append(error)
            self.failed.set()
        finally:
            client.close()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def lag_seconds(url: str) -> float:
    """How long GET / takes over a new connection, as a kubelet's probe does."""
    began = time.perf_counter()
    httpx.get(url, timeout=READ_SECONDS, trust_env=False).raise_for_status()
    return time.perf_counter() - began
