from __future__ import annotations

import errno
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from execd.proc import spawn
from execd.proc.program_block import DirectProgram, pack
from execd.proc.spawn import Identity, Limit, StepFailed
from tests.gvisor import is_gvisor
from tests.proc import spawning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def open_descriptors() -> set[str]:
    return {
        name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")
    }


class Ran:
    """An ended program: the bytes on descriptor 1, and the exit."""

    def __init__(
        self,
        argv: list[str],
        *,
        env: dict[str, str] = PATH,
        cwd: str = "/",
        direct: DirectProgram | None = None,
        **options: Any,
    ) -> None:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            program = pack(argv, env, cwd, direct)
            self.started = spawning.spawn(
                program=program, fds=[null, write_end, write_end], **options
            )
            self.pid = self.started.pid
        except StepFailed as error:
            if error.pid is not None:
                os.waitpid(error.pid, 0)
            os.close(read_end)
            raise
        except ValueError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
            os.close(null)
        with open(read_end, "rb") as file:
            self.output = file.read()
        self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def text(self) -> str:
        assert self.exit_code == 0, (self.exit_code, self.output)
        return self.output.decode().strip()


def sh(script: str, **options: Any) -> str:
    return Ran(["sh", "-c", script], **options).text


def python(program: str, **options: Any) -> Any:
    return json.loads(
        Ran(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                "import json, os, resource, signal, sys\n" + program,
            ],
            **options,
        ).text
    )


REPOSITORY = os.path.abspath(spawn.__file__ + "/../../..")


def run_in_new_process(program: str) -> None:
    """Run ``program`` in an interpreter that has the descriptors 0, 1 and 2 only."""
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True, timeout=60, close_fds=True
    )


# The environment of the program.


def test_arguments_environment_and_directory_arrive_byte_for_byte(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "import os, sys; print(ascii([sys.argv[1:], dict(os.environb), os.getcwd()]))",
    ]
    odd = ["", " ", "a\nb", "é", "\udcff\udc80", "x" * 131_071]
    ran = Ran([*argv, *odd], env={"A": "\udcff", "B": "", "C": "a=b\nc", **PATH}, cwd=str(tmp_path))
    expected_env = {
        b"A": b"\xff",
        b"B": b"",
        b"C": b"a=b\nc",
        b"PATH": PATH["PATH"].encode(),
        b"LC_CTYPE": b"C.UTF-8",
    }
    found = eval(ran.text)  # the output of ascii()
    assert found[0] == odd
    assert {name: value for name, value in found[1].items() if name != b"LC_CTYPE"} == {
        n: v for n, v in expected_env.items() if n != b"LC_CTYPE"
    }
    assert found[2] == str(tmp_path)


def test_a_program_is_a_session_leader_with_a_group_of_its_own_and_no_terminal() -> None:
    pid, group, session, terminal = python(
        "print(json.dumps([os.getpid(), os.getpgid(0), os.getsid(0), "
        "open('/proc/self/stat').read().rpartition(')')[2].split()[4]]))"
    )
    assert pid == group == session
    assert terminal == "0"


def test_a_program_that_leads_no_session_has_a_group_of_its_own_in_the_callers_session() -> None:
    pid, group, session = python(
        "print(json.dumps([os.getpid(), os.getpgid(0), os.getsid(0)]))", leads_session=False
    )
    assert (group, session) == (pid, os.getsid(0))


@pytest.mark.linux_only("gVisor's /proc/PID/status has no signal masks")
def test_a_program_of_a_prepared_caller_has_default_signals_and_no_way_to_more_privileges(
    tmp_path: Path,
) -> None:
    """But for the two signals of the C library, 32 and 33, which ``execd_clone`` resets."""
    program = f"""
import os, sys
sys.path.insert(0, {REPOSITORY!r})
from execd.proc import spawn
from execd.proc.program_block import pack
from tests.proc import spawning
spawn.prepare()
out = os.open({str(tmp_path / "found")!r}, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
argv = ["grep", "^Sig\\|^NoNewPrivs", "/proc/self/status"]
fds = [spawning.KEEP_FD, out, spawning.KEEP_FD]
program = pack(argv, {PATH!r}, "/")
pid, *_ = spawning.spawn(program=program, fds=fds)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    run_in_new_process(program)
    found = dict(line.split(":\t") for line in (tmp_path / "found").read_text().splitlines())
    of_the_c_library = 0b11 << 31
    found_bits = [int(found[name], 16) & ~of_the_c_library for name in ("SigBlk", "SigIgn")]
    assert found_bits == [0, 0]
    assert found["NoNewPrivs"] == "1"


def test_a_prepared_caller_learns_of_the_end_of_a_child_from_a_descriptor() -> None:
    program = f"""
