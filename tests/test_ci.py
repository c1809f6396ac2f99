"""The judges of CI, .ci/suite and .ci/verdict, on planted failures: each makes CI fail."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[1]
PLUGINS = ["tests.recording", "no:cacheprovider"]
PYTEST = [sys.executable, "-m", "pytest", "-q", *(f"-p{name}" for name in PLUGINS)]
SERVER = """
import json, os, socket, sys
import pytest

listener = socket.socket(fileno=0)
while True:
    connection = listener.accept()[0]
    request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    if (pid := os.fork()) == 0:
        argv, folder, environment = json.loads(request)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        exit_code = pytest.main(argv)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    for descriptor in streams:
        os.close(descriptor)
    connection.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    connection.close()
"""
CALLER = """
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [request], [1, 2])
sys.exit(int(server.recv(16)))
"""
"""A run of pytest in a fork of the server, which has imported pytest: a tenth of the CPU of another
start of pytest. The caller has no site packages, and so starts in an instant."""
FAILS_ONCE = """
    import pathlib
    def test_first():
        runs = pathlib.Path("runs")
        with runs.open("a") as file:
            file.write("run ")
        assert runs.read_text() != "run "
"""


DAY_SECONDS = 24 * 3600


class Ci:
    """The judges of CI in a repository of their own, as in a clone of a submitted commit."""

    def __init__(self, folder: Path, pytest_command: list[str]) -> None:
        self.folder = folder
        self.pytest_command = pytest_command
        (folder / ".ci").mkdir()
        for script in ("suite", "verdict"):
            shutil.copy(REPOSITORY / ".ci" / script, folder / ".ci")
        for name in ("records", "docs", "tests"):
            (folder / name).mkdir()
        self.excuse("")
        self.list_flaky("")

    def excuse(self, lists: str) -> None:
        (self.folder / ".ci/excused.toml").write_text(dedent(lists))

    def list_flaky(self, entries: str) -> None:
        (self.folder / "tests/flaky.toml").write_text(dedent(entries))

    def commit(self, tests: str, *, age_seconds: int) -> str:
        """Commit the file of tests, ``age_seconds`` ago; return the commit."""
        (self.folder / "test_planted.py").write_text(dedent(tests))
        date = f"@{int(time.time()) - age_seconds} +0000"
        for command in (
            ["init", "--quiet"],
            ["add", "test_planted.py"],
            ["-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--message=a"],
        ):
            subprocess.run(
                ["git", *command],
                cwd=self.folder,
                env={**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date},
                check=True,
            )
        return subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=self.folder, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def land(self, tests: str) -> None:
        """Commit the tests long before the submitted commit, which does not touch the tests."""
        self.commit(tests, age_seconds=2 * DAY_SECONDS)
        self.commit(f"{dedent(tests)}\ndef test_of_the_change(): pass", age_seconds=0)

    def _run(self, *argv: str, **more: str) -> tuple[int, str]:
        environment = {
            **os.environ,
            "EXECD_CI_BASE": "",
            **more,
            "PYTHONPATH": str(REPOSITORY),
            "EXECD_CI_RECORDS": str(self.folder / "records"),
            # The import of all plugins takes a second of CPU for each run.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "EXECD_TEST_RECORD"):
            environment.pop(name, None)
        done = subprocess.run(
            argv, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def suite(
        self, tests: str, name: str = "planted", *options: str, **environment: str
    ) -> tuple[int, str]:
        (self.folder / "test_planted.py").write_text(dedent(tests))
        return self.suite_as_it_is(name, *options, **environment)

    def suite_as_it_is(
        self, name: str = "planted", *options: str, **environment: str
    ) -> tuple[int, str]:
        again = self.pytest_command
        return self._run(
            *(".ci/suite", name, shlex.join(again), *options, "--", *again, "test_planted.py"),
            **environment,
        )

    def n_runs(self) -> int:
        """How often test_first ran, of the tests that count."""
        return len((self.folder / "runs").read_text().split())

    def verdict(self, *options: str) -> tuple[int, str]:
        return self._run(".ci/verdict", *options)


@pytest.fixture(scope="module")
def forked_pytest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A command that does what PYTEST does, with less CPU."""
    path = tmp_path_factory.mktemp("pytest") / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=listener,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    try:
        yield [sys.executable, "-I", "-S", "-c", CALLER, str(path), *PYTEST[3:]]
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def ci(tmp_path: Path, forked_pytest: list[str]) -> Ci:
    return Ci(tmp_path, forked_pytest)


