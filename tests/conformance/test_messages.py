"""Messages name the field, the rule and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .target import READ_SECONDS, wait_until

if TYPE_CHECKING:
    import httpx

    from .conftest import Run


@pytest.mark.parametrize(
    ("path", "body", "nearest", "known"),
    [
        ("/v1/executions", {"cmd": "ls"}, "command", "argv, clear_env, command, cwd"),
        (
            "/v1/executions",
            {"command": "ls", "timeout": 1},
            "timeout_seconds",
            "argv, clear_env, command",
        ),
        (
            "/v1/executions",
            {"command": "ls", "limits": {"memory": 1}},
            "memory_bytes",
            "address_space_bytes, cpu_seconds",
        ),
        ("/v1/code", {"source": "1"}, None, "code"),
        ("/v1/sessions", {"working_dir": "/"}, None, "cwd"),
        ("/v1/fs/mkdir", {"paht": "x"}, "path", "mode, parents, path"),
    ],
)
def test_unknown_field_is_answered_with_the_nearest_and_the_known_fields(
    client: httpx.Client, path: str, body: dict[str, object], nearest: str | None, known: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    message = answer.json()["message"]
    assert "unknown field" in message
    assert known in message.partition("known are: ")[2]
    assert nearest is None or f"did you mean {nearest}?" in message


def test_unknown_query_parameter_is_answered_with_the_known_ones(client: httpx.Client) -> None:
    answer = client.get("/v1/executions", params={"limt": "3"})
    assert answer.status_code == 400
    assert "did you mean limit? known are: cursor, limit, state" in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body: empty"),
        (b'{"command": "\\ud800"}', "lone surrogate"),
        (b'{"command": "\xff"}', "not UTF-8"),
        (b'{"command": "ls"', "ends too early"),
    ],
)
def test_body_that_is_no_json_is_refused_with_the_reason(
    client: httpx.Client, body: bytes, reason: str
) -> None:
    answer = client.post("/v1/executions", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert reason in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"command": "ls", "env": {"GOOD": "", "BAD": 1}}', "env.BAD: expected `str`"),
        (b'{"command": "ls", "env": {"BAD": "\\u0000"}}', "env.BAD: has a NUL byte"),
        (b'{"command": "ls", "env": {"B\\u0000D": ""}}', "env: the name 'B\\x00D': has a NUL"),
        (b'{"command": "ls", "env": {"A=B": ""}}', "env: 'A=B' is no name of a variable"),
    ],
)
def test_variable_that_no_program_can_have_is_refused_by_its_name(
    client: httpx.Client, body: bytes, reason: str
) -> None:
    answer = client.post("/v1/executions", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert answer.json()["message"].startswith(reason)


def test_program_that_cannot_be_started_has_its_cause_named(
    client: httpx.Client, run: Run, folder: str
) -> None:
    run.out(
        f"cd {folder} && printf '#!/no/such/interpreter\\n' > script && chmod 755 script && "
        "printf x > data"
    )
    for fields, cause in (
        ({"argv": ["no-such-program"]}, "in any directory of PATH"),
        ({"argv": ["/no/such/program"]}, "program: '/no/such/program': No such file"),
        ({"argv": [f"{folder}/script"]}, "its interpreter '/no/such/interpreter'"),
        ({"argv": [f"{folder}/data"]}, "executable (chmod +x)"),
        ({"command": "true", "cwd": "/no/such/directory"}, "cwd: '/no/such/directory': No such"),
    ):
        done = client.post("/v1/executions", json=fields).json()
        assert done["exit_reason"] == "spawn_failed"
        assert cause in done["message"]


def test_session_in_a_missing_directory_is_refused_with_the_words_of_an_execution(
    client: httpx.Client,
) -> None:
    answer = client.post("/v1/sessions", json={"cwd": "/no/such/directory"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
    done = client.post(
        "/v1/executions", json={"command": "true", "cwd": "/no/such/directory"}
    ).json()
    assert answer.json()["message"] == done["message"]


def test_input_after_the_end_of_input_is_refused_by_name(client: httpx.Client) -> None:
    body = {"command": "cat; sleep 60", "stdin_open": True, "detach": True}
    path = f"/v1/executions/{client.post('/v1/executions', json=body).json()['id']}"
    assert client.post(f"{path}/stdin?eof=true", content=b"x").status_code == 200
    late = client.post(f"{path}/stdin", content=b"y")
    assert late.status_code == 409
    assert late.json()["message"].startswith("stdin: closed; its end was sent")
    assert client.post(f"{path}/kill", json={"grace_seconds": 0}).status_code == 200
    wait_until(
        lambda: client.get(path).json()["state"] == "EXITED", READ_SECONDS, "the execution ended"
    )
    ended = client.post(f"{path}/stdin", content=b"z")
    assert ended.status_code == 409
    assert ended.json()["message"].startswith("the program has ended")