import os, select, signal, sys
sys.path.insert(0, {REPOSITORY!r})
from execd.proc import spawn
from execd.proc.program_block import pack
from tests.proc import spawning
spawn.prepare()
ends = spawn.open_child_signals()
poll = select.poll()
poll.register(ends, select.POLLIN)
for _ in range(2):
    assert poll.poll(0) == []
    program = pack(["true"], {PATH!r}, "/")
    pid, *_ = spawning.spawn(program=program, fds=[0, 1, 2])
    assert poll.poll(20_000) == [(ends, select.POLLIN)]
    assert os.read(ends, 4096)[0] == signal.SIGCHLD
    assert os.waitpid(pid, 0)[1] == 0
"""
    run_in_new_process(program)


def test_only_the_given_descriptors_are_open() -> None:
    stray = os.open("/", os.O_RDONLY)
    os.set_inheritable(stray, True)
    try:
        assert sorted(sh("ls /proc/$$/fd").split()) == ["0", "1", "2"]
    finally:
        os.close(stray)


@pytest.mark.parametrize("n_given", [3, 8])
def test_the_first_descriptor_behind_the_given_ones_is_closed_as_well(n_given: int) -> None:
    """In a new process, where the numbers from 3 to 9 belong to nobody else."""
    repository = os.path.abspath(spawn.__file__ + "/../../..")
    program = f"""
import os, sys
sys.path.insert(0, {repository!r})
from execd.proc import spawn
from execd.proc.program_block import pack
from tests.proc import spawning
for number in range(3, 10):
    os.dup2(1, number)
argv = ["/bin/sh", "-c", "ls /proc/$$/fd"]
program = pack(argv, {PATH!r}, "/")
pid, *_ = spawning.spawn(program=program, fds=[1] * {n_given})
sys.exit(os.waitpid(pid, 0)[1])
"""
    ran = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, timeout=20)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.split() == [b"%d" % number for number in range(n_given)]


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 2],
        [2, 1, 0],
        [1, 2, 0],
        [2, 0, 1],
        [1, 0, 2],
        [0, 0, 0],
        [2, 2, 1],
        [0, 1, 2, 2, 1, 0, 1, 2],
    ],
)
def test_descriptors_land_in_the_order_given_whatever_numbers_they_have_here(
    order: list[int], tmp_path: Path
) -> None:
    """The sources sit at 0, 1 and 2 of a new process, so each source has the number of a different
    target."""
    for number in range(3):
        (tmp_path / f"file{number}").touch()
    program = f"""
import os, sys
sys.path.insert(0, {REPOSITORY!r})
from execd.proc import spawn
from execd.proc.program_block import pack
from tests.proc import spawning
import json
files = [os.open({str(tmp_path)!r} + f"/file{{n}}", os.O_RDWR) for n in range(3)]
for n, fd in enumerate(files):
    os.dup2(fd, n)
script = '''
import os
links = [os.readlink('/proc/self/fd/%d' % n) for n in range({len(order)})]
open({str(tmp_path / "found")!r}, 'w').write(repr([link[-1] for link in links]))
'''
program = pack([sys.executable, "-I", "-S", "-c", script], {{}}, "/")
pid, *_ = spawning.spawn(program=program, fds={order!r})
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    run_in_new_process(program)
    assert eval((tmp_path / "found").read_text()) == [str(number) for number in order]