def test_suite_whose_tests_pass_is_green(ci: Ci) -> None:
    exit_code, text = ci.suite("def test_first(): pass")
    assert (exit_code, "planted: 1 passed, 0 failed, 0 skipped" in text) == (0, True), text
    assert ci.verdict() == (0, "total: 1 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ("def test_first(): assert False", "failed in call: test_planted.py::test_first"),
        ("import no_such_module", "failed in collect: test_planted.py"),
        ("", "no test passed"),
        ("import os\ndef test_first(): os._exit(0)", "did not begin and end 1 times: begin"),
        (
            "import pytest\npytest.skip('a whole file', allow_module_level=True)",
            "skipped without leave: test_planted.py: a whole file",
        ),
        (
            "import pytest\ndef test_first(): pass\ndef test_other(): pytest.skip('tired')",
            "skipped without leave: test_planted.py::test_other: tired",
        ),
    ],
    ids=["failure", "collection", "no tests", "killed", "skipped file", "skip"],
)
def test_planted_failure_makes_the_suite_fail(ci: Ci, tests: str, complaint: str) -> None:
    exit_code, text = ci.suite(tests)
    assert (exit_code, complaint in text) == (1, True), text


def test_hang_outside_of_a_test_makes_the_suite_fail(tmp_path: Path) -> None:
    ci = Ci(tmp_path, PYTEST)  # what hangs must be below the suite
    exit_code, text = ci.suite("import signal\nsignal.pause()", EXECD_CI_SUITE_SECONDS="3")
    assert (exit_code, "did not end within 3 s" in text) == (1, True), text


def test_run_of_pytest_that_never_began_makes_the_suite_fail(ci: Ci) -> None:
    exit_code, text = ci.suite("def test_first(): pass", "planted", "2")
    assert (exit_code, "did not begin and end 2 times" in text) == (1, True), text


def test_listed_reason_excuses_a_skip(ci: Ci) -> None:
    ci.excuse("""
        [[skip]]
        suites = "^planted"
        reason = "^tired$"
        because = "a test of CI"
    """)
    tests = "import pytest\ndef test_first(): pass\ndef test_other(): pytest.skip('tired')"
    assert ci.suite(tests)[0] == 0
    exit_code, text = ci.verdict()
    assert exit_code == 1
    assert "passed in no suite: test_planted.py::test_other" in text
    assert ci.suite(tests, "another")[0] == 1, "the excuse is for one suite"


def test_skip_that_may_run_nowhere_leaves_no_test_that_passed_in_no_suite(ci: Ci) -> None:
    ci.excuse("""
        [[skip]]
        suites = ""
        reason = "^tired$"
        because = "a test of CI"
        may_run_nowhere = true
    """)
    tests = "import pytest\ndef test_first(): pass\ndef test_other(): pytest.skip('tired')"
    assert ci.suite(tests)[0] == 0
    assert ci.verdict() == (0, "total: 1 passed, 0 failed, 1 skipped\n")


# Second chances.

ERROR_OF_A_FIXTURE = """
    import pathlib, pytest
    def count():
        with pathlib.Path("runs").open("a") as file:
            file.write("run ")
        assert pathlib.Path("runs").read_text() != "run ", "an error in the log"
    @pytest.fixture
    def daemon():
        {} yield
    def test_first(daemon): pass
"""


def test_failed_test_that_the_change_leaves_alone_runs_five_more_times_and_is_named(ci: Ci) -> None:
    ci.land(FAILS_ONCE)
    exit_code, text = ci.suite_as_it_is()
    assert exit_code == 0, text
    assert ci.n_runs() == 6
    lines = ci.verdict("--totals")[1].splitlines()
    assert lines[:3] == [
        "FLAKY",
        "planted: test_planted.py::test_first",
        f"    {ci.folder}/test_planted.py:7: AssertionError: assert 'run ' != 'run '",
    ]
    assert lines[-1] == "total: 2 passed, 0 failed, 0 skipped"
    assert ci.verdict() == (0, "total: 2 passed, 0 failed, 0 skipped\n")


