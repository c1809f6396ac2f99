"""All dialects behave as the one engine: the same questions to each dialect.

What differs by a dialect's contract is a field of the dialect's client in ``speakers``.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest
from grpclib.const import Status

from ..conformance.target import wait_until
from ..patience import patience

if TYPE_CHECKING:
    from ..conformance.target import Target
    from .speakers import V1, Speaker

LARGE_BYTES = 20_000_000
ANSWER_SECONDS = 10.0


def mark() -> str:
    """A comment in a command, by which the test finds the command's execution."""
    return f" # {secrets.token_hex(8)}"


def executions_of(observer: V1, marked: str) -> list[dict[str, Any]]:
    items = observer.http.get("/v1/executions", params={"limit": 50}).json()["items"]
    return [
        item
        for item in items
        if marked in (item.get("command") or " ".join(item.get("argv") or ()))
    ]


def wait_for_end(observer: V1, marked: str) -> dict[str, Any]:
    """Wait until the only execution of the command has ended, and return the record."""
    wait_until(
        lambda: [item["state"] for item in executions_of(observer, marked)] == ["EXITED"],
        ANSWER_SECONDS,
        "the command has ended",
    )
    return executions_of(observer, marked)[0]


def living(first: str, rest: int) -> str:
    """A command that lists the processes with an argument of a digit in ``first`` and ``rest``.
    ``first`` has brackets, so that grep does not find itself."""
    return f"grep -lxz '{first}{rest}' /proc/[0-9]*/cmdline"


def test_output_arrives_and_success_is_zero(speaker: Speaker) -> None:
    ran = speaker.run("echo hello; echo naïve-日本")
    assert (ran.stdout.decode(), ran.exit_code) == ("hello\nnaïve-日本\n", 0)
    assert not ran.timed_out
    assert not ran.is_cut


@pytest.mark.parametrize("exit_code", [1, 7, 255])
def test_exit_code_is_the_program_s_own(speaker: Speaker, exit_code: int) -> None:
    assert speaker.run(f"exit {exit_code}").exit_code == exit_code


def test_program_that_does_not_exist_is_127_of_its_shell(speaker: Speaker) -> None:
    assert speaker.run("no-such-program-here 2>/dev/null").exit_code == 127


@pytest.mark.parametrize("name", ["-x", "+x", "-c"])
def test_line_that_begins_as_an_option_is_a_command(speaker: Speaker, name: str) -> None:
    ran = speaker.run(f"{name} one; echo $?")
    assert (ran.stdout, ran.exit_code) == (b"127\n", 0)


def test_killed_program_has_the_exit_code_of_a_signal_in_the_dialect(speaker: Speaker) -> None:
    assert speaker.run("kill -9 $$").exit_code == speaker.signal_exit_code


def test_command_is_an_execution_for_every_dialect_to_see(speaker: Speaker, observer: V1) -> None:
    marked = mark()
    speaker.run("exit 3" + marked)
    (execution,) = executions_of(observer, marked)
    assert (execution["state"], execution["exit_code"]) == ("EXITED", 3)


def test_timeout_keeps_the_output_and_ends_the_tree(speaker: Speaker, observer: V1) -> None:
    marked = mark()
    rest = 100_000 + secrets.randbelow(800_000)
    began = time.monotonic()
    ran = speaker.run(f"echo partial; sleep 1{rest} & sleep 2{rest}" + marked, timeout_seconds=3.0)
    assert ran.timed_out
    assert ran.stdout == b"partial\n"
    assert time.monotonic() - began < patience(ANSWER_SECONDS)
    execution = wait_for_end(observer, marked)
    assert execution["exit_reason"] in ("timeout", "client_disconnected")
    # The answer does not wait for more than 0.2 s after KILL, so `survivors` may name a process
    # that a starved machine has not ended yet.
    wait_until(
        lambda: observer.run(f"{living('[12]', rest)} | wc -l").stdout == b"0\n",
        ANSWER_SECONDS,
        "the tree has ended",
    )


def test_bytes_that_are_no_text_are_kept_or_replaced(speaker: Speaker) -> None:
    ran = speaker.run(r"printf 'a\377\200b\n'")
    assert ran.stdout == ("a\ufffd\ufffdb\n".encode() if speaker.is_text else b"a\xff\x80b\n")


def test_child_in_the_background_does_not_delay_the_end(speaker: Speaker, observer: V1) -> None:
    rest = 100_000 + secrets.randbelow(800_000)
    found = living("[1]", rest)
    began = time.monotonic()
    ran = speaker.run(f"sleep 1{rest} & echo up")
    assert (ran.stdout, ran.exit_code) == (b"up\n", 0)
    assert time.monotonic() - began < patience(ANSWER_SECONDS)
    # A child before its exec has the shell's name.
    wait_until(
        lambda: observer.run(f"{found} | wc -l").stdout == b"1\n",
        ANSWER_SECONDS,
        "the child lives on",
    )
    observer.run(f"kill $({found} | cut -d/ -f3)")