def test_a_kept_descriptor_is_the_callers_own_of_that_number(tmp_path: Path) -> None:
    """Also where a further descriptor has a source of the same number."""
    for number in range(3):
        (tmp_path / f"file{number}").touch()
    program = f"""
import os, sys
sys.path.insert(0, {REPOSITORY!r})
from execd.proc import spawn
from execd.proc.program_block import pack
from tests.proc import spawning
files = [os.open({str(tmp_path)!r} + f"/file{{n}}", os.O_RDWR) for n in range(3)]
for n, fd in enumerate(files):
    os.dup2(fd, n)
script = "import os; [os.write(n, b'%d' % n) for n in range(4)]; os.fstat(4)"
argv = [sys.executable, "-I", "-S", "-c", script]
program = pack(argv, {{}}, "/")
pid, *_ = spawning.spawn(program=program, fds=[spawning.KEEP_FD, 2, spawning.KEEP_FD, 0])
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1, "descriptor 4 is closed"
"""
    run_in_new_process(program)
    written = [(tmp_path / f"file{number}").read_text()[:2] for number in range(3)]
    assert written == ["03", "", "12"]


@pytest.mark.linux_only("a terminal of the sandbox has no name in gVisor")
def test_the_controlling_terminal_is_descriptor_0() -> None:
    ours, theirs = os.openpty()
    script = (
        "exec 3<>/dev/tty; echo on the terminal >&3; ps -o tty= -p $$ >&2; "
        "read line; echo got $line"
    )
    pid, *_ = spawning.spawn(
        program=pack(["sh", "-c", script], PATH, "/"),
        fds=[theirs, theirs, theirs],
        controlling_terminal=True,
    )
    name = os.ttyname(theirs).removeprefix("/dev/")
    os.close(theirs)
    os.write(ours, b"a line\n")
    text = b""
    while chunk := _read_terminal(ours):
        text += chunk
    os.close(ours)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"on the terminal" in text
    assert name.encode() in text
    assert b"got a line" in text


def _read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""  # EIO: the peer's end is closed


LIMITS = [
    Limit(resource.RLIMIT_CORE, 0, 0),
    Limit(resource.RLIMIT_NOFILE, 77, 88),
    Limit(resource.RLIMIT_FSIZE, 5 << 20, 6 << 20),
    Limit(resource.RLIMIT_AS, 1 << 31, 1 << 31),
    Limit(resource.RLIMIT_CPU, 7, 8),
]


def test_limits_hold_soft_and_hard() -> None:
    found = python(
        "print(json.dumps({n: resource.getrlimit(n) for n in map(int, "
        "sys.argv[1:] or range(16))}))",
        limits=LIMITS,
    )
    assert all(found[str(limit.resource)] == [limit.soft, limit.hard] for limit in LIMITS)