def test_second_chance_needs_five_passes(ci: Ci) -> None:
    ci.land(FAILS_ONCE.replace('!= "run "', 'in ["run " * n for n in (2, 3, 4, 5)]'))
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, "test_first (and failed again)" in text) == (1, True), text
    assert ci.n_runs() == 1 + 5
    assert "FLAKY" not in ci.verdict("--totals")[1]


def test_skip_is_no_pass_of_a_second_chance(ci: Ci) -> None:
    ci.land("""
        import pathlib, pytest
        def test_first():
            if pathlib.Path("runs").exists():
                pytest.skip("tired")
            pathlib.Path("runs").touch()
            assert False
    """)
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, "test_first (and failed again)" in text) == (1, True), text


@pytest.mark.parametrize(
    "before",
    [
        "",
        FAILS_ONCE.replace("with", "print()\n        with"),
        FAILS_ONCE.replace("    def test", "    @staticmethod\n    def test"),
    ],
    ids=["new", "another body", "another decorator"],
)
def test_test_that_the_change_adds_or_edits_has_no_second_chance(ci: Ci, before: str) -> None:
    ci.commit(before, age_seconds=2 * DAY_SECONDS)
    ci.commit(FAILS_ONCE, age_seconds=4 * 3600 - 60)
    ci.commit(dedent(FAILS_ONCE) + "# the last commit of the change", age_seconds=0)
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, "test_first (the change adds or edits it)" in text) == (1, True), text
    assert ci.n_runs() == 1


def test_edit_that_is_not_committed_is_an_edit(ci: Ci) -> None:
    ci.land(FAILS_ONCE)
    assert ci.suite(FAILS_ONCE.replace('"a"', '"at"'))[0] == 1
    assert ci.n_runs() == 1


def test_comment_and_layout_and_other_functions_are_no_edit_of_a_method(ci: Ci) -> None:
    tests = """
        import pathlib, pytest
        class TestPlanted:
            @pytest.mark.parametrize("name", ["a::b [c]"])
            def test_first(self, name):
                with pathlib.Path("runs").open("a") as file:
                    file.write("run ")
                assert pathlib.Path("runs").read_text() != "run "
    """
    ci.land(tests)
    exit_code, text = ci.suite(
        dedent(tests).replace(" != ", "  !=  ") + "# a comment\ndef test_other(): pass\n"
    )
    assert exit_code == 0, text
    assert ci.n_runs() == 6


def test_base_may_be_named(ci: Ci) -> None:
    before = ci.commit("", age_seconds=3 * DAY_SECONDS)
    ci.land(FAILS_ONCE)
    assert ci.suite_as_it_is(EXECD_CI_BASE=before)[0] == 1
    assert ci.n_runs() == 1


@pytest.mark.parametrize("history", ["none", "too short"])
def test_without_a_base_no_test_has_a_second_chance(ci: Ci, history: str) -> None:
    if history == "too short":
        ci.commit(FAILS_ONCE, age_seconds=0)
    assert ci.suite(FAILS_ONCE)[0] == 1
    assert ci.n_runs() == 1


def test_listed_flaky_test_has_no_second_chance(ci: Ci) -> None:
    ci.land(FAILS_ONCE)
    ci.list_flaky("""
        [[flaky]]
        test = "test_planted.py::test_first"
        date = 2026-11-28
        reason = "a test of CI"
    """)
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, "test_first (tests/flaky.toml lists it)" in text) == (
        1,
        True,
    ), text
    assert ci.n_runs() == 1


