from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from execd.model import ExitReason, State
from execd_sandboxd import process_pb2
from execd_sandboxd.process_messages import CLIENT_MESSAGE_BYTES
from tests.api.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wings.sandboxd.tests.conftest import Grpc

SH = ("/bin/sh", "-c")


async def refusal(call: Awaitable[Any]) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value


async def rest(stream: Any) -> list[Any]:
    return [event async for event in stream]


def output(events: list[Any], name: str = "stdout") -> bytes:
    return b"".join(getattr(event, name) for event in events)


def last_execution(grpc: Grpc) -> Any:
    return grpc.engine.list(limit=1)[0][0]


# --- Execute


async def test_execute_replies_with_output_exit_code_environment_and_directory(grpc: Grpc) -> None:
    reply = await grpc.execute(
        *SH, "echo $X; pwd; echo no >&2; exit 7", env_vars={"X": "1"}, cwd="/"
    )
    base_dir = grpc.engine.config.base_dir
    assert reply.stdout.decode() == f"1\n{base_dir}\n"
    assert (reply.stderr, reply.exit_code) == (b"no\n", 7)


async def test_execute_is_an_execution_with_the_words_of_the_request(grpc: Grpc) -> None:
    await grpc.execute("echo", "one two")
    execution = last_execution(grpc)
    assert execution.command.program.argv == ("echo", "one two")
    assert execution.command.origin.dialect == "sandboxd_grpc"


async def test_output_over_the_client_s_limit_is_cut_and_says_so(grpc: Grpc) -> None:
    reply = await grpc.execute(*SH, "head -c 20000000 /dev/zero; echo end")
    assert reply.ByteSize() < CLIENT_MESSAGE_BYTES
    assert b" bytes omitted]\n" in reply.stdout
    assert reply.stdout.endswith(b"end\n")


@pytest.mark.parametrize(
    ("command", "config", "status"),
    [
        ((), {}, Status.INVALID_ARGUMENT),
        (("true",), {"cwd": "../.."}, Status.PERMISSION_DENIED),
        (("true",), {"cwd": "nowhere"}, Status.NOT_FOUND),
        (("no-such-program",), {}, Status.NOT_FOUND),
        (("/etc/passwd",), {}, Status.PERMISSION_DENIED),
        (("a\0b",), {}, Status.INVALID_ARGUMENT),
        (("true",), {"env_vars": {"A=B": "1"}}, Status.INVALID_ARGUMENT),
    ],
)
async def test_program_that_cannot_run_is_refused_with_the_code_of_sandboxd(
    grpc: Grpc, command: tuple[str, ...], config: dict[str, Any], status: Status
) -> None:
    assert (await refusal(grpc.execute(*command, **config))).status is status


async def test_directory_that_is_a_file_is_refused(grpc: Grpc) -> None:
    await grpc.execute("touch", "file")
    error = await refusal(grpc.execute("true", cwd="file"))
    assert (error.status, error.message) == (
        Status.INVALID_ARGUMENT,
        "config.cwd: 'file' is not a directory",
    )


async def test_deadline_ends_the_tree(grpc: Grpc, monkeypatch: pytest.MonkeyPatch) -> None:
    # An answer before the end would name the processes as survivors.
    monkeypatch.setattr("execd.engine.executions.execution.TIMEOUT_ANSWER_SECONDS", 20.0)
    request = process_pb2.ExecuteRequest(
        config=process_pb2.ProcessConfig(command=[*SH, "sleep 1000 & exec sleep 1000"])
    )
    with pytest.raises((GRPCError, asyncio.TimeoutError)):
        await grpc.call("Execute", request, timeout=0.5)
    execution = last_execution(grpc)
    await wait_until(lambda: execution.state is State.EXITED, "the end of the program")
    assert execution.outcome.exit_reason in (ExitReason.TIMEOUT, ExitReason.CLIENT_DISCONNECTED)
    assert execution.outcome.survivors == ()


# --- Start


async def test_start_tells_the_number_the_output_and_the_exit_code_in_this_order(
    grpc: Grpc,
) -> None:
    async with grpc.start(*SH, "echo out; echo err >&2; exit 3") as stream:
        first, *events, last = await rest(stream)
    assert first.init.process_id > 0
    assert (output(events), output(events, "stderr")) == (b"out\n", b"err\n")
    assert last.WhichOneof("event") == "exit"
    assert last.exit.exit_code == 3