def test_limits_hold_from_the_first_instruction_under_load() -> None:
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        expected = sh("ulimit -a", limits=LIMITS)
        assert "77" in expected
        for _ in range(200):
            assert sh("ulimit -a", limits=LIMITS) == expected
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_spawning_from_many_threads_at_once_mixes_nothing_up() -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            text = f"{number}-{turn}"
            if (
                found := sh("echo $V $1", env={"V": text, **PATH})
                if turn % 2
                else Ran(["echo", text]).text
            ) != text:
                failures.append(f"{found!r} is not {text!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Failures, and the reporting step of each failure.


def failure(**options: Any) -> StepFailed:
    before = open_descriptors()
    with pytest.raises(StepFailed) as caught:
        Ran(**({"argv": ["true"]} | options))
    assert open_descriptors() == before
    return caught.value


# ``failed_start`` tells E2BIG in gVisor too.
TOO_LONG = errno.ENAMETOOLONG if is_gvisor() else errno.E2BIG


@pytest.mark.parametrize(
    ("options", "step", "error"),
    [
        ({"argv": ["no-such-program-anywhere"]}, "exec", errno.ENOENT),
        ({"argv": ["/no/such/program"]}, "exec", errno.ENOENT),
        ({"argv": ["/etc/passwd"]}, "exec", errno.EACCES),
        ({"argv": ["/"]}, "exec", errno.EACCES),
        ({"argv": [""]}, "exec", errno.EACCES),
        ({"argv": ["true", *["x" * 131_072]]}, "exec", TOO_LONG),
        ({"argv": ["true"], "env": {"V": "x" * 131_072, **PATH}}, "exec", TOO_LONG),
        ({"argv": ["x" * 256]}, "exec", errno.ENAMETOOLONG),
        ({"cwd": "/no/such/directory"}, "cwd", errno.ENOENT),
        ({"cwd": "/etc/passwd"}, "cwd", errno.ENOTDIR),
        ({"cwd": ""}, "cwd", errno.ENOENT),
        ({"limits": [Limit(999, 1, 1)]}, "limits", errno.EINVAL),
        ({"limits": [Limit(resource.RLIMIT_NOFILE, 2, 1)]}, "limits", errno.EINVAL),
        ({"controlling_terminal": True}, "terminal", errno.ENOTTY),
    ],
)
def test_a_step_that_fails_is_named_with_its_error(
    options: dict[str, Any], step: str, error: int
) -> None:
    caught = failure(**options)
    assert (caught.step, caught.errno) == (step, error)
    assert caught.pid is not None, "the failed child is there to be reaped"


def test_a_file_in_no_executable_format_is_said_to_be_that(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fnot a program")
    program.chmod(0o755)
    caught = failure(argv=[str(program)])
    assert (caught.step, caught.errno) == ("exec", errno.ENOEXEC)


def test_a_descriptor_that_is_not_open_fails_in_its_step() -> None:
    with pytest.raises(StepFailed) as caught:
        spawning.spawn(program=pack(["true"], PATH, "/"), fds=[0, 1, 987_654])
    assert (caught.value.step, caught.value.errno) == ("descriptors", errno.EBADF)
    assert caught.value.pid is not None
    os.waitpid(caught.value.pid, 0)


@pytest.mark.parametrize("n_fds", [0, 2, 9])
def test_too_few_or_too_many_descriptors_are_refused_before_any_process_is_made(n_fds: int) -> None:
    with pytest.raises(StepFailed) as caught:
        spawning.spawn(program=pack(["true"], PATH, "/"), fds=[0] * n_fds)
    assert (caught.value.step, caught.value.errno, caught.value.pid) == (
        "request",
        errno.EINVAL,
        None,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"argv": ["a\0b"]},
        {"argv": ["true", "\0"]},
        {"env": {"A": "\0"}},
        {"env": {"A\0B": ""}},
        {"cwd": "/\0/etc"},
        {"env": {"PATH": "/bin\0"}},
    ],
)
def test_a_nul_byte_anywhere_is_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="null byte"):
        Ran(**({"argv": ["true"]} | options))


