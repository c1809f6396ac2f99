from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.api.v1.execution_request import (
    INPUT,
    ExecutionRequest,
    InputBody,
    LimitsRequest,
    idempotency_key,
    parse,
    payload,
    to_command,
)
from execd.api.wire.fields import parse_json
from execd.errors import InvalidArgument
from execd.model import Command, Limits, Program, TerminalSize


def asked(**fields: Any) -> ExecutionRequest:
    return parse(json.dumps(fields).encode())


def converted(**fields: Any) -> Command:
    return to_command(asked(**fields), {})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"command": 1}, "command"),
        ({"argv": "ls"}, "argv"),
        ({"argv": ["ls", 1]}, "argv[1]"),
        ({"env": {"A": None}}, "env.A"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": "1"}, "timeout_seconds"),
        ({"soft_timeout_seconds": -1}, "soft_timeout_seconds"),
        ({"no_output_timeout_seconds": 1e10}, "no_output_timeout_seconds"),
        ({"limits": {"cpu_seconds": 0}}, "limits.cpu_seconds"),
        ({"limits": {"cpu_seconds": 1.5}}, "limits.cpu_seconds"),
        ({"limits": {"file_size_bytes": 2**63}}, "limits.file_size_bytes"),
        ({"limits": {"core_bytes": 1}}, "limits.core_bytes"),
        ({"pty": {"cols": -1, "rows": 1}}, "pty.cols"),
        ({"pty": {"depth": 1}}, "pty.depth"),
        ({"pty": 1}, "pty"),
        ({"stdin_base64": "!"}, "stdin_base64"),
        ({"on_disconnect": "wait"}, "on_disconnect"),
        ({"on_output_limit": "stop"}, "on_output_limit"),
        ({"user": ""}, "user"),
        ({"user": "ro:ot"}, "user"),
        ({"user": "-1"}, "user"),
        ({"user": -1}, "user"),
        ({"user": 4294967295}, "user"),
        ({"user": True}, "user"),
        ({"detach": 1}, "detach"),
        ({"comand": "ls"}, "comand"),
        ({"stdin": "a", "stdin_base64": "YQ=="}, "stdin_base64"),
        ({"stdin": "a", "stdin_open": True}, "stdin_open"),
        ({"stdin_base64": "YQ==", "stdin_open": True}, "stdin_open"),
        ({"detach": True, "soft_timeout_seconds": 1}, "soft_timeout_seconds"),
    ],
)
def test_request_that_breaks_a_rule_is_refused_by_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        asked(**{"command": "true"} | fields)
    assert caught.value.message.startswith(f"{named}: ")
    assert caught.value.details == {"field": named}


def test_a_terminal_may_have_a_first_input_and_stay_open() -> None:
    made = converted(command="sh", pty=True, stdin="ls\n", stdin_open=True)
    assert (made.terminal, made.stdin, made.stdin_open) == (TerminalSize(), b"ls\n", True)
    with pytest.raises(InvalidArgument, match=r"^stdin_base64: "):
        asked(command="sh", pty=True, stdin="a", stdin_base64="YQ==", stdin_open=True)


def test_null_is_a_field_left_out() -> None:
    nothing = dict.fromkeys(ExecutionRequest.__struct_fields__)
    assert asked(**nothing) == asked()
    assert converted(**nothing | {"argv": ["ls"]}) == converted(argv=["ls"])


def test_the_command_is_what_was_asked_for() -> None:
    made = converted(
        argv=["cat"],
        cwd="sub",
        env={"A": "b"},
        stdin_open=True,
        pty={"cols": 100, "rows": 30},
        timeout_seconds=1.5,
        no_output_timeout_seconds=2,
        limits={"memory_bytes": 1 << 20, "reply_bytes": 0},
        on_output_limit="kill",
        on_disconnect="detach",
        detach=True,
        user="1:2",
    )
    assert made == Command(
        program=Program(argv=("cat",), display="cat"),
        cwd="sub",
        env={"A": "b"},
        stdin_open=True,
        terminal=TerminalSize(cols=100, rows=30),
        timeout_seconds=1.5,
        may_exceed_timeout=True,
        no_output_timeout_seconds=2.0,
        limits=Limits(memory_bytes=1 << 20, reply_bytes=0),
        kill_on_output_limit=True,
        on_disconnect="detach",
        detached=True,
        user="1:2",
    )


def test_every_limit_of_a_request_is_one_of_the_model() -> None:
    assert set(Limits.__struct_fields__) == {*LimitsRequest.__struct_fields__, "core_bytes"}


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("/bin/bash", ["/bin/bash", "-c"]),
        (["bash", "-l", "-c"], ["bash", "-l", "-c"]),
        (None, None),
    ],
)
def test_shell_is_a_program_or_all_that_comes_before_the_command(
    shell: Any, expected: list[str] | None
) -> None:
    expected = ["/bin/sh", "-c"] if expected is None else expected
    assert converted(command="true", shell=shell).program.argv == (*expected, "true")


