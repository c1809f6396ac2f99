"""One client for each dialect, as thin as the dialect allows: what a dialect's own SDK would send.

All clients have the same methods, so that one suite asks all dialects the same questions. A client
takes the token in the way of its dialect.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import httpx
from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from execd_sandboxd import process_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_SECONDS = 60.0
SHELL = ("/bin/bash", "-c")
SERVICE = "/process.v1.ProcessService"
FRAME = struct.Struct(">BI")
END_OF_STREAM = 2


@dataclass
class Ran:
    """The end of a command as the dialect tells the end."""

    stdout: bytes
    exit_code: int | None = None
    timed_out: bool = False
    is_cut: bool = False
    """The reply lacks a part of the output, and says so."""


class Running(Protocol):
    """A command that the client has started, and whose output is being read."""

    def kill(self) -> Ran:
        """End the command in the dialect's own way, and read to the end."""

    def leave(self) -> None:
        """Drop the connection."""


class Speaker(Protocol):
    """A client of one dialect."""

    name: str
    is_text: bool
    """Output is text: bytes that are no UTF-8 become U+FFFD."""
    signal_exit_code: int
    """The exit code of a program that KILL has ended."""
    survives_leaving: bool
    """A command goes on when its client leaves, by the dialect's contract."""
    sees_whole_tree: bool
    """Paths of files are those of user code, and not confined to the base dir."""

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran: ...

    def start(self, command: str) -> Running:
        """Start a command that writes a first line, and return after the line."""

    def upload(self, path: str, content: bytes) -> None: ...

    def download(self, path: str) -> bytes | int:
        """The content, or the HTTP status of a refusal."""

    def instance_of_a_refusal(self) -> str:
        """The X-Execd-Instance of a refused request."""

    def refusal_without(self, token: str | None) -> Any:
        """The answer to a command with this token in the place of the right token."""


class HttpSpeaker:
    """What the HTTP clients share."""

    def __init__(self, url: str, token: str, headers: dict[str, str] | None = None) -> None:
        """``headers``: of a router on the way."""
        self.url, self.token = url, token
        self.http = httpx.Client(
            base_url=url,
            timeout=READ_SECONDS,
            headers={**self.token_headers(token), **(headers or {})},
        )

    def token_headers(self, token: str) -> dict[str, str]:
        return {"X-Access-Token": token}

    def close(self) -> None:
        self.http.close()

    def instance_of_a_refusal(self) -> str:
        reply = self.http.get("/no/such/route")
        assert reply.status_code == 404
        return reply.headers["X-Execd-Instance"]

    def _refused(self, method: str, path: str, token: str | None, **body: Any) -> Any:
        headers = {} if token is None else self.token_headers(token)
        reply = httpx.request(method, self.url + path, headers=headers, timeout=60, **body)
        return reply.status_code, reply.json()


def escaped(path: str) -> str:
    """Return the path for a URL. httpx removes plain dots."""
    return quote(path).replace("..", "%2e%2e")


def content_or_status(reply: httpx.Response) -> bytes | int:
    return reply.content if reply.status_code == 200 else reply.status_code


class PythonRuntime(HttpSpeaker):
    name, is_text, signal_exit_code, survives_leaving = "python_runtime", True, -9, False
    sees_whole_tree = False

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran:
        body = {"command": command, "timeout_seconds": timeout_seconds}
        reply = self.http.post("/execute", json=body).raise_for_status().json()
        return Ran(
            reply["stdout"].encode(),
            reply["exit_code"],
            reply["timed_out"],
            reply["truncated"] is not None,
        )

    def start(self, command: str) -> Running:
        return _Silent(self, command)

    def upload(self, path: str, content: bytes) -> None:
        self.http.post("/upload", files={"file": (path, content)}).raise_for_status()

    def download(self, path: str) -> bytes | int:
        return content_or_status(self.http.get(f"/download/{escaped(path)}"))

    def refusal_without(self, token: str | None) -> Any:
        return self._refused("POST", "/execute", token, json={"command": "true"})