def test_a_program_is_searched_for_in_the_path_it_will_have(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    for name, mode in ("first", 0o644), ("second", 0o755):
        (tmp_path / name / "program").write_text("#!/bin/sh\necho $0")
        (tmp_path / name / "program").chmod(mode)
    ran = Ran(["program"], env={"PATH": f"/no/such:{tmp_path}/first:{tmp_path}/second:/bin"})
    assert ran.text == f"{tmp_path}/second/program", (
        "a file that may not be run does not end the search"
    )
    assert failure(argv=["program"], env={"PATH": f"{tmp_path}/first"}).errno == errno.EACCES
    assert Ran(["program"], env={"PATH": ""}, cwd=str(tmp_path / "second")).exit_code == 0, (
        "an empty PATH is the current directory"
    )
    assert Ran(["true"], env={}).exit_code == 0, "without a PATH the usual directories are searched"


# Root.


@pytest.mark.root
def test_the_program_is_whom_it_was_told_to_be() -> None:
    def look(identity: Identity) -> list[list[int]]:
        lines = sh("grep -E '^(Uid|Gid|Groups)' /proc/$$/status", identity=identity).splitlines()
        return [[int(number) for number in line.split()[1:]] for line in lines]

    assert look(Identity(1234, 5678, ())) == [[1234] * 4, [5678] * 4, []]
    assert look(Identity(1234, 5678, (7, 8))) == [[1234] * 4, [5678] * 4, [7, 8]]
    assert look(Identity()) == [[0] * 4, [0] * 4, sorted(os.getgroups())]
    assert os.getresuid() == (0, 0, 0), "the parent, whose memory the child borrowed, is who it was"


@pytest.mark.root
def test_the_directory_must_be_one_that_the_user_may_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    caught = failure(cwd=str(tmp_path), identity=Identity(1234, 1234, ()))
    assert (caught.step, caught.errno) == ("cwd", errno.EACCES)


@pytest.mark.not_root
def test_without_privileges_another_identity_fails_in_its_step() -> None:
    for identity in Identity(uid=0), Identity(gid=0), Identity(groups=()):
        caught = failure(identity=identity)
        assert (caught.step, caught.errno) == ("user", errno.EPERM)


# A program in the place of a shell.

SHELL = ["/bin/sh", "-c", "echo by the shell; echo $PATH"]


def test_a_direct_program_has_its_own_arguments_and_the_variables_it_names(
    tmp_path: Path,
) -> None:
    env = {"A": "1", "PATH": "/nonexistent:/usr/bin:/bin", "B": "2", "E": ""}
    direct = DirectProgram(["env", "-0"], ["B", "_", "X=3", "PWD", "E", "PATH"])
    ran = Ran(SHELL, env=env, cwd=str(tmp_path), direct=direct)
    assert ran.started.is_direct
    assert ran.text.split("\0") == [
        "B=2",
        "_=/usr/bin/env",
        "X=3",
        f"PWD={tmp_path.resolve()}",
        "E=",
        f"PATH={env['PATH']}",
        "",
    ]


def test_variables_of_the_shell_are_not_made_up_where_there_are_some() -> None:
    env = {"PATH": "/usr/bin:/bin", "PWD": "here", "_": "there"}
    direct = DirectProgram(["env"], ["PWD", "_"])
    assert sorted(Ran(SHELL, env=env, direct=direct).text.splitlines()) == ["PWD=here", "_=there"]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.write_text("#!/bin/sh\n"),
        lambda path: (path.write_text("echo"), path.chmod(0o755)),
        lambda path: (path.write_text("#!/nonexistent/x\n"), path.chmod(0o755)),
        lambda path: os.mkfifo(path, 0o755),
        lambda path: path.symlink_to(path),
    ],
)
def test_a_direct_program_that_cannot_be_executed_leaves_the_start_to_the_shell(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "program")
    for name, path in (("program", str(tmp_path)), (f"{tmp_path}/program", "/bin")):
        direct = DirectProgram([name], ["A", "PWD", "_"])
        # The program that a later directory has is the shell's to find.
        env = {"PATH": f"{path}:/usr/bin:/bin", "A": "1"}
        ran = Ran(SHELL, env=env, direct=direct)
        assert not ran.started.is_direct
        assert ran.text == f"by the shell\n{env['PATH']}"


def test_a_missing_shell_beside_a_missing_direct_program_is_the_failure() -> None:
    direct = DirectProgram(["nosuchprogram"], [])
    with pytest.raises(StepFailed) as caught:
        Ran(["/nonexistent/sh"], direct=direct)
    assert (caught.value.step, caught.value.errno) == ("exec", errno.ENOENT)


def test_a_direct_program_is_not_started_where_an_earlier_step_fails() -> None:
    direct = DirectProgram(["true"], [])
    with pytest.raises(StepFailed) as caught:
        Ran(SHELL, cwd="/nonexistent", direct=direct)
    assert caught.value.step == "cwd"


@pytest.mark.parametrize("entry", ["NOSUCH", "", "A=\0"])
def test_an_entry_that_no_environment_has_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match=r"variable|null"):
        Ran(SHELL, direct=DirectProgram(["true"], [entry]))


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\0" * 24,
        struct.pack("=6I", 1, 1, 0, 0, 0, 0) + b"/\0/bin/true\0true",  # no NUL at the end
        struct.pack("=6I", 1, 1, 1, 0, 0, 0) + b"/\0/bin/true\0true\0",  # a string too few
        struct.pack("=6I", 1, 1, 0, 0, 0, 0) + b"/\0/bin/true\0true\0x\0",  # one too many
        struct.pack("=6I", 0, 1, 0, 0, 0, 0) + b"/\0true\0",  # no path
        struct.pack("=6I", 1, 0, 0, 0, 0, 0) + b"/\0/bin/true\0",  # no arguments
        struct.pack("=6I", 1, 1, 0, 0, 1, 0) + b"/\0/bin/true\0true\0true\0",
        struct.pack("=6I", 1, 1, 0, 1, 1, 1) + b"/\0/t\0t\0/t\0t\0_\0",  # no "_=path"
        struct.pack("=6I", *[2**32 - 1] * 6) + b"/\0/bin/true\0true\0",
    ],
)
def test_a_block_that_nobody_packs_is_refused_before_any_process_is_made(block: bytes) -> None:
    with pytest.raises(StepFailed) as caught:
        spawning.spawn(program=block, fds=[0, 1, 2])
    assert (caught.value.step, caught.value.errno, caught.value.pid) == (
        "request",
        errno.EINVAL,
        None,
    )


