"""The methods of process.v1.ProcessService.

Kept from sandboxd: numbers of processes from 1 on; -1 for a program that a signal ended; the
working directory is confined to the base dir; NOT_FOUND for a missing program, FAILED_PRECONDITION
for input to a process without input.

Improved: a background child that holds the pipes costs the drain grace and not 10 s; output over
the client's 4 MiB is cut, and a line says how much is omitted; the end of a call, by a cancel or by
the deadline, ends the whole tree; each process is an execution under /v1/executions.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from grpclib.const import Cardinality, Handler

from execd.api.wire_api import Turn, trace_environment, trace_id
from execd.engine.engine_api import (
    Conflict,
    Dropped,
    ExitedEvent,
    InvalidArgument,
    NotFound,
    Origin,
    Output,
    State,
    Submission,
)
from execd_sandboxd import process_messages, process_pb2
from execd_sandboxd.process_ids import ProcessIds

if TYPE_CHECKING:
    from execd.engine.engine_api import Command, Engine, Execution, Result, Stream
    from execd_sandboxd.rpc_call import RpcCall

DIALECT = "sandboxd_grpc"
SERVICE = "process.v1.ProcessService"
EXECUTION_ID, OMITTED_BYTES = "execd-execution-id", "execd-omitted-bytes"
"""Trailing metadata: the id under /v1/executions, and how many bytes of output the stream lacks."""
CHUNK_BYTES = 32 * 1024
TIMER_SECONDS = 0.05  # how early the engine's timer may fire by the loop's clock, generously


class ProcessService:
    """The service for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = ProcessIds(self._is_known)

    def __mapping__(self) -> dict[str, Handler]:
        unary, stream = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        rows = {
            "Start": (self.start, stream),
            "Execute": (self.execute, unary),
            "WriteStdin": (self.write_stdin, unary),
            "SendSignal": (self.send_signal, unary),
            "ResizeTTY": (self.resize_tty, unary),
        }
        return {
            f"/{SERVICE}/{name}": Handler(
                method,
                cardinality,
                getattr(process_pb2, f"{name}Request"),
                getattr(process_pb2, f"{name}Response"),
            )
            for name, (method, cardinality) in rows.items()
        }

    def _is_known(self, execution_id: str) -> bool:
        try:
            self._engine.get(execution_id)
        except NotFound:
            return False
        return True

    # --- methods

    async def start(self, call: RpcCall) -> None:
        request: process_pb2.StartRequest = await call.receive()
        command = await self._command(call, request.config)
        terminal = (
            process_messages.terminal_size(request.pty.cols, request.pty.rows)
            if request.HasField("pty")
            else None
        )
        command = msgspec.structs.replace(command, stdin_open=True, terminal=terminal)
        execution = self._run(call, command)
        with execution.attach() as attachment:
            await execution.wait_started()
            _refuse_failed_start(execution)
            number = self._ids.add(execution.id)
            init = process_pb2.InitEvent(process_id=number)
            try:
                await call.send_message(process_pb2.StartResponse(init=init))
                await self._send_events(call, execution)
            except ConnectionResetError:
                attachment.excuse()  # a stalled reader is sent away, and ends nothing
                raise
            attachment.delivered()

    async def _send_events(self, call: RpcCall, execution: Execution) -> None:
        turn, omitted_bytes = Turn(), 0
        async with aclosing(execution.view.follow(0, text=False)) as events:
            async for event in events:
                match event:
                    case Output():
                        for start in range(0, len(event.data), CHUNK_BYTES):
                            chunk = event.data[start : start + CHUNK_BYTES]
                            await call.send_message(_output(event.stream, chunk))
                            await turn.count_sent(len(chunk))
                    case Dropped():
                        omitted_bytes += event.size_bytes
                        call.trailers[OMITTED_BYTES] = str(omitted_bytes)
                    case ExitedEvent():
                        await self._send_exit(call, await execution.wait())

    async def _send_exit(self, call: RpcCall, result: Result) -> None:
        _refuse_overrun(call, result)
        line = process_messages.end_line(result)
        if line:
            await call.send_message(process_pb2.StartResponse(stderr=line))
        end = process_pb2.ExitEvent(exit_code=process_messages.exit_code(result))
        await call.send_message(process_pb2.StartResponse(exit=end))

    async def execute(self, call: RpcCall) -> None:
        request: process_pb2.ExecuteRequest = await call.receive()
        execution = self._run(call, await self._command(call, request.config))
        with execution.attach() as attachment:
            await execution.wait_started()
            result = await execution.wait()
            _refuse_failed_start(execution)
            _refuse_overrun(call, result)
            limits = process_messages.output_limits(
                execution.view.total_bytes("stdout"), execution.view.total_bytes("stderr")
            )
            stdout = await execution.view.excerpt("stdout", limits[0])
            stderr = await execution.view.excerpt("stderr", limits[1])
            omitted_bytes = sum(
                excerpt.truncation.omitted_bytes
                for excerpt in (stdout, stderr)
                if excerpt.truncation is not None
            )
            if omitted_bytes:
                call.trailers[OMITTED_BYTES] = str(omitted_bytes)
            reply = process_pb2.ExecuteResponse(
                exit_code=process_messages.exit_code(result),
                stdout=process_messages.output_bytes(stdout),
                stderr=process_messages.output_bytes(stderr) + process_messages.end_line(result),
            )
            await call.send_message(reply)
            attachment.delivered()

    async def write_stdin(self, call: RpcCall) -> None:
        request: process_pb2.WriteStdinRequest = await call.receive()
        execution = self._process(request.process_id)
        if request.WhichOneof("payload") == "eof":
            await execution.end_stdin()
        else:
            await execution.write_stdin(request.input)
        await call.send_message(process_pb2.WriteStdinResponse())

    async def send_signal(self, call: RpcCall) -> None:
        request: process_pb2.SendSignalRequest = await call.receive()
        number = process_messages.signal_number(request.signal)
        execution = self._process(request.process_id)
        try:
            execution.signal(number)
        except Conflict:
            # As in sandboxd: a signal to a process that has ended is no error.
            if execution.state is not State.EXITED:
                raise
        await call.send_message(process_pb2.SendSignalResponse())

    async def resize_tty(self, call: RpcCall) -> None:
        request: process_pb2.ResizeTTYRequest = await call.receive()
        size = process_messages.terminal_size(request.cols, request.rows)
        self._process(request.process_id).resize(size.cols, size.rows)
        await call.send_message(process_pb2.ResizeTTYResponse())

    # --- parts

    def _process(self, process_id: int) -> Execution:
        return self._engine.get(self._ids.execution_id(process_id))

    async def _command(self, call: RpcCall, config: process_pb2.ProcessConfig) -> Command:
        traceparent = call.metadata.get("traceparent")
        origin = Origin(DIALECT, call.request_id, trace_id(traceparent))
        cwd = await self._place(config.cwd) if config.cwd else None
        command = process_messages.to_command(config, cwd, origin, call.seconds_left)
        env = {**trace_environment(traceparent), **command.env}
        return msgspec.structs.replace(command, env=env)

    async def _place(self, cwd: str) -> str:
        """Return the working directory relative to the base dir. Raises PermissionDenied if the
        directory is outside, NotFound, InvalidArgument."""
        found = await self._engine.sandboxd_files.describe(cwd)
        if found.kind != "directory":
            raise InvalidArgument(f"config.cwd: {cwd!r} is not a directory", field="cwd")
        return found.place

    def _run(self, call: RpcCall, command: Command) -> Execution:
        execution = self._engine.submit(Submission(command)).execution
        call.trailers[EXECUTION_ID] = execution.id
        call.has_execution = True
        return execution


def _output(stream: Stream, data: bytes) -> process_pb2.StartResponse:
    if stream == "stdout":
        return process_pb2.StartResponse(stdout=data)
    return process_pb2.StartResponse(stderr=data)


def _refuse_failed_start(execution: Execution) -> None:
    """Raise the error of a program that could not be started."""
    if execution.outcome is not None:
        error = process_messages.failed_start(execution.outcome)
        if error is not None:
            raise error


def _refuse_overrun(call: RpcCall, result: Result) -> None:
    """Raise TimeoutError if the deadline of the call ended the program, and not a limit of the
    daemon."""
    if result.timed_out and call.seconds_left is not None and call.seconds_left < TIMER_SECONDS:
        raise TimeoutError
