"""Direct execution beside the shells themselves: command lines run both ways, and all that a caller
or a program can see is compared."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.engine.executions.direct_exec import LOCALE, is_plain_environment
from execd.engine.executions.plain_words import BUILTINS, KEYWORDS, OBSERVERS, plain_words
from tests.engine.executions.shells import (
    PROGRAMS,
    STOPS,
    Ran,
    Shell,
    as_by_a_parent,
    find_shells,
    link_tools,
    make_programs,
    make_project,
    remove,
)
from tests.gvisor import is_gvisor
from tests.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

AGENT_LINES = (Path(__file__).parent / "agent_lines.txt").read_text().splitlines()
"""Command lines as coding agents send them."""

PLAIN_AGENT_LINES = [line for line in AGENT_LINES if plain_words(line) is not None]
FIXED_TIME = 1_700_000_000
DURATION = re.compile(rb"in [0-9.]+s|[0-9.e-]+ s, [0-9.]+ [kMG]?B/s")

PLAIN = "abcXYZ019_-./,:@%+="
IN_SINGLE = "".join(chr(code) for code in range(32, 127) if chr(code) != "'") + "\t"
IN_DOUBLE = "".join(character for character in IN_SINGLE if character not in '$`\\!"') + "'"

plain_text = st.text(PLAIN, min_size=1, max_size=6)
pieces = st.one_of(
    plain_text,
    st.text(IN_SINGLE, max_size=8).map(lambda text: f"'{text}'"),
    st.text(IN_DOUBLE, max_size=8).map(lambda text: f'"{text}"'),
)
words = st.lists(pieces, min_size=1, max_size=3).map("".join)
blanks = st.text(" \t", min_size=1, max_size=3)
programs = st.one_of(
    st.just("show"),
    st.sampled_from(PROGRAMS),
    st.sampled_from(PROGRAMS).map(lambda name: f"./{name}"),
    st.sampled_from(sorted(BUILTINS | KEYWORDS | OBSERVERS)),
    plain_text,
)
ends = st.tuples(
    st.just("show"),
    st.sampled_from(("exit", "die")),
    st.integers(0, 64).filter(lambda number: number not in STOPS).map(str),
)


@st.composite
def plain_lines(draw: st.DrawFn) -> str:
    """Mostly lines of the class, and some from outside."""
    line = draw(st.one_of(programs, programs, programs, words))
    for word in draw(st.lists(words, max_size=4)):
        line += draw(blanks) + word
    if draw(st.integers(0, 9)) == 0:
        line = " ".join(draw(ends))
    before, after = draw(st.sampled_from(("", "", " ", "\t"))), draw(st.sampled_from(("", " ")))
    return before + line + after + draw(st.sampled_from(("", "", "\n")))


@pytest.fixture(scope="module")
def programs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    make_programs(folder)
    link_tools(folder)
    return folder


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> list[Shell]:
    found = find_shells(tmp_path_factory.mktemp("shells"), ("dash", "bash"))
    assert found, "a machine with neither dash nor bash executes nothing directly"
    return found


def environment(path: str | Path, /, **more: str) -> dict[str, str]:
    return {
        "EXECD_EXECUTION_ID": "0123456789abcdef",
        "HOME": "/",
        "LANG": "C.UTF-8",
        "USER": "user",
        **more,
        "PATH": f"/nonexistent:/dev/null:{path}",
        "TMPDIR": "/tmp",
    }


def assert_equal(shell: Shell, line: str, by_shell: Ran, direct: Ran) -> None:
    what = (shell.name, line)
    if shell.forks:
        assert as_by_a_parent(direct) == as_by_a_parent(by_shell), what
    else:
        assert direct._replace(was_direct=False) == by_shell, what


def run_both_ways(shell: Shell, line: str, env: Mapping[str, str], cwd: Path) -> Ran:
    """Run the line both ways, and compare. Returns the direct run."""
    direct = shell.run_directly(line, env, cwd)
    assert_equal(shell, line, shell.run(line, env, cwd), direct)
    return direct


@examples(0.4 if is_gvisor() else 2)
@given(line=plain_lines())
def test_a_plain_line_is_the_same_with_and_without_a_shell(
    shells: list[Shell], programs_folder: Path, line: str
) -> None:
    if plain_words(line) is not None:
        for shell in shells:
            run_both_ways(shell, line, environment(programs_folder), programs_folder)


def test_the_lines_compared_are_executed_directly(
    shells: list[Shell], programs_folder: Path
) -> None:
    """Else two runs of the shell would be compared."""
    env = environment(programs_folder)
    for shell in shells:
        for line in ("show", "./show a 'b  c' \"d\"e", f"{programs_folder}/link", "script a"):
            assert run_both_ways(shell, line, env, programs_folder).was_direct, line
        for name in set(PROGRAMS) - {"show", "script", "link"}:
            assert not run_both_ways(shell, name, env, programs_folder).was_direct, name
            assert not run_both_ways(shell, f"./{name} x", env, programs_folder).was_direct, name


@pytest.mark.parametrize("number", sorted({*range(1, 65)} - STOPS))
def test_an_end_by_any_signal_is_reported_as_by_the_shell(
    shells: list[Shell], programs_folder: Path, number: int
) -> None:
    env = environment(programs_folder)
    for shell in shells:
        assert run_both_ways(shell, f"show die {number}", env, programs_folder).was_direct


def test_a_first_path_in_path_with_something_else_is_left_to_the_shell(
    shells: list[Shell], programs_folder: Path, tmp_path: Path
) -> None:
    env = environment(f"{tmp_path}:{programs_folder}")
    for make in (
        lambda path: path.mkdir(),
        lambda path: path.write_text("echo text"),
        lambda path: (path.write_text("#!/nonexistent\n"), path.chmod(0o755)),
        lambda path: path.symlink_to("show"),
    ):
        make(tmp_path / "show")
        for shell in shells:
            assert not run_both_ways(shell, "show", env, programs_folder).was_direct
        remove(tmp_path / "show")


odd_names = st.one_of(
    st.text(st.characters(exclude_characters="=\0", exclude_categories=("Cs",)), min_size=1),
    st.text("AZaz_09", min_size=1, max_size=4),
).filter(lambda name: not LOCALE.fullmatch(name))  # their values change what bash prints
variables = st.dictionaries(
    odd_names,
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8),
    max_size=12,
)


@given(variables=variables, others=st.randoms())
def test_any_environment_is_the_same_with_and_without_a_shell(
    shells: list[Shell], programs_folder: Path, variables: dict[str, str], others: Random
) -> None:
    """The layout is learned from other values of the same names."""
    env = environment(programs_folder, **variables)
    if not is_plain_environment(tuple(env)):
        return
    for shell in shells:
        shell.learn(
            {name: f"{others.random()}" if name in variables else env[name] for name in env}
        )
        run_both_ways(shell, "show", env, programs_folder)


@pytest.mark.parametrize("name", ["a b", "new\nline", "-dash", "é", "x" * 255])
def test_a_directory_of_any_name_is_the_same_with_and_without_a_shell(
    shells: list[Shell], programs_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    for shell in shells:
        for cwd in (folder, tmp_path / "link"):
            assert run_both_ways(shell, "show", environment(programs_folder), cwd).was_direct


def test_a_directory_deeper_than_the_longest_path_is_left_to_the_shell(
    shells: list[Shell], programs_folder: Path, tmp_path: Path
) -> None:
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
        env = environment(programs_folder)
        for shell in shells:
            shell.layout(env)
            assert not shell.run_directly("show", env, Path()).was_direct
    finally:
        os.chdir(before)
        shutil.rmtree(tmp_path / ("d" * 250))


# What agents send.


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, programs_folder: Path) -> Path:
    """A small project, as a template."""
    folder = tmp_path_factory.mktemp("project")
    make_project(folder, agent_environment(programs_folder))
    return folder


def agent_environment(programs_folder: Path) -> dict[str, str]:
    return environment(
        programs_folder,
        **{
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "A"), ("EMAIL", "a@b"), ("DATE", f"{FIXED_TIME} +0000"))
        },
        GIT_ALLOW_PROTOCOL="none",
        GIT_EDITOR="true",
        GIT_CONFIG_GLOBAL="/dev/null",
        PYTHONDONTWRITEBYTECODE="1",
    )


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """All files outside of .git: the index of git has times and inodes."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file() and path.suffix not in (".tgz", ".tar", ".gz")
            else "",
        )
        for path in sorted(folder.rglob("*"))
        if ".git" not in path.parts
    }