# The start of the warden: ``clone``.


def clone(**options: Any) -> int:
    return spawn.clone(
        **(
            {
                "argv": ["/bin/sh", "-c", "true"],
                "env": PATH,
                "socket": 2,
                "clone_flags": 0,
                "id_maps": {},
                "unshare_mounts": False,
                "covers": [],
                "cover_dirs": [],
                "cover_links": [],
            }
            | options
        )
    )


def namespaces() -> dict[str, Any]:
    """Return flags and maps allowed for this user."""
    if os.geteuid() == 0:
        return {"clone_flags": spawn.CLONE_NEWPID, "unshare_mounts": True}
    maps = {
        "setgroups": "deny",
        "gid_map": f"{os.getegid()} {os.getegid()} 1",
        "uid_map": f"{os.geteuid()} {os.geteuid()} 1",
    }
    return {
        "clone_flags": spawn.CLONE_NEWUSER | spawn.CLONE_NEWPID,
        "id_maps": maps,
        "unshare_mounts": True,
    }


def said_by_clone(script: str, **options: Any) -> str:
    """Return the bytes written by the program to descriptor 3."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        pid = clone(
            argv=["/bin/sh", "-c", f"exec >&3 2>&1; {script}"], socket=theirs.fileno(), **options
        )
        theirs.close()
        text = b""
        while data := ours.recv(4096):
            text += data
        os.waitpid(pid, 0)
    return text.decode().strip()


def test_a_clone_keeps_its_standard_descriptors_and_the_socket_only() -> None:
    assert said_by_clone("ls /proc/$$/fd").split() == ["0", "1", "2", "3"]
    assert said_by_clone("readlink /proc/$$/fd/0").split() == ["/dev/null"]


def test_in_namespaces_it_is_the_first_process_and_sees_no_other() -> None:
    assert said_by_clone("echo $$; cd /proc; ls -d [0-9]*", **namespaces()).split()[:2] == [
        "1",
        "1",
    ]


def test_in_namespaces_it_is_still_the_same_user() -> None:
    assert said_by_clone("id -u; id -g", **namespaces()).split() == [
        str(os.geteuid()),
        str(os.getegid()),
    ]


def test_a_cover_hides_a_directory_and_shows_what_was_asked_for_read_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    script = (
        f"cd {tmp_path}; ls; readlink bin/python; touch x; rm bin/python; "
        f"umount {tmp_path}; cat secret"
    )
    text = said_by_clone(
        script,
        **namespaces(),
        covers=[str(tmp_path)],
        cover_dirs=[f"{tmp_path}/bin"],
        cover_links=[(f"{tmp_path}/bin/python", "/usr/bin/python3")],
    )
    assert text.splitlines()[:2] == ["bin", "/usr/bin/python3"]
    assert text.count("Read-only file system") == 2
    if os.geteuid() != 0:  # root may: the warden drops the capabilities of commands
        assert "cat: secret: No such file" in text
    assert os.listdir(tmp_path) == ["secret"], "outside, nothing has changed"


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"argv": ["/no/such/program"]}, "exec"),
        ({"socket": 987_654}, "descriptors"),
        ({**namespaces(), "covers": ["/no/such/directory"]}, "cover"),
        ({**namespaces(), "covers": ["/tmp"], "cover_dirs": ["/tmp/a/b"]}, "cover_content"),
        ({**namespaces(), "covers": ["/tmp"], "cover_links": [("/tmp/a/b", "/")]}, "cover_content"),
        (
            {"clone_flags": spawn.CLONE_NEWUSER, "id_maps": {"gid_map": "not a map"}},
            "id_map",
        ),
        ({"clone_flags": 0x10000}, "fork"),  # CLONE_THREAD, alone: EINVAL
    ],
)  # fmt: skip
def test_a_clone_whose_set_up_fails_says_at_which_step_and_leaves_one_child_to_reap(
    options: dict[str, Any], step: str
) -> None:
    before = open_descriptors()
    with pytest.raises(StepFailed) as caught:
        clone(**options)
    assert caught.value.step == step
    if step == "fork":
        assert caught.value.pid is None
    else:
        assert caught.value.pid is not None
        assert os.waitstatus_to_exitcode(os.waitpid(caught.value.pid, 0)[1]) == 127
    assert open_descriptors() == before


@pytest.mark.not_root
def test_without_a_user_namespace_an_unprivileged_clone_fails() -> None:
    with pytest.raises(StepFailed) as caught:
        clone(clone_flags=spawn.CLONE_NEWPID)
    assert (caught.value.step, caught.value.errno) == ("fork", errno.EPERM)
    with pytest.raises(StepFailed) as caught:
        clone(unshare_mounts=True)
    assert (caught.value.step, caught.value.errno) == ("mount_namespace", errno.EPERM)
    assert caught.value.pid is not None
    os.waitpid(caught.value.pid, 0)


def test_the_steps_have_the_names_that_the_c_code_gives_them() -> None:
    with open(os.path.join(os.path.dirname(spawn.__file__), "_spawn.h")) as file:
        declared = file.read().partition("enum step {")[2].partition("}")[0].replace("\n", " ")
    assert (
        tuple(
            name.strip().removeprefix("STEP_").lower()
            for name in declared.split(",")
            if name.strip()
        )
        == spawn.STEP_NAMES
    )


UNDUMPABLE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from execd.proc import spawn
spawn.set_undumpable()
print("ready", flush=True)
input()
"""


