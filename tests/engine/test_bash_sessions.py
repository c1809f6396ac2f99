"""The state of bash sessions, with a real bash."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING

import pytest

from execd.engine.bash_sessions import make_folder
from execd.engine.executions.command import shell_program
from execd.engine.executions.submission import Submission
from execd.errors import InvalidArgument, NotFound, ResourceExhausted
from execd.model import Command, ExitReason, State
from tests.engine.conftest import finish, running

if TYPE_CHECKING:
    from pathlib import Path

    from execd.engine.bash_sessions import BashSession
    from execd.engine.engine import Engine
    from tests.engine.conftest import Outcome

NOTHING = shell_program("true")


async def run(engine: Engine, session: BashSession, text: str, **fields: object) -> Outcome:
    command = Command(program=NOTHING, **fields)  # type: ignore[arg-type]  # fields of a command
    execution = engine.bash_sessions.run(session, text, command)
    outcome = await finish(execution)
    await session.is_idle.wait()
    return outcome


STATES = [
    ("export A='x  y'", "sh -c 'echo \"$A\"'", "x  y"),
    ("A=$'a\\nb\\'c'", 'echo "$A"', "a\nb'c"),
    ("declare -a L=(1 '2 3'); declare -A M=([k]='v w')", 'echo "${L[1]} ${M[k]}"', "2 3 v w"),
    ("declare -i N=1; N+=2", "N+=4; echo $N", "7"),
    ('f() { echo "f $1"; }; g() (echo g)', "f x; g", "f x\ng"),
    ("h() { echo h; }; export -f h", "bash -c h", "h"),
    ("shopt -s expand_aliases; alias ll='echo ali'", "ll", "ali"),
    ("set -o pipefail; shopt -s nullglob", "false | true || echo failed; echo /no*", "failed"),
    ("set -e", "echo $-", None),
    ("set -u", "echo ${X-unset}", "unset"),
    ("set -C; set -f", "echo *", "*"),
    ("umask 077", "umask", "0077"),
    ("cd /usr; cd /bin", "echo $PWD $OLDPWD; cd - > /dev/null; pwd", "/bin /usr\n/usr"),
    ("set -- p 'q r'", 'echo "$# $2"', "2 q r"),
    ("trap 'echo usr' USR1", "kill -USR1 $$; echo on", "usr\non"),
    ("IFS=:", 'A=a:b; set -- $A; echo "$2"', "b"),
    ("readonly R=1", "(R=2) 2> /dev/null; echo $R", "1"),
    ("A=1; exit 0", "echo $A", "1"),
    ("A=1; f() { exit 0; }; f", "echo $A", "1"),
    ("A=1; set -e; false", "echo $A; set +e", None),
    ("set -x; A=1", "set +x; echo $A", None),
    ("set -o posix; A=1", "echo $A", "1"),
    ("-A=1 2> /dev/null; A=2", "+x 2> /dev/null; echo $A", "2"),
]


@pytest.mark.parametrize(("first", "then", "output"), STATES)
async def test_state_of_a_run_is_there_in_the_next_runs(
    engine: Engine, first: str, then: str, output: str | None
) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, first)
    await run(engine, session, ":")  # the state survives a run that does not use the state
    outcome = await run(engine, session, then)
    found = outcome.stdout.decode().rstrip("\n")
    if output is None:
        # Options that change the output itself: with errexit and xtrace.
        assert found.split("\n")[-1] in ("1", "ehuBc", "ehBc")
    else:
        assert found == output
    assert outcome.stderr == b""


async def test_exit_code_is_that_of_the_last_command(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    assert (await run(engine, session, "false")).result.exit_code == 1
    assert (await run(engine, session, "exit 7")).result.exit_code == 7
    assert (await run(engine, session, "true")).result.exit_code == 0


async def test_broken_syntax_costs_the_run_and_not_the_session(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, "A=1")
    outcome = await run(engine, session, "echo 'open")
    assert outcome.result.exit_code == 2
    assert b"unexpected EOF" in outcome.stdout
    assert (await run(engine, session, "echo $A")).text == "1"


@pytest.mark.parametrize("end", ["kill -9 $$", "exec true"])
async def test_run_that_cannot_save_leaves_the_state_before(engine: Engine, end: str) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, "A=1")
    await run(engine, session, f"A=2; {end}")
    assert (await run(engine, session, "echo $A")).text == "1"


async def test_state_that_breaks_off_is_not_taken(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, "A=1")
    await run(engine, session, f"printf 'A=2\\n' > {session.new_state_path}; kill -9 $$")
    assert (await run(engine, session, "echo $A")).text == "1"


async def test_trap_of_the_session_runs_at_an_exit_and_not_between_runs(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    assert (await run(engine, session, "trap 'echo bye' EXIT; echo set")).text == "set"
    assert (await run(engine, session, "echo on")).text == "on"
    assert (await run(engine, session, "exit")).text == "bye"


async def test_each_run_has_the_marker_of_its_own_execution(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    for _ in range(2):
        outcome = await run(engine, session, "echo $EXECD_EXECUTION_ID")
        assert outcome.text == outcome.execution.id


async def test_listing_shows_the_command_and_not_the_script(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    outcome = await run(engine, session, "echo hi")
    assert outcome.execution.command.program.display == "echo hi"


async def test_command_longer_than_an_argument_runs(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    outcome = await run(engine, session, f"A={'x' * 200_000}; echo ${{#A}}")
    assert outcome.text == "200000"


async def test_state_belongs_to_the_user_alone(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, "A=secret")
    assert stat.S_IMODE(os.stat(session.directory).st_mode) == 0o700


async def test_removed_directory_costs_the_state_once(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, f"A=1; rm -rf {session.directory}")
    assert (await run(engine, session, "echo [$A]; A=2")).text == "[]"
    assert (await run(engine, session, "echo $A")).text == "2"


async def test_directory_that_is_gone_is_told_once(engine: Engine, tmp_path: Path) -> None:
    session = await engine.bash_sessions.create(cwd=f"{tmp_path}/start")
    gone = f"{tmp_path}/it's gone"
    await run(engine, session, f'mkdir "{gone}"; cd "{gone}"; rmdir "{gone}"')
    told = f"execd: the directory of the session is gone: {gone}. This run begins in "
    outcome = await run(engine, session, "pwd")
    assert outcome.text == f"{told}{tmp_path}/start\n{tmp_path}/start"
    assert outcome.stderr == b""
    assert (await run(engine, session, "echo $PWD")).text == f"{tmp_path}/start"


async def test_aliases_are_kept_and_expand_after_the_option_of_bash(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    await run(engine, session, "alias ll='echo ali'")
    assert (await run(engine, session, "ll")).result.exit_code == 127
    await run(engine, session, "shopt -s expand_aliases")
    assert (await run(engine, session, "ll")).text == "ali"


async def test_deletion_ends_the_run_and_removes_the_state(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    execution = engine.bash_sessions.run(session, "sleep 1000", Command(program=NOTHING))
    await engine.bash_sessions.end(session)
    await execution.ended()
    assert not os.path.exists(session.directory)
    with pytest.raises(NotFound):
        engine.bash_sessions.get(session.id)
    with pytest.raises(NotFound):
        engine.bash_sessions.run(session, "true", Command(program=NOTHING))
    await engine.bash_sessions.end(session)


async def test_runs_that_wait_hold_no_place_and_can_be_canceled(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    texts = (f"read A < {gate}", "A=2", "echo $A")
    async with running(tmp_path, max_running=2) as engine:
        session = await engine.bash_sessions.create()
        first, second, third = (
            engine.bash_sessions.run(session, text, Command(program=NOTHING)) for text in texts
        )
        other = engine.submit(Submission(Command(program=shell_program("echo other")))).execution
        assert (await finish(other)).text == "other"
        second.end(ExitReason.CANCELED, 0.0)
        await second.ended()
        assert (first.state, third.state) == (State.RUNNING, State.QUEUED)
        await asyncio.to_thread(gate.write_text, "1\n")
        assert (await finish(third)).text == "1"
        await engine.drain()


async def test_deletion_ends_the_runs_that_wait(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    runs = [
        engine.bash_sessions.run(session, "sleep 1000", Command(program=NOTHING)) for _ in range(3)
    ]
    await engine.bash_sessions.end(session)
    assert [run.outcome and run.outcome.exit_reason for run in runs] == [ExitReason.CANCELED] * 3
    assert not os.path.exists(session.directory)


async def test_drain_deletes_all_sessions(engine: Engine, tmp_path: Path) -> None:
    session = await engine.bash_sessions.create(cwd=f"{tmp_path}/made")
    assert os.path.isdir(f"{tmp_path}/made")
    await engine.drain()
    assert not os.path.exists(os.path.dirname(session.directory))


async def test_state_of_a_killed_daemon_is_removed_by_the_first_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = make_folder(str(tmp_path))
    async with running(tmp_path) as engine:
        monkeypatch.setattr(engine.bash_sessions, "_temporary_dir", str(tmp_path))
        await engine.bash_sessions.create()
        assert os.path.isdir(leftover.path)  # its daemon lives
        await engine.bash_sessions.close()
        os.close(leftover.lock)
        session = await engine.bash_sessions.create()
        assert not os.path.exists(leftover.path)
        assert (await run(engine, session, "echo on")).text == "on"
        await engine.drain()


async def test_session_of_a_given_id_is_made_once(engine: Engine) -> None:
    made = await asyncio.gather(*(engine.bash_sessions.ensure_context("shared") for _ in range(3)))
    assert made[0] is made[1] is made[2]


async def test_too_many_sessions_are_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.engine.bash_sessions.MAX_BASH_SESSIONS", 1)
    await engine.bash_sessions.create()
    with pytest.raises(ResourceExhausted):
        await engine.bash_sessions.create()


async def test_command_with_a_nul_is_refused(engine: Engine) -> None:
    session = await engine.bash_sessions.create()
    with pytest.raises(InvalidArgument, match="NUL"):
        engine.bash_sessions.run(session, "a\0b", Command(program=NOTHING))