async def test_program_reads_what_is_written_to_its_number_until_the_end(grpc: Grpc) -> None:
    async with grpc.start("cat") as stream:
        number = (await stream.recv_message()).init.process_id
        await grpc.call(
            "WriteStdin", process_pb2.WriteStdinRequest(process_id=number, input=b"one\n")
        )
        assert (await stream.recv_message()).stdout == b"one\n"
        await grpc.call("WriteStdin", process_pb2.WriteStdinRequest(process_id=number, eof={}))
        assert [event.exit.exit_code for event in await rest(stream)] == [0]


async def test_signal_ends_the_program_and_means_nothing_afterwards(grpc: Grpc) -> None:
    async with grpc.start("sleep", "1000") as stream:
        number = (await stream.recv_message()).init.process_id
        request = process_pb2.SendSignalRequest(
            process_id=number, signal=process_pb2.SIGNAL_SIGTERM
        )
        await grpc.call("SendSignal", request)
        assert [event.exit.exit_code for event in await rest(stream)] == [-1]
    await grpc.call("SendSignal", request)


async def test_terminal_has_the_size_of_the_request_and_of_a_resize(grpc: Grpc) -> None:
    pty = process_pb2.PTY(cols=100, rows=30)
    async with grpc.start(*SH, "stty size; read line; stty size", pty=pty) as stream:
        number = (await stream.recv_message()).init.process_id
        assert b"30 100" in (await stream.recv_message()).stdout
        size = process_pb2.ResizeTTYRequest(process_id=number, cols=50, rows=20)
        await grpc.call("ResizeTTY", size)
        await grpc.call("WriteStdin", process_pb2.WriteStdinRequest(process_id=number, input=b"\n"))
        assert b"20 50" in output(await rest(stream))


@pytest.mark.parametrize(
    ("method", "fields", "status"),
    [
        ("WriteStdin", {"process_id": 9999, "input": b"x"}, Status.NOT_FOUND),
        ("SendSignal", {"process_id": 9999, "signal": 9}, Status.NOT_FOUND),
        ("SendSignal", {"process_id": 9999}, Status.INVALID_ARGUMENT),
        ("ResizeTTY", {"process_id": 9999, "cols": 1, "rows": 1}, Status.NOT_FOUND),
    ],
)
async def test_unknown_number_is_refused(
    grpc: Grpc, method: str, fields: dict[str, Any], status: Status
) -> None:
    request = getattr(process_pb2, f"{method}Request")(**fields)
    assert (await refusal(grpc.call(method, request))).status is status


async def test_program_without_a_terminal_has_no_size(grpc: Grpc) -> None:
    async with grpc.start("cat") as stream:
        number = (await stream.recv_message()).init.process_id
        request = process_pb2.ResizeTTYRequest(process_id=number, cols=1, rows=1)
        error = await refusal(grpc.call("ResizeTTY", request))
        assert error.status is Status.FAILED_PRECONDITION
        await grpc.call("WriteStdin", process_pb2.WriteStdinRequest(process_id=number, eof={}))
        await rest(stream)


async def test_cancel_ends_the_tree(grpc: Grpc) -> None:
    async with grpc.start(*SH, "sleep 1000 & exec sleep 1000") as stream:
        await stream.recv_message()
        await stream.cancel()
    execution = last_execution(grpc)
    await wait_until(lambda: execution.state is State.EXITED, "the end of the program")
    assert execution.outcome.exit_reason is ExitReason.CLIENT_DISCONNECTED
    assert execution.outcome.survivors == ()


async def test_lost_connection_ends_the_tree(grpc: Grpc) -> None:
    async with grpc.start("sleep", "1000") as stream:
        await stream.recv_message()
        grpc.channel.close()
        execution = last_execution(grpc)
        await wait_until(lambda: execution.state is State.EXITED, "the end of the program")
        with pytest.raises(Exception, match=r"(?i)connection"):
            await rest(stream)
    assert execution.outcome.exit_reason is ExitReason.CLIENT_DISCONNECTED


async def test_daemon_s_own_limit_is_a_line_on_stderr(
    serve_grpc: Callable[..., Awaitable[Grpc]],
) -> None:
    grpc = await serve_grpc(timeout=0.5)
    reply = await grpc.execute("sleep", "1000")
    assert reply.exit_code == -1
    assert reply.stderr.startswith(b"[execd: timeout")


async def test_bytes_that_the_log_lost_are_counted_in_the_trailers(
    serve_grpc: Callable[..., Awaitable[Grpc]],
) -> None:
    grpc = await serve_grpc(log_bytes=0, stream_memory_bytes=4096)
    reply = await grpc.execute(*SH, "head -c 1000000 /dev/zero")
    assert b" bytes omitted]" in reply.stdout
    assert len(reply.stdout) < 10_000