@pytest.mark.not_root
@pytest.mark.linux_only("gVisor does not close /proc/PID/fd of an undumpable process")
def test_an_undumpable_process_is_closed_to_others_of_the_same_user() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(spawn.__file__)))
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", UNDUMPABLE, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for name in "environ", "fd", "mem":
            with pytest.raises(PermissionError):
                os.close(os.open(f"/proc/{child.pid}/{name}", os.O_RDONLY))


SUBREAPER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from execd.proc import spawn
spawn.set_subreaper()
read_end, write_end = os.pipe()
child = os.posix_spawn(
    "/bin/sh", ["sh", "-c", "(echo $$; exec sleep 0.01) & exit 3"], {},
    file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1)],
)
ended = {os.wait()[1] for _ in range(2)}
print(sorted(map(os.waitstatus_to_exitcode, ended)))
"""


def test_a_subreaper_inherits_orphans() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(spawn.__file__)))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SUBREAPER, root],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.strip() == "[0, 3]"


def test_a_spawn_leaves_nothing_behind() -> None:
    before = open_descriptors()
    for _ in range(300):
        assert Ran(["true"]).exit_code == 0
        failure(argv=["/no/such/program"])
    assert open_descriptors() == before


@pytest.mark.root
def test_a_thread_that_acts_as_a_user_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    os.chmod(tmp_path, 0o755)
    seen: dict[str, object] = {}

    def act() -> None:
        spawn.act_as(Identity(1234, 5678, ()))
        try:
            secret.open().close()
        except PermissionError as error:
            seen["refused"] = error.errno
        with open("/proc/thread-self/status") as status:
            seen.update(
                line.rstrip("\n").split(":\t", 1)
                for line in status
                if line.startswith(("Uid", "Gid", "CapEff"))
            )

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    # The real and saved ids are still root's: processes of the user can neither signal nor trace
    # the thread.
    assert seen == {
        "refused": errno.EACCES,
        "Uid": "0\t1234\t0\t1234",
        "Gid": "0\t5678\t0\t5678",
        "CapEff": "0" * 16,
    }
    assert (os.geteuid(), os.getegid()) == (0, 0)
    secret.open().close()