@pytest.mark.parametrize("missing", ["date", "reason"])
def test_listed_flaky_test_needs_a_date_and_a_reason(ci: Ci, missing: str) -> None:
    entry = {"test": "'a'", "date": "2026-11-28", "reason": "'b'"}
    entry.pop(missing)
    ci.list_flaky("[[flaky]]\n" + "\n".join(f"{key} = {value}" for key, value in entry.items()))
    exit_code, text = ci.suite("def test_first(): pass")
    assert (exit_code, f"KeyError: '{missing}'" in text) == (1, True), text


@pytest.mark.parametrize("phase", ["setup", "teardown"])
def test_error_of_a_fixture_is_never_repeated(ci: Ci, phase: str) -> None:
    """The daemon's log is checked when a fixture ends: a second run would see a fresh daemon."""
    ci.land(
        ERROR_OF_A_FIXTURE.format("count();" if phase == "setup" else "yield; count(); return;")
    )
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, f"failed in {phase}: test_planted.py::test_first\n" in text) == (
        1,
        True,
    ), text
    assert ci.n_runs() == 1


def test_second_chances_of_a_run_are_three_in_all_suites_together(ci: Ci) -> None:
    """Suites run side by side."""
    ci.land("""
        import os, pathlib
        def test_first():
            mark = pathlib.Path(os.environ["SUITE"])
            is_first, _ = not mark.exists(), mark.touch()
            assert not is_first
    """)
    for number in (0, 1):
        (ci.folder / f"records/second-chance-{number}").write_text('["before: test_other", "why"]')
    with ThreadPoolExecutor() as pool:
        suites = [pool.submit(ci.suite_as_it_is, name, SUITE=name) for name in ("one", "two")]
        results = [suite.result() for suite in suites]
    text = "".join(text for _, text in results)
    assert sorted(exit_code for exit_code, _ in results) == [0, 1], text
    assert text.count("failed, and runs 5 more times") == 1
    assert text.count("failed in call: test_planted.py::test_first (3 others had a second") == 1
    flaky = ci.verdict("--totals")[1].partition("FLAKY\n")[2].splitlines()
    assert len([line for line in flaky if ": test_" in line]) == 3


def test_second_chance_hides_no_error_of_pytest_itself(ci: Ci) -> None:
    ci.land(FAILS_ONCE)
    (ci.folder / "conftest.py").write_text(
        "import pathlib\n"
        "def pytest_sessionfinish(session):\n"
        "    if pathlib.Path('runs').read_text() == 'run ':\n"
        "        session.exitstatus = 3\n"
    )
    exit_code, text = ci.suite_as_it_is()
    assert (exit_code, "the suite's command failed (3)" in text) == (1, True), text


# The end of a run.


def test_end_of_a_run_tells_each_failed_test_with_its_suite_phase_and_message(ci: Ci) -> None:
    tests = """
        import pytest
        @pytest.fixture
        def daemon():
            yield
            pytest.fail("left behind:\\n  descriptor 7")
        def test_first(): assert 1 + 1 == 3
        def test_other(daemon): raise ValueError("no such thing")
        def test_third(): pass
    """
    assert ci.suite(tests, "planted in gVisor")[0] == 1
    assert ci.suite("import no_such_module", "native")[0] == 1
    exit_code, text = ci.verdict("--totals")
    lines = [line.replace(str(ci.folder), "") for line in text.splitlines()]
    assert exit_code == 0
    assert lines[0] == "native: pytest itself failed: exit codes 2"
    assert lines[1] == "native: failed in collect: test_planted.py"
    assert lines.index("    E   ModuleNotFoundError: No module named 'no_such_module'") > 0
    at = lines.index(
        "planted in gVisor: failed in call: test_planted.py::test_first "
        "(the change adds or edits it)"
    )
    assert lines[at + 1 : at + 3] == [
        "    /test_planted.py:7: assert (1 + 1) == 3",
        "planted in gVisor: failed in call and teardown: test_planted.py::test_other",
    ]
    assert lines[at + 3 :] == [
        "    /test_planted.py:8: ValueError: no such thing",
        "    /test_planted.py:6: Failed: left behind:",
        "      descriptor 7",
        "total: 1 passed, 3 failed, 0 skipped",
    ]