class _Silent:
    """A command of a dialect without streams: the caller's only way to end it is to leave."""

    def __init__(self, speaker: PythonRuntime, command: str) -> None:
        host, port = httpx.URL(speaker.url).host, httpx.URL(speaker.url).port
        body = json.dumps({"command": command}).encode()
        lines = [
            "POST /execute HTTP/1.1",
            "Host: localhost",
            f"X-Access-Token: {speaker.token}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        self._socket = socket.create_connection((host, port or 80), timeout=READ_SECONDS)
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def kill(self) -> Ran:
        self.leave()
        return Ran(b"")

    def leave(self) -> None:
        self._socket.close()


class V1(HttpSpeaker):
    name, is_text, signal_exit_code, survives_leaving = "v1", False, 137, False
    sees_whole_tree = False

    def token_headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran:
        body = {"command": command, "timeout_seconds": timeout_seconds}
        reply = self.http.post("/v1/executions?encoding=base64", json=body).json()
        return self._ran(reply, base64.b64decode(reply["stdout_base64"]))

    @staticmethod
    def _ran(reply: dict[str, Any], stdout: bytes) -> Ran:
        return Ran(stdout, reply["exit_code"], reply["timed_out"], reply["truncated"] is not None)

    def start(self, command: str) -> Running:
        return _V1Stream(self, command)

    def upload(self, path: str, content: bytes) -> None:
        self.http.put(f"/v1/files/{quote(path)}", content=content).raise_for_status()

    def download(self, path: str) -> bytes | int:
        return content_or_status(self.http.get(f"/v1/files/{escaped(path)}"))

    def refusal_without(self, token: str | None) -> Any:
        return self._refused("POST", "/v1/executions", token, json={"command": "true"})


class _V1Stream:
    def __init__(self, speaker: V1, command: str) -> None:
        self._speaker = speaker
        self._ends = contextlib.ExitStack()
        reply = self._ends.enter_context(
            speaker.http.stream(
                "POST",
                "/v1/executions",
                json={"command": command},
                headers={"Accept": "application/x-ndjson"},
            )
        )
        self._lines = (json.loads(line) for line in reply.iter_lines() if line.strip())
        self._id = next(self._lines)["id"]
        next(self._lines)

    def kill(self) -> Ran:
        self._speaker.http.post(f"/v1/executions/{self._id}/signal", json={"signal": "KILL"})
        for line in self._lines:
            last = line
        self._ends.close()
        return V1._ran(last, b"")

    def leave(self) -> None:
        self._ends.close()


class OpenSandbox(HttpSpeaker):
    name, is_text, signal_exit_code, survives_leaving = "opensandbox", True, -1, False
    sees_whole_tree = True

    def token_headers(self, token: str) -> dict[str, str]:
        return {"X-EXECD-ACCESS-TOKEN": token}

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran:
        stream = _OpenSandboxStream(self, command, timeout_seconds)
        return stream.rest()

    def start(self, command: str) -> Running:
        stream = _OpenSandboxStream(self, command, None)
        stream.first_output()
        return stream

    def upload(self, path: str, content: bytes) -> None:
        metadata = json.dumps({"path": path, "owner": None, "group": None, "mode": 644})
        parts = [
            ("metadata", ("metadata", metadata, "application/json")),
            ("file", (path.rpartition("/")[2], content)),
        ]
        self.http.post("/files/upload", files=parts).raise_for_status()

    def download(self, path: str) -> bytes | int:
        return content_or_status(self.http.get("/files/download", params={"path": path}))

    def refusal_without(self, token: str | None) -> Any:
        return self._refused("POST", "/command", token, json={"command": "true"})


class _OpenSandboxStream:
    def __init__(self, speaker: OpenSandbox, command: str, timeout_seconds: float | None) -> None:
        self._speaker = speaker
        self._ends = contextlib.ExitStack()
        body: dict[str, Any] = {"command": command}
        if timeout_seconds is not None:
            body["timeout"] = round(timeout_seconds * 1000)
        reply = self._ends.enter_context(
            speaker.http.stream(
                "POST", "/command", json=body, headers={"Accept": "text/event-stream"}
            )
        )
        reply.raise_for_status()
        self._events = self._read(reply)
        self._id = next(self._events)["text"]
        self._stdout = b""

    @staticmethod
    def _read(reply: httpx.Response) -> Iterator[dict[str, Any]]:
        pending = ""
        for text in reply.iter_text():
            pending += text
            while "\n\n" in pending:
                frame, _, pending = pending.partition("\n\n")
                yield json.loads(frame)

    def first_output(self) -> None:
        for event in self._events:
            if event["type"] == "stdout":
                return

    def rest(self) -> Ran:
        exit_code, has_failed, value = None, False, ""
        for event in self._events:
            match event["type"]:
                case "stdout":
                    self._stdout += event["text"].encode()
                case "error":
                    has_failed, value = True, event["error"]["evalue"]
                case "execution_complete":
                    exit_code = 0
        self._ends.close()
        if has_failed:
            exit_code = int(value)
        return Ran(self._stdout, exit_code, timed_out=has_failed and exit_code == -1)

    def kill(self) -> Ran:
        self._speaker.http.delete("/command", params={"id": self._id}).raise_for_status()
        return self.rest()

    def leave(self) -> None:
        self._ends.close()


class E2B(HttpSpeaker):
    name, is_text, signal_exit_code, survives_leaving = "e2b", False, -1, True
    sees_whole_tree = True

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran:
        return _E2BStream(self, command, timeout_seconds).rest()

    def start(self, command: str) -> Running:
        stream = _E2BStream(self, command, None)
        stream.first_output()
        return stream

    def upload(self, path: str, content: bytes) -> None:
        files = {"file": (path, content)}
        self.http.post("/files", params={"path": path}, files=files).raise_for_status()

    def download(self, path: str) -> bytes | int:
        return content_or_status(self.http.get("/files", params={"path": path}))

    def refusal_without(self, token: str | None) -> Any:
        return self._refused("POST", "/process.Process/List", token, json={})


class _E2BStream:
    def __init__(self, speaker: E2B, command: str, timeout_seconds: float | None) -> None:
        self._speaker = speaker
        self._ends = contextlib.ExitStack()
        process = {"cmd": SHELL[0], "args": [SHELL[1], command]}
        body = json.dumps({"process": process, "stdin": False}).encode()
        headers = {
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": "50",
        }
        if timeout_seconds is not None:
            headers["Connect-Timeout-Ms"] = str(round(timeout_seconds * 1000))
        reply = self._ends.enter_context(
            speaker.http.stream(
                "POST",
                "/process.Process/Start",
                content=FRAME.pack(0, len(body)) + body,
                headers=headers,
            )
        )
        reply.raise_for_status()
        self._frames = self._read(reply)
        self._pid = next(self._frames)[1]["event"]["start"]["pid"]

    @staticmethod
    def _read(reply: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
        pending = bytearray()
        for data in reply.iter_bytes():
            pending += data
            while len(pending) >= FRAME.size:
                flags, size_bytes = FRAME.unpack_from(pending)
                if len(pending) < FRAME.size + size_bytes:
                    break
                body = bytes(pending[FRAME.size : FRAME.size + size_bytes])
                del pending[: FRAME.size + size_bytes]
                yield flags, json.loads(body)

    def first_output(self) -> None:
        for _, message in self._frames:
            if "data" in message.get("event", {}):
                return

    def rest(self) -> Ran:
        ran = Ran(b"")
        for flags, message in self._frames:
            if flags & END_OF_STREAM:
                code = message.get("error", {}).get("code")
                ran.timed_out = code == "deadline_exceeded"
                continue
            event = message["event"]
            ran.stdout += base64.b64decode(event.get("data", {}).get("stdout", ""))
            if "end" in event:
                ran.exit_code = event["end"].get("exitCode", 0)
        self._ends.close()
        return ran

    def kill(self) -> Ran:
        body = {"process": {"pid": self._pid}, "signal": "SIGNAL_SIGKILL"}
        self._speaker.http.post("/process.Process/SendSignal", json=body).raise_for_status()
        return self.rest()

    def leave(self) -> None:
        self._ends.close()


class SandboxdGrpc:
    """Commands go by gRPC, and files by sandboxd's REST half."""

    name, is_text, signal_exit_code, survives_leaving = "sandboxd_grpc", False, -1, False
    sees_whole_tree = False
    resets_late_calls = False
    """Whether the server may reset a call past its deadline. sandboxd (grpc-go) does, when its own
    clock is ahead of the client's."""

    def __init__(self, url: str, token: str, port: int) -> None:
        self._files = V1(url, token)
        self._host = httpx.URL(url).host
        self._port, self._token = port, token
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._files.close()
        self.loop.close()

    def run(self, command: str, timeout_seconds: float | None = None) -> Ran:
        return self.loop.run_until_complete(self._run(command, timeout_seconds))

    async def _run(self, command: str, timeout_seconds: float | None) -> Ran:
        ran = Ran(b"")
        async with self.channel() as channel:
            try:
                async with self.call(channel, timeout_seconds) as stream:
                    await stream.send_message(start_request(command), end=True)
                    await read_to_end(stream, ran)
            except TimeoutError:  # grpclib's own look at the deadline
                ran.timed_out = True
            except StreamTerminatedError:
                if timeout_seconds is None or not self.resets_late_calls:
                    raise
                ran.timed_out = True
            except GRPCError as error:
                if error.status is not Status.DEADLINE_EXCEEDED:
                    raise
                ran.timed_out = True
        return ran

    def channel(self) -> Channel:
        return Channel(self._host, self._port)

    def call(self, channel: Channel, timeout_seconds: float | None = None) -> Any:
        method = UnaryStreamMethod(
            channel, f"{SERVICE}/Start", process_pb2.StartRequest, process_pb2.StartResponse
        )
        return method.open(metadata=self.metadata(self._token), timeout=timeout_seconds)

    @staticmethod
    def metadata(token: str | None) -> dict[str, str]:
        return {} if token is None else {"authorization": f"Bearer {token}"}

    def start(self, command: str) -> Running:
        return _GrpcStream(self, command)

    def upload(self, path: str, content: bytes) -> None:
        self._files.upload(path, content)

    def download(self, path: str) -> bytes | int:
        return self._files.download(path)

    def instance_of_a_refusal(self) -> str:
        return self.loop.run_until_complete(self._instance())

    async def _instance(self) -> str:
        async with self.channel() as channel:
            with contextlib.suppress(GRPCError):
                async with self.call(channel) as stream:
                    await stream.send_message(process_pb2.StartRequest(), end=True)
                    await stream.recv_initial_metadata()
            return str((stream.initial_metadata or stream.trailing_metadata)["x-execd-instance"])

    def refusal_without(self, token: str | None) -> Any:
        return self.loop.run_until_complete(self._refusal(token))

    async def _refusal(self, token: str | None) -> Any:
        async with self.channel() as channel:
            execute = UnaryUnaryMethod(
                channel,
                f"{SERVICE}/Execute",
                process_pb2.ExecuteRequest,
                process_pb2.ExecuteResponse,
            )
            try:
                await execute(process_pb2.ExecuteRequest(), metadata=self.metadata(token))
            except GRPCError as error:
                return error.status, error.message
        raise AssertionError("the call was not refused")


def start_request(command: str) -> process_pb2.StartRequest:
    return process_pb2.StartRequest(config=process_pb2.ProcessConfig(command=[*SHELL, command]))


async def read_to_end(stream: Any, ran: Ran) -> None:
    async for event in stream:
        ran.stdout += event.stdout
        if event.WhichOneof("event") == "exit":
            ran.exit_code = event.exit.exit_code


class _GrpcStream:
    def __init__(self, speaker: SandboxdGrpc, command: str) -> None:
        self._speaker = speaker
        speaker.loop.run_until_complete(self._begin(command))

    async def _begin(self, command: str) -> None:
        self._channel = self._speaker.channel()
        self._call = self._speaker.call(self._channel)
        self._stream = await self._call.__aenter__()
        await self._stream.send_message(start_request(command), end=True)
        self._process_id = (await self._stream.recv_message()).init.process_id
        await self._stream.recv_message()

    def kill(self) -> Ran:
        return self._speaker.loop.run_until_complete(self._kill())

    async def _kill(self) -> Ran:
        signal = UnaryUnaryMethod(
            self._channel,
            f"{SERVICE}/SendSignal",
            process_pb2.SendSignalRequest,
            process_pb2.SendSignalResponse,
        )
        request = process_pb2.SendSignalRequest(process_id=self._process_id, signal=9)
        metadata = self._speaker.metadata(self._speaker._token)
        await signal(request, metadata=metadata)
        ran = Ran(b"")
        await read_to_end(self._stream, ran)
        await self._call.__aexit__(None, None, None)
        self._channel.close()
        return ran

    def leave(self) -> None:
        self._speaker.loop.run_until_complete(self._leave())

    async def _leave(self) -> None:
        self._channel.close()
        with contextlib.suppress(GRPCError, StreamTerminatedError):
            await self._call.__aexit__(None, None, None)
