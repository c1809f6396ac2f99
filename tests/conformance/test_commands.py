"""Commands: the shell, exit codes, and bytes in both streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Run


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("echo a | tr a b", "b\n"),
        ("true && echo yes", "yes\n"),
        ("false || echo no", "no\n"),
        ("echo one; echo two", "one\ntwo\n"),
        ("echo one\necho two", "one\ntwo\n"),
        ("FOO=1 sh -c 'echo $FOO'", "1\n"),
        ("cd /usr && pwd", "/usr\n"),
        ("X='a  b'; echo \"$X\"", "a  b\n"),
        ("echo $((6 * 7))", "42\n"),
        ("for i in 1 2 3; do printf %s $i; done", "123"),
        ("cat <<END\nhere\nEND", "here\n"),
        ("echo shown # not shown", "shown\n"),
        ("", ""),
        ("   ", ""),
        (":", ""),
    ],
)
def test_command_is_a_shell_script(run: Run, command: str, stdout: str) -> None:
    ran = run(command)
    assert (ran.stdout, ran.stderr, ran.exit_code, ran.timed_out) == (stdout, "", 0, False)


@pytest.mark.parametrize(
    "exit_code", [0, 1, 2, 3, 42, 100, 123, 124, 125, 126, 127, 128, 129, 137, 200, 254, 255]
)
def test_exit_code_is_passed_on(run: Run, exit_code: int) -> None:
    ran = run(f"exit {exit_code}")
    assert ran.exit_code == exit_code
    assert not ran.timed_out


def test_exit_code_124_of_a_program_is_not_a_timeout(run: Run) -> None:
    ran = run("exit 124")
    assert not ran.timed_out
    assert ran.exit_reason == "exited"
    assert "timed out" not in ran.stderr


def test_program_that_does_not_exist_is_127(run: Run) -> None:
    ran = run("no-such-program --flag")
    assert ran.exit_code == 127
    assert "no-such-program" in ran.stderr
    assert "not found" in ran.stderr


def test_program_that_may_not_be_executed_is_126(run: Run, folder: str) -> None:
    ran = run(f"echo 'echo hi' > {folder}/script; chmod 644 {folder}/script; {folder}/script")
    assert ran.exit_code == 126
    assert "ermission denied" in ran.stderr


def test_syntax_error_is_the_shell_s_own_exit_code(run: Run) -> None:
    ran = run("echo 'unfinished")
    assert ran.exit_code == 2
    assert ran.stderr


@pytest.mark.parametrize(
    ("name", "number"), [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2), ("HUP", 1)]
)
def test_child_that_a_signal_ends_is_128_and_the_signal(run: Run, name: str, number: int) -> None:
    assert run(f"sh -c 'kill -{name} $$'; exit $?").exit_code == 128 + number


def test_shell_that_a_signal_ends_is_not_a_success_and_says_so(run: Run) -> None:
    ran = run("kill -KILL $$")
    # The python-runtime says -9 here (subprocess' way), and 137 when the shell outlives the
    # program.
    assert ran.exit_code in (-9, 137)
    assert ran.exit_reason == "signaled"


def test_streams_are_kept_apart(run: Run) -> None:
    ran = run("echo out; echo err >&2; echo out2; echo err2 >&2")
    assert (ran.stdout, ran.stderr) == ("out\nout2\n", "err\nerr2\n")


def test_text_in_many_scripts_comes_back_unchanged(run: Run) -> None:
    text = "naïve Ελλάδα 日本語 🐍 \u202e\u0301 \u2028"
    assert run(f"printf %s '{text}'; printf %s '{text}' >&2").body["stdout"] == text
    assert run(f"printf %s '{text}' >&2").stderr == text


@pytest.mark.parametrize(
    ("octal", "text"),
    [
        (r"one\r\ntwo\r\n", "one\r\ntwo\r\n"),
        (r"one\rtwo", "one\rtwo"),
        (r"\r", "\r"),
        (r"a\000b\000", "a\0b\0"),
        (r"no newline", "no newline"),
        (r"tab\there\033[31mred\033[0m", "tab\there\x1b[31mred\x1b[0m"),
        (r"a\377b", "a\ufffdb"),
        (r"\303", "\ufffd"),
        (r"\303\050", "\ufffd("),
        (r"\357\273\277bom", "\ufeffbom"),
    ],
)
def test_bytes_come_back_as_they_were_written(run: Run, octal: str, text: str) -> None:
    ran = run(f"printf '{octal}'; printf '{octal}' >&2")
    assert (ran.stdout, ran.stderr, ran.exit_code) == (text, text, 0)


def test_characters_cut_by_separate_writes_are_joined(run: Run) -> None:
    ran = run(r"printf '\360\237'; sleep 0.2; printf '\220\215'")
    assert ran.stdout == "🐍"


def test_closed_streams_do_no_harm(run: Run) -> None:
    ran = run("exec >&- 2>&-; sleep 0.1; exit 5")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("", "", 5)


def test_standard_input_is_empty(run: Run) -> None:
    assert run("cat; echo end").stdout == "end\n"
    assert run.out("readlink /proc/self/fd/0") == "/dev/null\n"


def test_command_starts_in_the_base_dir_every_time(run: Run) -> None:
    base = run.out("pwd")
    run("cd /tmp; export LEFT=behind")
    assert run.out("pwd; echo ${LEFT-nothing}") == base + "nothing\n"


def test_command_longer_than_the_kernel_takes_as_one_argument_runs(run: Run) -> None:
    script = "# " + "x" * 200_000 + "\necho ran; exit 4"
    ran = run(script)
    assert (ran.stdout, ran.exit_code) == ("ran\n", 4), ran.stderr[:200]


def test_command_of_two_megabytes_runs(run: Run) -> None:
    words = "w" * 2_000_000
    ran = run(f"cat <<'END' | wc -c\n{words}\nEND\n")
    assert (ran.stdout.strip(), ran.exit_code) == ("2000001", 0), ran.stderr[:200]


@pytest.mark.own_image
def test_python_and_python3_are_on_the_path(run: Run) -> None:
    assert run.out("python -c 'print(6 * 7)'") == "42\n"
    assert run.out("python3 -c 'print(6 * 7)'") == "42\n"


@pytest.mark.own_image
def test_python_script_sees_its_arguments_and_a_traceback_goes_to_stderr(
    run: Run, folder: str
) -> None:
    run.out(f"echo 'import sys; print(sys.argv[1:]); 1/0' > {folder}/a.py")
    ran = run(f"python {folder}/a.py 'a b' c")
    assert ran.stdout == "['a b', 'c']\n"
    assert ran.exit_code == 1
    assert ran.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