@pytest.mark.parametrize(("n_failures", "n_lines"), [(3, 3 * 13 + 2), (25, 25 * 2 + 2), (90, 61)])
def test_end_of_a_run_tells_failures_in_sixty_lines(ci: Ci, n_failures: int, n_lines: int) -> None:
    tests = f"""
        import pytest
        @pytest.mark.parametrize("number", range({n_failures}))
        def test_first(number): pytest.fail("a line\\n" * 100)
    """
    assert ci.suite(tests)[0] == 1
    lines = ci.verdict("--totals")[1].splitlines()
    told = [line for line in lines if line.startswith("planted: failed in call: test_planted.py")]
    assert (len(told), len(lines)) == (min(n_failures, 59), n_lines)
    assert lines[-1] == f"total: 0 passed, {n_failures} failed, 0 skipped"
    assert n_failures <= 59 or lines[-2] == "and 32 more"


# A runsc that says what the scripts ask of one, and no sandbox.
RUNSC = """\
#!/bin/sh
case "$*" in
    --version) echo "runsc version release-20240729.0" ;;
    *" run "*) echo "Starting gVisor..." ;;
esac
"""


@pytest.mark.root
def test_debians_gvisor_serves_where_none_can_be_built_and_the_end_says_so(
    ci: Ci, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ci.folder / "cache"
    debians = cache / "gvisor-20240729/runsc"
    debians.parent.mkdir(parents=True)
    debians.write_text(RUNSC)
    debians.chmod(0o755)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    for _ in range(2):  # the second call asks no registry again
        done = ci._run(str(REPOSITORY / ".ci/install-runsc"), EXECD_CI_CACHE=str(cache))
        assert done[0] == 0, done
        assert str(debians) in done[1].splitlines()
    assert "No matching distribution" not in done[1]
    note = "no gVisor of 20260905 could be built: all ran in Debian's of 20240729"
    assert ci.verdict("--totals")[1].splitlines()[-2:] == [
        note,
        "total: 0 passed, 0 failed, 0 skipped",
    ]
    assert sorted(path.name for path in cache.iterdir()) == [
        "gvisor-20240729",
        "gvisor-20260905",
        "lock",
    ]


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("See `test_of_a_promise`.\n", "names test_of_a_promise, which did not pass"),
        ("* First passes.\n* First.\n", "promises, and no test passed: First passes."),
    ],
)
def test_promise_whose_test_did_not_pass_makes_the_verdict_fail(
    ci: Ci, page: str, complaint: str
) -> None:
    (ci.folder / "docs/behaviour.md").write_text(page)
    assert ci.suite("def test_first(): pass")[0] == 0
    exit_code, text = ci.verdict()
    assert exit_code == 1
    assert f"docs/behaviour.md {complaint}" in text
    assert "no test passed: First.\n" not in text


OTHER_STEPS = """
fails() { false; echo "not reached"; }
step "the first" fails
step "the second" echo "reached"
good() { echo "good"; }
bad() { echo "the last words of bad"; false; echo "not reached"; }
both() { side_by_side good bad; return $suites_failed; }
step "two at once" both
"""


def test_failed_step_fails_the_run_and_hides_no_later_step(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / ".ci", tmp_path / ".ci")
    before, _, steps = (REPOSITORY / ".ci/run").read_text().partition('step "Debian packages"')
    _, _, end = steps.partition('step "the run as a whole" .ci/verdict\n')
    assert end
    (tmp_path / ".ci/run").write_text(before + OTHER_STEPS + end)
    # The records of the run around this test, if any, are not this run's.
    environment = {**os.environ}
    environment.pop("EXECD_CI_RECORDS", None)
    done = subprocess.run(
        [tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "\nreached\n" in done.stdout
    assert "not reached" not in done.stdout
    assert "\ngood\n" in done.stdout
    assert re.search(r"^-- bad: \d+ s: FAILED$", done.stdout, re.MULTILINE)
    _, _, end = done.stdout.partition("\n== Time spent\n")
    assert "\nthe last words of bad\n" in end
    failed = done.stdout.splitlines()[-2:]
    assert failed == ["CI FAILED in: the first", "CI FAILED in: two at once"]