@examples(0.2 if is_gvisor() else 1)
@given(line=st.sampled_from(PLAIN_AGENT_LINES))
def test_a_line_of_an_agent_does_the_same_with_and_without_a_shell(
    shells: list[Shell], programs_folder: Path, project: Path, tmp_path_factory: Any, line: str
) -> None:
    env = agent_environment(programs_folder)
    folder = tmp_path_factory.getbasetemp() / "agent"
    for shell in shells:
        found = []
        for run in (shell.run, shell.run_directly):
            shutil.copytree(project, folder, symlinks=True)
            os.utime(folder.parent, (FIXED_TIME, FIXED_TIME))
            ran = run(line, env, folder)
            found.append(
                (
                    ran._replace(
                        stdout=DURATION.sub(b"", ran.stdout), stderr=DURATION.sub(b"", ran.stderr)
                    ),
                    snapshot(folder),
                )
            )
            remove(folder)
        (by_shell, files), (direct, files_of_direct) = found
        assert_equal(shell, line, by_shell, direct)
        assert files == files_of_direct, (shell.name, line)


def test_most_lines_of_agents_are_plain_words() -> None:
    assert len(AGENT_LINES) > 500
    assert len(PLAIN_AGENT_LINES) / len(AGENT_LINES) > 0.7
