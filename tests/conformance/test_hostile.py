"""Code that means harm. Only a daemon that keeps user code in a PID namespace can promise to stand
all of these attacks.

Without a namespace the signals would end every process of this machine. So a test sends a command
only after two checks. The daemon has reported a namespace, *and* the suite has seen that a process
of this machine is not visible from inside.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ..patience import patience
from .conftest import python
from .target import execute_bytes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from .conftest import Run
    from .target import Target

PING_LIMIT_SECONDS = 5.0
"""The warden is declared dead after this; until then commands may have to wait, ``GET /`` never."""
PAUSE_SECONDS = 0.05


@contextmanager
def probing(client: httpx.Client) -> Iterator[None]:
    """Asks ``GET /`` again and again meanwhile: each answer must come at once."""
    stop = threading.Event()
    slowest, faults = [0.0], []

    def probe() -> None:
        while not stop.wait(PAUSE_SECONDS):
            started = time.monotonic()
            try:
                response = client.get("/")
                if response.status_code != 200:
                    faults.append(f"HTTP {response.status_code}")
            except Exception as error:  # every failure to answer counts, of any class
                faults.append(repr(error))
            slowest[0] = max(slowest[0], time.monotonic() - started)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not faults
    assert slowest[0] < patience(1)


def assert_works_again(run: Run) -> None:
    """Commands run again within the ping limit. Until then a clear refusal (never a lie) is
    allowed."""

    def works() -> bool:
        response = run.client.post("/execute", json={"command": "echo works"})
        assert response.status_code in (200, 429, 503), response.text
        return response.status_code == 200 and response.json()["stdout"] == "works\n"

    wait_until(works, PING_LIMIT_SECONDS + 2, "commands work again")


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize(
    "command",
    [
        "kill -9 1",
        "kill -STOP 1",
        "kill -TERM 1",
        "kill -SEGV 1",
        "kill -9 -1",
        "kill -STOP -1",
        "trap '' TERM; kill -TERM -1; sleep 0.2",
        "kill -9 -- -$$",
        "for s in 1 2 3 6 10 11 12 14 15 18 19 20 21 22 9; do kill -$s 1; done",
    ],
)
def test_signal_at_everything_in_reach_stops_the_daemon_at_nothing(
    run: Run, client: httpx.Client, command: str
) -> None:
    with probing(client):
        ran = run(command, timeout_seconds=20)
        assert ran.exit_reason in ("exited", "signaled", "init_killed", "timeout")
        assert_works_again(run)


@pytest.mark.usefixtures("confined")
def test_commands_run_after_user_code_has_raised_the_nice_value_of_everything(
    own_daemon: Callable[..., Target],
) -> None:
    """setpriority(2) needs no more than the same user, and protects no init of a namespace."""
    daemon = own_daemon()
    slow_all = (
        "import os\n"
        "for name in os.listdir('/proc'):\n"
        "    try: os.setpriority(os.PRIO_PROCESS, int(name), 19)\n"
        "    except (ValueError, OSError): pass\n"
    )
    for command, stdout in ((python(slow_all), ""), ("echo works", "works\n")):
        [answer] = daemon.request_at_once([execute_bytes(command)])
        done = answer.json()
        assert (done["exit_code"], done["stdout"]) == (0, stdout), done


@pytest.mark.usefixtures("confined")
def test_death_of_the_namespace_is_reported_to_everyone_it_hits(
    run: Run, client: httpx.Client, marker: str
) -> None:
    with probing(client):
        ran = run(
            f"kill -9 1; sleep 0.2; [ -d /proc/1 ] && kill -9 1; sleep {marker}", timeout_seconds=3
        )
        # A kernel that protects a namespace's init leaves the command running to its limit; gVisor
        # does not protect the init.
        assert ran.exit_reason in ("init_killed", "timeout")
        assert ran.exit_code != 0
        assert_works_again(run)
        assert run.count_alive(marker) == 0


@pytest.mark.usefixtures("confined")
def test_program_that_kills_by_ordinary_names_hits_nothing_of_execd(
    run: Run, client: httpx.Client, marker: str
) -> None:
    """As pkill -9, pkill -9 -f and killall -9 do, with nearly all that users call their own."""
    words = "python execd jupyter kernel zygote worker session warden sandbox server init main sh"
    program = f"""
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        names = open(f"/proc/{{pid}}/comm").read() + open(f"/proc/{{pid}}/cmdline").read()
    except OSError:
        continue
    if int(pid) not in (os.getpid(), os.getppid()) and any(w in names for w in {words.split()}):
        os.kill(int(pid), 9)
