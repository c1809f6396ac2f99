"""The judges of CI, .ci/suite and .ci/verdict, on planted failures: each makes CI fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

REPOSITORY = Path(__file__).parents[1]
PLUGINS = ["tests.recording", "no:cacheprovider"]
PYTEST = [sys.executable, "-m", "pytest", "-q", *(f"-p{name}" for name in PLUGINS)]
FORGIVEN = """
    [[forgiven]]
    test = "test_planted.py::test_first"
    because = "a test of CI"
"""
FAILS_ONCE = """
    import pathlib
    def test_first():
        runs = pathlib.Path("runs")
        with runs.open("a") as file:
            file.write("run ")
        assert runs.read_text() != "run "
"""


class Ci:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        for script in ("suite", "verdict"):
            shutil.copy(REPOSITORY / ".ci" / script, folder / ".ci")
        (folder / "records").mkdir()
        (folder / "docs").mkdir()
        self.excuse("")

    def excuse(self, lists: str) -> None:
        (self.folder / ".ci/excused.toml").write_text(dedent(lists))

    def _run(self, *argv: str, **more: str) -> tuple[int, str]:
        environment = {
            **os.environ,
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
        command = [*PYTEST, "test_planted.py"]
        return self._run(
            ".ci/suite", name, " ".join(PYTEST), *options, "--", *command, **environment
        )

    def verdict(self, *options: str) -> tuple[int, str]:
        return self._run(".ci/verdict", *options)


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


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


def test_hang_outside_of_a_test_makes_the_suite_fail(ci: Ci) -> None:
    exit_code, text = ci.suite("import signal\nsignal.pause()", EXECD_CI_SUITE_SECONDS="3")
    assert (exit_code, "did not end within 3 s" in text) == (1, True), text


def test_run_of_pytest_that_never_began_makes_the_suite_fail(ci: Ci) -> None:
    exit_code, text = ci.suite("def test_first(): pass", "planted", "2")
    assert (exit_code, "did not begin and end 2 times" in text) == (1, True), text


def test_forgiven_failure_hides_no_error_of_pytest_itself(ci: Ci) -> None:
    ci.excuse(FORGIVEN)
    (ci.folder / "conftest.py").write_text(
        "import pathlib\n"
        "def pytest_sessionfinish(session):\n"
        "    if pathlib.Path('runs').read_text() == 'run ':\n"
        "        session.exitstatus = 3\n"
    )
    exit_code, text = ci.suite(FAILS_ONCE)
    assert (exit_code, "the suite's command failed (3)" in text) == (1, True), text


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


def test_error_of_a_teardown_is_never_forgiven_and_never_repeated(ci: Ci) -> None:
    """The daemon's log is checked when a fixture ends: a second run would see a fresh daemon."""
    ci.excuse(FORGIVEN)
    exit_code, text = ci.suite("""
        import pathlib, pytest
        @pytest.fixture
        def daemon():
            yield
            runs = pathlib.Path("runs")
            with runs.open("a") as file:
                file.write("run ")
            assert runs.read_text() != "run ", "an error in the log"
        def test_first(daemon): pass
    """)
    assert (exit_code, "failed in teardown: test_planted.py::test_first" in text) == (1, True), text
    assert (ci.folder / "runs").read_text() == "run "


def test_failure_that_is_not_on_the_list_is_not_repeated(ci: Ci) -> None:
    assert ci.suite(FAILS_ONCE)[0] == 1
    assert (ci.folder / "runs").read_text() == "run "


def test_forgiven_test_runs_five_more_times_and_is_named_in_the_closing_line(ci: Ci) -> None:
    ci.excuse(FORGIVEN)
    exit_code, text = ci.suite(FAILS_ONCE)
    assert exit_code == 0, text
    assert (ci.folder / "runs").read_text() == "run " * 6
    assert ci.verdict() == (
        0,
        "total: 1 passed, 0 failed, 0 skipped; forgiven: planted: test_planted.py::test_first\n",
    )


def test_forgiven_test_that_fails_again_fails_the_suite(ci: Ci) -> None:
    ci.excuse(FORGIVEN)
    exit_code, text = ci.suite("def test_first(): assert False")
    assert (exit_code, "failed again: test_planted.py::test_first" in text) == (1, True), text


def test_fourth_failure_of_a_run_is_not_forgiven(ci: Ci) -> None:
    ci.excuse(FORGIVEN)
    (ci.folder / "records/forgiven").write_text("a\nb\nc\n")
    exit_code, text = ci.suite(FAILS_ONCE)
    assert (exit_code, "3 others were forgiven" in text) == (1, True), text


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
    at = lines.index("planted in gVisor: failed in call: test_planted.py::test_first")
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


def test_list_of_forgiven_tests_has_three_entries_at_most_each_with_a_reason() -> None:
    import tomllib  # not in Python 3.10, and this test alone needs the module

    excused = tomllib.loads((REPOSITORY / ".ci/excused.toml").read_text())
    assert len(excused.get("forgiven", [])) <= 3
    for entry in [*excused["skip"], *excused.get("forgiven", [])]:
        assert entry["because"]


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
