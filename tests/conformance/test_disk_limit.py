"""A command that fills the base dir or /tmp, with a daemon that guards both. Each test has a daemon
to itself: a full directory would be in the way of other tests.

The writers are slow where a decision is due, so that the bounds below hold on a busy machine too. A
writer at full speed ends fuller.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from ..patience import patience
from .conftest import python
from .target import LAUNCHER, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .target import Target

MIB = 1 << 20
LIMIT_MIB = 64
USABLE_MIB = 56  # without the reserve of an eighth
FAST_MIB = 48
"""From there on a writer is slow, and takes 4.8 s for the reserve. Beside busy loops and other
tests a decision once took more than 2.4 s."""

WRITE = """
import os, time
file = open(PATH, "wb")
for number in range(COUNT):
    file.write(bytes(1 << 20))
    file.flush()
    time.sleep(0.02 if number < FAST else PAUSE)
print("written")
"""


def writing(path: str, mib: int, fast_mib: int = FAST_MIB, pause_seconds: float = 0.6) -> str:
    program = WRITE.replace("PATH", repr(path)).replace("COUNT", str(mib))
    return program.replace("FAST", str(fast_mib)).replace("PAUSE", str(pause_seconds))


class Pod:
    def __init__(self, daemon: Target) -> None:
        self.daemon = daemon

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        body = json.dumps(fields).encode()
        return self.daemon.request("POST", path, body, {"Content-Type": "application/json"}).json()

    def run(self, command: str, **fields: Any) -> dict[str, Any]:
        return self.post("/v1/executions", command=command, **fields)

    def fill(
        self, path: str, mib: int, fast_mib: int = FAST_MIB, pause_seconds: float = 0.6
    ) -> dict[str, Any]:
        program = writing(path, mib, fast_mib, pause_seconds)
        return self.run(python(program), timeout_seconds=90)

    def read(self, execution_id: str) -> dict[str, Any]:
        return json.loads(self.daemon.request("GET", f"/v1/executions/{execution_id}").content)

    def wait(self, execution_id: str) -> dict[str, Any]:
        path = f"/v1/executions/{execution_id}?wait_seconds=60"
        return json.loads(self.daemon.request("GET", path).content)

    def used_mib(self, directory: str = ".") -> int:
        done = self.run(f"du -sxm {directory}")
        assert done["exit_reason"] == "exited", done
        return int(done["stdout"].split()[0])


@pytest.fixture
def pod(own_daemon: Callable[..., Target]) -> Pod:
    return Pod(own_daemon(EXECD_BASE_DIR_BYTES=str(LIMIT_MIB * MIB)))


def assert_ended(done: dict[str, Any], place: str = "the base dir") -> None:
    assert (done["state"], done["exit_reason"], done["exit_code"], done["signal"]) == (
        "EXITED",
        "disk_limit",
        137,
        "SIGKILL",
    ), done
    told = re.match(
        rf"{place} held (\d+) MiB of the allowed {LIMIT_MIB} MiB, and this program ",
        done["message"],
    )
    assert told, done["message"]
    assert USABLE_MIB <= int(told[1]) <= LIMIT_MIB


def test_command_that_fills_the_base_dir_ends_with_room_left_and_its_neighbour_does_not(
    pod: Pod,
) -> None:
    neighbour = pod.run(python("import sys; sys.stdin.read()"), stdin_open=True, detach=True)["id"]
    done = pod.fill("big", 600)
    assert_ended(done)
    assert done["stdout"] == ""
    assert USABLE_MIB <= pod.used_mib() < LIMIT_MIB
    pod.daemon.request("POST", f"/v1/executions/{neighbour}/stdin?eof=true")
    assert pod.wait(neighbour)["exit_reason"] == "exited"
    limit = f'"limit":{{"base_dir_bytes":{LIMIT_MIB * MIB}}}'
    wait_until(lambda: limit in pod.daemon.log_text(), 10, "the log tells the limit")


def test_choice_of_the_command_is_called_a_guess_where_the_kernel_does_not_tell(pod: Pod) -> None:
    """gVisor counts what a program writes, and not where to."""
    done = pod.fill("big", 600)
    assert_ended(done)
    on_a_disk = pod.run("stat -f -c %T .")["stdout"].strip() not in ("tmpfs", "ramfs")
    probe = "open('probe', 'w').write('x' * 10**6); print(open('/proc/self/io').read())"
    counts = re.search(r"\nwrite_bytes: [1-9]", pod.run(python(probe))["stdout"])
    is_told = on_a_disk and counts is not None
    assert ("a guess" in done["message"]) is not is_told


@pytest.mark.timed
def test_crossing_among_10_000_files_is_found_within_15_s(
    pod: Pod, timed: Callable[[float, float], None]
) -> None:
    """The program says when the crossing begins, because the end may come at once, and goes on for
    another minute."""
    program = (
        "import os, time\n"
        "for directory in range(10):\n"
        "    os.mkdir(str(directory))\n"
        "    for name in range(1000):\n"
        "        open(f'{directory}/{name}', 'wb').close()\n"
        + writing("big", USABLE_MIB - 4, USABLE_MIB - 4).replace("print(", "# print(")
        + "print(time.time(), flush=True)\n"
        "file.write(bytes(5 << 20))\n"
        "file.flush()\n"
        "for number in range(600):\n"
        "    file.write(bytes(1 << 15 if number < 150 else 1))\n"
        "    file.flush()\n"
        "    time.sleep(0.1)\n"
    )
    done = pod.run(f"cat > program.py << 'END'\n{program}\nEND\npython3 program.py")
    assert_ended(done)
    ended_at = datetime.fromisoformat(done["ended_at"]).timestamp()
    timed(ended_at - float(done["stdout"]), 15)


def test_30_000_small_files_are_seen_in_time(own_daemon: Callable[..., Target]) -> None:
    """A walk over so many files takes longer than the program needs for the rest of the room."""
    limit_mib = 256
    pod = Pod(own_daemon(EXECD_BASE_DIR_BYTES=str(limit_mib * MIB)))
    program = (
        "import os, time\n"
        "for number in range(30_000):\n"
        "    if number % 1000 == 0:\n"
        "        os.mkdir(str(number))\n"
        "    with open(f'{number // 1000 * 1000}/{number}', 'wb') as file:\n"
        "        file.write(bytes(12 << 10))\n"
        "    if number % 50 == 0:\n"
        "        time.sleep(0.01 if number < 18_000 else 0.06)\n"
    )
    done = pod.run(f"cat > program.py << 'END'\n{program}\nEND\npython3 program.py")
    assert done["exit_reason"] == "disk_limit", done
    # Other tests write to this file system meanwhile. Where walks are slow their growth counts, up
    # to what the program itself has written: the end may come before seven eighths are full.
    assert limit_mib // 2 <= pod.used_mib() < limit_mib


def test_programs_that_write_nothing_outlive_a_crossing(pod: Pod) -> None:
    """The file comes faster than the guard looks, so nobody may be left who wrote the file."""
    sleeper = pod.run("echo begun; sleep 250", detach=True, timeout_seconds=300)["id"]
    pod.run("mkdir many && cd many && touch $(seq 2000)")
    for _ in range(3):
        pod.run(f"head -c {60 * MIB} /dev/zero > many/big")
        wait_until(lambda: "nearly full" in pod.daemon.log_text(), 30, "the crossing is seen")
        assert pod.run("sleep 1")["exit_reason"] == "exited"
        assert pod.run("rm -rf many")["exit_reason"] == "exited"
        assert pod.run("mkdir many")["exit_reason"] == "exited"
    assert pod.read(sleeper)["state"] == "RUNNING"
    assert pod.post(f"/v1/executions/{sleeper}/kill")["exit_reason"] == "canceled"


def test_writer_that_no_figure_of_the_kernel_shows_ends_too(pod: Pod) -> None:
    """fallocate(2) writes nothing. The second decision goes by the CPU time."""
    sleeper = pod.run("echo begun; sleep 250", detach=True, timeout_seconds=300)["id"]
    program = (
        "import os, time\n"
        "file = os.open('big', os.O_CREAT | os.O_WRONLY)\n"
        "for mib in range(600):\n"
        "    os.posix_fallocate(file, mib << 20, 1 << 20)\n"
        "    until = time.monotonic() + (0.02 if mib < 48 else 0.6)\n"
        "    while time.monotonic() < until:\n"
        "        pass\n"
    )
    assert_ended(pod.run(python(program), timeout_seconds=60))
    assert pod.read(sleeper)["state"] == "RUNNING"
    pod.post(f"/v1/executions/{sleeper}/kill")


def test_many_small_writers_in_one_tree_are_guilty_together(pod: Pod) -> None:
    command = (
        "i=0; while [ $i -lt 600 ]; do head -c 1048576 /dev/zero > f$i; "
        "i=$((i+1)); [ $i -lt 48 ] || sleep 0.6; done"
    )
    assert_ended(pod.run(command, timeout_seconds=60))
    assert pod.used_mib() < LIMIT_MIB


def test_full_base_dir_lets_commands_run_and_make_room(pod: Pod) -> None:
    assert_ended(pod.fill("big", 600))
    small = pod.run("echo small > small && cat small")
    assert (small["exit_reason"], small["stdout"]) == ("exited", "small\n")
    # Each crossing leaves half of the rest, so the second writer is slower: the guard has the time.
    assert_ended(pod.fill("more", 600, fast_mib=0, pause_seconds=2.0))
    assert pod.used_mib() < LIMIT_MIB
    assert pod.run("rm -f big more")["exit_code"] == 0
    again = pod.fill("again", 20)
    assert (again["exit_reason"], again["stdout"]) == ("exited", "written\n")


def test_detached_command_that_fills_the_base_dir_ends_too(pod: Pod) -> None:
    made = pod.run(python(writing("big", 600)), detach=True, timeout_seconds=60)
    assert_ended(pod.wait(made["id"]))


def test_canceled_command_that_writes_on_loses_its_grace_and_its_neighbour_lives(pod: Pod) -> None:
    neighbour = pod.run(python("import sys; sys.stdin.read()"), stdin_open=True, detach=True)["id"]
    stubborn = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)"
    )
    command = f"exec {python(stubborn + writing('big', 600))}"
    made = pod.run(command, detach=True, timeout_seconds=90)["id"]
    wait_until(lambda: pod.read(made)["stdout"] == "on\n", 30, "SIGTERM is ignored")
    done = pod.post(f"/v1/executions/{made}/kill", grace_seconds=60)
    assert (done["exit_reason"], done["signal"]) == ("canceled", "SIGKILL")
    assert done["duration_seconds"] < patience(25)
    assert pod.used_mib() < LIMIT_MIB
    pod.daemon.request("POST", f"/v1/executions/{neighbour}/stdin?eof=true")
    assert pod.wait(neighbour)["exit_reason"] == "exited"


def test_what_an_ended_command_left_running_ends_when_it_fills_the_base_dir(pod: Pod) -> None:
    left = pod.run(f"{python(writing('big', 600))} > /dev/null 2>&1 & echo left")
    assert (left["exit_reason"], left["stdout"]) == ("exited", "left\n")
    wait_until(lambda: '"has_ended_tree":true' in pod.daemon.log_text(), 60, "a tree has ended")
    wait_until(lambda: pod.run("pgrep -f '[b]ytes.1 << 20'")["exit_code"] == 1, 20, "it is gone")
    assert pod.used_mib() < LIMIT_MIB


def test_cell_that_fills_the_base_dir_ends_with_its_session(pod: Pod) -> None:
    pod.post("/v1/code", session_id="s", code="x = 1")
    done = pod.post("/v1/code", session_id="s", code=writing("big", 600), timeout_seconds=60)
    assert_ended(done)
    after = pod.post("/v1/code", session_id="s", code="x")
    assert (after["state_lost"], after["error"]["name"]) == (True, "NameError")


# Alone, because a file that another test deletes on the same file system would hide growth.
@pytest.mark.alone
def test_files_behind_mode_000_count_too(pod: Pod) -> None:
    done = pod.run(
        f"mkdir closed && {python(writing('closed/big', 600))} & "
        "until [ -s closed/big ]; do sleep 0.05; done; chmod 000 closed; wait $!; exit $?",
        timeout_seconds=60,
    )
    assert done["exit_reason"] == "disk_limit", done
    pod.run("chmod 700 closed")
    # Growth of the machine's other programs counts as well: the command may end early.
    assert pod.used_mib() < LIMIT_MIB


def test_upload_over_the_limit_of_the_base_dir_is_507_and_leaves_nothing(pod: Pod) -> None:
    made = pod.daemon.request("PUT", "/v1/files/first", bytes(30 * MIB))
    assert made.http_status in (201, 204)
    refused = pod.daemon.request("PUT", "/v1/files/second", bytes(30 * MIB))
    assert (refused.http_status, refused.json()["code"]) == (507, "NO_SPACE")
    assert f"of the allowed {LIMIT_MIB} MiB" in refused.json()["message"]
    copied = pod.post("/v1/fs/copy", src="first", dest="second")
    assert copied["code"] == "NO_SPACE"
    assert pod.run("ls -A")["stdout"] == "first\n"
    assert pod.run("rm first")["exit_code"] == 0
    assert pod.daemon.request("PUT", "/v1/files/second", bytes(30 * MIB)).http_status in (201, 204)


def test_uploads_end_no_command(pod: Pod) -> None:
    neighbour = pod.run(python("import sys; sys.stdin.read()"), stdin_open=True, detach=True)["id"]
    for number in range(60):
        pod.daemon.request("PUT", f"/v1/files/{number}", bytes(MIB))
    # du counts the directory too, and rounds up.
    assert USABLE_MIB - 2 <= pod.used_mib() <= USABLE_MIB + 1
    pod.daemon.request("POST", f"/v1/executions/{neighbour}/stdin?eof=true")
    assert pod.wait(neighbour)["exit_reason"] == "exited"


@pytest.mark.skipif(not LAUNCHER, reason="/tmp is this machine's")
def test_command_that_fills_tmp_ends_too(own_daemon: Callable[..., Target]) -> None:
    pod = Pod(own_daemon(EXECD_TMP_DIR_BYTES=str(LIMIT_MIB * MIB)))
    assert_ended(pod.fill("/tmp/big", 600), place="/tmp")
    assert pod.used_mib("/tmp") < LIMIT_MIB
    assert pod.run("rm /tmp/big")["exit_code"] == 0


def test_capabilities_tell_whether_a_directory_is_guarded(pod: Pod) -> None:
    pod.run("head -c 5000000 /dev/zero > file; sleep 0.1")
    found = pod.daemon.capabilities(afresh=True)["disk"]
    used_bytes = found["base_dir"].pop("used_bytes")
    assert used_bytes is None or used_bytes >= 0
    assert found == {
        "base_dir": {
            "guarded": True,
            "limit_bytes": LIMIT_MIB * MIB,
            "reserve_bytes": LIMIT_MIB * MIB // 8,
        },
        "tmp_dir": {
            "guarded": False,
            "limit_bytes": None,
            "reserve_bytes": None,
            "used_bytes": None,
        },
    }