print("after")
"""
    path = f"/v1/sessions/{secrets.token_hex(8)}"
    execute = f"{path}/execute?create=true"
    client.post(execute, json={"code": "x = 41"}).raise_for_status()
    run(f"setsid sleep {marker} > /dev/null 2>&1 &")
    assert run.python(program).stdout == "after\n"
    assert run.count_alive(marker) == 1
    kept = client.post(execute, json={"code": "x"}).json()
    assert (kept["result"]["data"], kept["state_lost"]) == ({"text/plain": "41"}, False)
    client.delete(path).raise_for_status()
    fresh = client.post("/v1/code", json={"code": "6 * 7"}).json()
    assert fresh["result"]["data"] == {"text/plain": "42"}


@pytest.mark.usefixtures("confined")
def test_daemon_is_not_among_the_processes(run: Run) -> None:
    program = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        print(pid, open(f"/proc/{pid}/cmdline").read().replace(chr(0), " "))
    except OSError as error:
        print(pid, error.strerror)
"""
    lines = run.python(program).stdout.splitlines()
    assert not [line for line in lines if " serve" in line]
    assert len(lines) < 50


@pytest.mark.usefixtures("confined")
def test_environment_and_descriptors_of_the_daemon_are_out_of_reach(
    run: Run, target: Target
) -> None:
    program = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    for name in ("environ", "maps", "cmdline"):
        try: print(open(f"/proc/{pid}/{name}", errors="replace").read())
        except OSError: pass
    try: links = os.listdir(f"/proc/{pid}/fd")
    except OSError: continue
    for number in links:
        try: print("fd", os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError: pass
"""
    found = run.python(program).stdout
    assert "EXECD_CONFORMANCE_SECRET" not in found
    assert target.secret is None or target.secret not in found
    assert target.state_dir is None or f"fd {target.state_dir}" not in found


@pytest.mark.usefixtures("confined")
def test_state_dir_shows_nothing_to_commands(run: Run, target: Target) -> None:
    if target.state_dir is None:
        pytest.skip("the daemon's state dir is not known here (EXECD_STATE_DIR)")
    run("yes | head -c 5000000")
    # Links may be there: PATH leads to a link for python. No file of the daemon is there, and
    # nobody can put a file there.
    look = f"find {target.state_dir} ! -type d ! -type l"
    assert run(look).stdout == ""
    assert run(f"umount {target.state_dir}").exit_code != 0
    assert run(f"umount -l {target.state_dir}").exit_code != 0
    assert run(look).stdout == ""
    run(f"echo planted > {target.state_dir}/planted")
    assert not os.path.exists(f"{target.state_dir}/planted")


@pytest.mark.usefixtures("confined")
def test_commands_hold_no_capabilities_to_undo_this(run: Run) -> None:
    assert run("unshare --mount true && mount -t tmpfs tmpfs /mnt").exit_code != 0
    ran = run("umount /proc && ls /proc")
    assert ran.exit_code != 0


FORK_BOMB = "i=0; while [ $i -lt 700 ]; do sleep {marker} & i=$((i+1)); done; wait"
"""Bounded, so that a daemon without a limit fails the test but not the machine."""


@pytest.mark.both_shapes
def test_fork_bomb_ends_at_the_process_limit(run: Run, client: httpx.Client, marker: str) -> None:
    with probing(client):
        for _ in range(5):
            ran = run(FORK_BOMB.format(marker=marker), timeout_seconds=60)
            # Without namespaces the kernel counts the user's processes (RLIMIT_NPROC), the bombs of
            # other tests too.
            if "Cannot fork" not in ran.stderr:
                break
            run.kill_marked(marker)  # the shell has ended, and what it started lives on
    assert ran.exit_reason == "process_limit", ran.body
    assert ran.exit_code != 0
    assert not ran.timed_out
    wait_until(lambda: run.count_alive(marker) == 0, 10, "its processes are gone")
    assert run("echo hi").stdout == "hi\n"


def answer_to_a_bomb(run: Run, target: Target, marker: str) -> bytes | None:
    """Run a command beside 250 processes of another; None. If the other ends before, return the
    answer to the other."""
    with target.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.settimeout(None)  # the wait below has the limit
        connection.sendall(execute_bytes(FORK_BOMB.format(marker=marker).replace("700", "250")))
        answer = pool.submit(connection.recv, 1 << 16)
        try:
            wait_until(
                lambda: answer.done() or run.count_alive(marker) >= 250,
                180,  # a shell that may not fork waits for up to 15 s and tries again
                "250 processes of one command",
            )
            if answer.done():
                return answer.result()
            ran = run("for i in 1 2 3 4 5 6 7 8; do sleep 0.1 & done; wait; echo fine")
            assert (ran.stdout, ran.exit_code) == ("fine\n", 0)
            return None
        finally:
            connection.shutdown(socket.SHUT_RDWR)  # the reader's end


def test_fork_bomb_of_one_does_not_starve_another(run: Run, target: Target, marker: str) -> None:
    # Not in the shape without namespaces: there the kernel counts all processes of the user
    # (RLIMIT_NPROC), the bombs of other tests too, and refuses the forks of this one.
    answer = answer_to_a_bomb(run, target, marker)
    assert answer is None, f"the bomb ended: {answer!r}"
    wait_until(lambda: run.count_alive(marker) == 0, 10, "its processes are gone")


SAFE = 'case "$PWD" in /|/root|/home|/tmp|/usr|/etc) exit 99;; esac; '
"""Never delete a directory that nobody would give to a sandbox, whatever the daemon's settings."""


@pytest.mark.own_image
@pytest.mark.both_shapes
@pytest.mark.parametrize(
    "how",
    [
        "find . -mindepth 1 -delete",
        'rm -rf -- "$PWD"',
        'find . -mindepth 1 -delete; mv "$PWD" "$PWD.moved"',
    ],
)
def test_next_step_is_served_after_everything_is_deleted(
    run: Run, client: httpx.Client, how: str
) -> None:
    base = run.out("pwd -P").strip()
    run.out("echo data > left; mkdir -p deep/er")
    assert run(SAFE + how).exit_code in (0, 1)
    assert run("pwd -P").stdout.strip() == base
    assert client.post("/upload", files={"file": ("a.py", b"print(6 * 7)")}).status_code == 200
    assert run.out("python a.py") == "42\n"
    # A sandbox without a /tmp keeps a /tmp in the base dir.
    assert {entry["name"] for entry in client.get("/list/.").json()} - {".tmp"} == {"a.py"}
    run('rm -rf "$PWD.moved" a.py')


@pytest.mark.own_image
@pytest.mark.both_shapes
def test_everything_deleted_by_python_as_in_the_ray_example(run: Run, client: httpx.Client) -> None:
    client.post(
        "/upload",
        files={"file": ("agent_action.py", b"import os\nos.system('rm -rf ./*')\nexit(1)")},
    )
    assert run("python agent_action.py").exit_code == 1
    client.post("/upload", files={"file": ("agent_action.py", b"print(55)")})
    assert run.out("python agent_action.py") == "55\n"


@pytest.mark.both_shapes
def test_folder_turned_read_only_gets_a_clear_answer(
    run: Run, client: httpx.Client, folder: str
) -> None:
    if run.out("id -u").strip() == "0":
        pytest.skip("modes do not bind root")
    run.out(f"chmod 555 {folder}")
    response = client.post("/upload", files={"file": (f"{folder}/new", b"x")})
    assert response.status_code in (403, 409, 500, 507)
    assert response.json()["message"]
    run.out(f"chmod 755 {folder}")
    assert client.post("/upload", files={"file": (f"{folder}/new", b"x")}).status_code == 200