@pytest.mark.parametrize(
    ("fields", "stdin"),
    [({"stdin": "é"}, b"\xc3\xa9"), ({"stdin_base64": "/w=="}, b"\xff"), ({}, b"")],
)
def test_input_is_text_or_base64(fields: dict[str, Any], stdin: bytes) -> None:
    assert converted(command="cat", **fields).stdin == stdin


def test_variables_of_the_request_win_over_the_trace() -> None:
    trace = {"TRACEPARENT": "00-1"}
    assert to_command(asked(command="true"), trace).env == trace
    assert to_command(asked(command="true", env={"TRACEPARENT": "mine", "A": "b"}), trace).env == {
        "TRACEPARENT": "mine",
        "A": "b",
    }


environments = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)


@given(
    st.fixed_dictionaries(
        {"command": st.text(max_size=5)}, optional={"env": environments, "cwd": st.text(max_size=3)}
    )
)
def test_spelling_of_a_request_makes_it_no_other(fields: dict[str, Any]) -> None:
    try:
        one = asked(**fields)
    except InvalidArgument:
        return  # a lone surrogate
    spelled = json.dumps(
        {name: fields[name] for name in reversed(fields)}, indent=2, ensure_ascii=False
    ).encode()
    assert payload(parse(spelled)) == payload(one)
    assert payload(parse(payload(one))) == payload(one)
    assert payload(msgspec.structs.replace(one, command=f"{one.command}x")) != payload(one)


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ({"detach": False}, {}),
        ({"env": {}}, {}),
        ({"limits": {}}, {}),
        ({"limits": {"cpu_seconds": None}}, {}),
        ({"stdin": ""}, {}),
        ({"stdin_base64": ""}, {}),
        ({"stdin_open": False}, {}),
        ({"on_output_limit": "drop"}, {}),
        ({"shell": "/bin/sh"}, {}),
        ({"shell": ["/bin/sh", "-c"]}, {}),
        ({"shell": "bash"}, {"shell": ["bash", "-c"]}),
        ({"language": "python"}, {"shell": "python3"}),
        ({"language": None}, {}),
        ({"pty": {}}, {"pty": {"cols": 80, "rows": 24}}),
        ({"pty": True}, {"pty": {}}),
        ({"pty": False}, {}),
        ({"user": 1000}, {"user": "1000"}),
        ({"stdin": "é"}, {"stdin_base64": "w6k="}),
        ({"stdin": "", "stdin_base64": "YQ=="}, {"stdin": "a"}),
        ({"timeout_seconds": 5}, {"timeout_seconds": 5.0}),
    ],
)
def test_what_is_meant_by_default_may_be_spelled_out(
    spelled: dict[str, Any], plain: dict[str, Any]
) -> None:
    assert payload(asked(command="true", **spelled)) == payload(asked(command="true", **plain))
    assert converted(command="true", **spelled).stdin == converted(command="true", **plain).stdin


@pytest.mark.parametrize(
    "other",
    [
        {"detach": True},
        {"env": {"A": ""}},
        {"limits": {"reply_bytes": 0}},
        {"stdin": "a"},
        {"stdin_open": True},
        {"on_output_limit": "kill"},
        {"on_disconnect": "kill"},
        {"shell": "bash"},
        {"pty": {}},
    ],
)
def test_what_means_something_else_is_another_request(other: dict[str, Any]) -> None:
    assert payload(asked(command="true", **other)) != payload(asked(command="true"))


@pytest.mark.parametrize("other", [{"command": "1", "shell": "python"}, {"argv": ["true"]}])
def test_language_goes_with_a_command_alone(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^language: "):
        asked(language="python", **other)


def test_input_is_text_that_utf_8_can_write() -> None:
    assert InputBody(text="é").encoded == b"\xc3\xa9"
    with pytest.raises(InvalidArgument, match=r"^text: not encodable"):
        InputBody(text="\ud800").encoded  # noqa: B018
    with pytest.raises(InvalidArgument, match=r"^nothing: unknown field"):
        parse_json(b'{"text": "", "nothing": 1}', INPUT)


@pytest.mark.parametrize("header", ["a", " run-1 ", "x" * 255, "a b"])
def test_key_is_printable(header: str) -> None:
    assert idempotency_key(header) == header.strip()


@pytest.mark.parametrize("header", ["", " ", "x" * 256, "é", "a\tb", "\udcff"])
def test_key_of_another_kind_is_refused(header: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^Idempotency-Key: "):
        idempotency_key(header)


def test_no_key_is_no_key() -> None:
    assert idempotency_key(None) is None
