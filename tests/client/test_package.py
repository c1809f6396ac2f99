"""The package as users get it: its size, its imports, its types, and its generated files."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

import execd_client
from execd.api.v1.execution_request import LimitsRequest
from execd_client import options
from tests.conformance.target import REPOSITORY
from tests.sdk.conftest import ENVIRONMENTS

if TYPE_CHECKING:
    from pathlib import Path

CLIENT = REPOSITORY / "clients" / "python"
PACKAGE = CLIENT / "execd_client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())


USERS_PROGRAM = """
import asyncio

from execd_client import AsyncExecd, Bundle, Event, Execd, NotFound, Result


def saved(bundle: Bundle) -> bytes | None:
    return bundle.image


def shown(event: Event) -> None:
    print(event.kind, event.data.decode())


with Execd("http://127.0.0.1:8888", token="secret", headers={"X-Team": "red"}) as sandbox:
    result: Result = sandbox.run(["ls"], cwd="/tmp", memory_bytes=1 << 30, on_event=shown)
    print(result.exit_code, result.stdout.upper())
    for event in sandbox.stream("make"):
        shown(event)
    with sandbox.sessions.create() as session:
        cell = session.run("1 + 1")
        print(cell.text, [saved(bundle) for bundle in cell.displays])
        print([branch.id for branch in session.fork(3)])
    try:
        print([entry.name for entry in sandbox.files.list()])
    except NotFound as error:
        print(error.message)


async def main() -> None:
    async with AsyncExecd() as sandbox:
        print((await sandbox.run("ls")).check().stdout)
        async for event in sandbox.stream("make"):
            shown(event)


asyncio.run(main())
"""
WRONG_LINES = [
    'sandbox.run("ls", cwd=7)',
    'sandbox.run("ls", nonsense=True)',
    'sandbox.run("ls").no_such_field',
    'sandbox.sessions.create("x").run(b"code")',
]


def mypy(program: Path) -> subprocess.CompletedProcess[str]:
    # Of the packages that the client needs only the first run ever is slow.
    cache = f"--cache-dir={ENVIRONMENTS / 'mypy'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", cache, program]
    environment = {"MYPYPATH": str(CLIENT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=program.parent, env=environment
    )


@pytest.mark.third_party
def test_a_users_program_is_clean_under_mypy_strict_and_mistakes_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(USERS_PROGRAM)
    found = mypy(program)
    assert found.returncode == 0, found.stdout
    wrong = "\n".join(f"    {line}" for line in WRONG_LINES)
    program.write_text(f"import execd_client\nwith execd_client.Execd() as sandbox:\n{wrong}\n")
    found = mypy(program)
    assert f"Found {len(WRONG_LINES)} errors" in found.stdout


@pytest.mark.third_party
@pytest.mark.parametrize("generator", ["models.py", "blocking.py"])
def test_a_generated_file_is_up_to_date(generator: str) -> None:
    found = subprocess.run([sys.executable, CLIENT / "generator" / generator, "--check"])
    assert found.returncode == 0, "run `make client`, and commit the changed files"


def test_importing_the_client_loads_fewer_than_100_modules_beyond_httpx() -> None:
    program = (
        "import sys, httpx; before = set(sys.modules); import execd_client\n"
        "more = set(sys.modules) - before\n"
        "print(len(more))\n"
        "print([name for name in more if name.partition('.')[0] in "
        "{'websockets', 'IPython', 'click', 'rich', 'asyncio', 'execd'}])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    number, unwanted = shown.stdout.decode().splitlines()
    assert int(number) < 100
    assert unwanted == "[]"


def test_the_wheel_is_small_and_has_every_module(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    copy = tmp_path / "source"
    copy.mkdir()
    names = ["pyproject.toml", "README.md", "execd_client"]
    subprocess.run(["cp", "-r", *(CLIENT / name for name in names), copy], check=True)
    subprocess.run([*build, "--wheel-dir", tmp_path, copy], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 120_000
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    sources = {path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".typed")}
    assert packed == {str(path.relative_to(CLIENT)) for path in sources}


def test_the_extra_of_the_command_line_is_not_needed_by_the_library() -> None:
    needed = {name.partition(">")[0] for name in PROJECT["project"]["dependencies"]}
    assert needed == {"httpx", "httpx-sse", "websockets", "msgspec"}


def test_every_method_for_users_has_an_example() -> None:
    names = ("blocking.py", "terminal_blocking.py")
    lacking = [
        f"{owner.name}.{method.name}"
        for name in names
        for owner in ast.parse((PACKAGE / name).read_text()).body
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and not method.name.startswith("_")
        and method.name not in ("close", "open")
        and not method.decorator_list
        and "Example:" not in (ast.get_docstring(method) or "")
    ]
    assert lacking == []


def test_both_clients_have_the_same_methods_and_docstrings() -> None:
    for blocking in ("Execd", "Handle", "Sessions", "Session", "Files", "Terminal"):
        a, b = getattr(execd_client, blocking), getattr(execd_client, f"Async{blocking}")
        assert a.__doc__ == b.__doc__ is not None
        for name in {name for name in vars(a) if name[0] != "_"}:
            assert getattr(a, name).__doc__ == getattr(b, name).__doc__
        assert {n for n in vars(a) if n[0] != "_"} == {n for n in vars(b) if n[0] != "_"}


def test_the_client_has_the_limits_of_requests() -> None:
    limits = set(LimitsRequest.__struct_fields__)
    assert set(options.LIMITS) == set(options.Limits.__annotations__) == limits