def test_child_in_the_background_prints_on_after_the_end(speaker: Speaker, observer: V1) -> None:
    folder = f"/tmp/{secrets.token_hex(8)}"
    marked = mark()
    child = (
        f"{{ read line < {folder}/gate; echo later; echo oops >&2; echo $? > {folder}/exit_code; }}"
    )
    assert observer.run(f"mkdir {folder}; mkfifo {folder}/gate").exit_code == 0
    ran = speaker.run(f"{child} & echo up{marked}")
    assert (ran.stdout, ran.exit_code) == (b"up\n", 0)
    (execution,) = executions_of(observer, marked)
    observer.run(f"echo go > {folder}/gate")
    url = f"/v1/executions/{execution['id']}"
    for stream, text in ("stdout", b"up\nlater\n"), ("stderr", b"oops\n"):
        wait_until(
            lambda stream=stream, text=text: observer.http.get(f"{url}/{stream}").content == text,
            ANSWER_SECONDS,
            "the log has the output",
        )
    exit_code = f"until grep . {folder}/exit_code; do sleep 0.1; done; rm -r {folder}"
    assert observer.run(exit_code).stdout == b"0\n"
    reply = observer.http.get(url).json()
    assert (reply["stdout"], reply["stderr"]) == ("up\n", "")


def test_kill_ends_the_tree(speaker: Speaker, observer: V1) -> None:
    marked = mark()
    running = speaker.start("echo up; sleep 1003" + marked)
    wait_until(lambda: executions_of(observer, marked), ANSWER_SECONDS, "the command runs")
    running.kill()
    execution = wait_for_end(observer, marked)
    assert execution["exit_code"] != 0
    assert execution["survivors"] == []


def test_command_of_a_client_that_leaves_ends_or_goes_on_by_the_contract(
    speaker: Speaker, observer: V1
) -> None:
    marked = mark()
    running = speaker.start("echo up; sleep 4; echo late" + marked)
    wait_until(
        lambda: [item["state"] for item in executions_of(observer, marked)] == ["RUNNING"],
        ANSWER_SECONDS,
        "the command runs",
    )
    running.leave()
    execution = wait_for_end(observer, marked)
    expected = "exited" if speaker.survives_leaving else "client_disconnected"
    assert execution["exit_reason"] == expected


def test_large_output_is_whole_or_the_reply_says_what_is_missing(speaker: Speaker) -> None:
    ran = speaker.run(f"head -c {LARGE_BYTES} /dev/zero | tr '\\0' x; echo; echo end")
    assert ran.exit_code == 0
    assert ran.stdout.endswith(b"end\n")
    if ran.is_cut:
        assert len(ran.stdout) < LARGE_BYTES
        assert not speaker.is_text or b"bytes omitted]" in ran.stdout
    else:
        assert ran.stdout == b"x" * LARGE_BYTES + b"\nend\n"


def test_file_arrives_and_comes_back_byte_for_byte(speaker: Speaker, observer: V1) -> None:
    content = random.Random(1).randbytes(1 << 20) * 8
    base_dir = observer.run("pwd").stdout.decode().strip()
    path = f"{base_dir}/dialects/{speaker.name}/näme with 100%.bin"
    speaker.upload(path, content)
    assert speaker.download(path) == content
    counted = observer.run(f"cat dialects/{speaker.name}/* | wc -c")
    assert counted.stdout == f"{len(content)}\n".encode()
    observer.run("rm -r dialects")


def test_path_above_the_base_dir_is_refused_or_the_caller_s_by_the_contract(
    speaker: Speaker, observer: V1
) -> None:
    found = speaker.download("../../../../../../etc/passwd")
    if speaker.sees_whole_tree:
        assert found == observer.run("cat /etc/passwd").stdout, "as commands see the file"
    else:
        assert found == 403


def test_each_reply_names_the_life_of_the_daemon(speaker: Speaker, observer: V1) -> None:
    capabilities = observer.http.get("/v1/capabilities").json()
    assert speaker.instance_of_a_refusal() == capabilities["instance"]["id"]


def test_proc_is_no_file_of_any_dialect(speaker: Speaker) -> None:
    assert speaker.download("/proc/self/environ") in (400, 403, 404)


def test_state_of_the_daemon_is_no_file_of_any_dialect(speaker: Speaker, target: Target) -> None:
    assert target.state_dir is not None
    assert speaker.download(f"{target.state_dir}/journal") in (400, 403, 404)


@pytest.mark.parametrize("token", [None, "wrong"])
def test_command_without_the_token_is_refused_in_the_dialect_s_shape(
    speaker: Speaker, token: str | None
) -> None:
    word = "an access token is required" if token is None else "a valid access token is required"
    shapes: dict[str, Any] = {
        "python_runtime": (401, {"message": word}),
        "v1": (401, {"code": "UNAUTHENTICATED", "message": word}),
        "sandboxd_grpc": (Status.UNAUTHENTICATED, word),
        "opensandbox": (
            401,
            {
                "error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN",
                "code": "UNAUTHENTICATED",
                "message": word,
            },
        ),
        "e2b": (401, {"code": "unauthenticated", "message": word}),
    }
    assert speaker.refusal_without(token) == shapes[speaker.name]
