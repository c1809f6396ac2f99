"""What works in each image: see conftest.py for the images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.anywhere.conftest import Daemon


def test_all_protections_hold(daemon: Daemon) -> None:
    found = daemon.client.get("/v1/capabilities").json()
    assert found["protections"] == dict.fromkeys(found["protections"], True)
    assert found["namespaces"]


def test_program_of_the_image_runs(daemon: Daemon) -> None:
    done = daemon.execute(argv=daemon.row.program)
    assert (done["stdout"], done["exit_code"]) == ("hello\n", 0), done
    by_line = daemon.execute(command=" ".join(daemon.row.program))
    assert (by_line["stdout"], by_line["exit_code"]) == ("hello\n", 0), by_line


def test_command_line_runs_where_the_image_has_a_shell(daemon: Daemon) -> None:
    done = daemon.execute(command="echo out; echo err >&2; exit 3")
    if daemon.row.has_shell:
        assert (done["stdout"], done["stderr"], done["exit_code"]) == ("out\n", "err\n", 3)
    else:
        assert (done["exit_code"], done["exit_reason"]) == (127, "spawn_failed")
        assert "no shell" in done["stderr"] + done["message"]


def test_program_sees_nothing_of_the_launcher(daemon: Daemon) -> None:
    done = daemon.python("import os; print(sorted(os.environ))")
    names = set(re.findall(r"'(\w+)'", done["stdout"]))
    assert not {name for name in names if name.startswith(("LD_", "PYTHON", "EXECD_IMAGE"))} - {
        "LD_PRELOAD"
    }
    assert "EXECD_EXECUTION_ID" in names


def test_user_and_home_are_of_the_passwd_file_or_a_number_and_the_base_dir(daemon: Daemon) -> None:
    done = daemon.python("import os; print(os.environ['USER'], os.environ['HOME'])")
    name, home = daemon.row.accounts.get(daemon.uid, (str(daemon.uid), "/app"))
    if daemon.place == "gvisor" and daemon.uid not in daemon.row.accounts:
        home = "/"  # so says runsc, in the place of the image
    assert done["stdout"].split() == [name, home]


def test_session_keeps_its_state(daemon: Daemon) -> None:
    made = daemon.client.post("/v1/sessions", json={}).json()
    path = f"/v1/sessions/{made['id']}/execute"
    daemon.client.post(path, json={"code": "import sys; kept = sys.version_info[:2]"})
    done = daemon.client.post(path, json={"code": "print(*kept, sep='.')"}).json()
    assert done["exit_reason"] == "exited", done
    assert done["stdout"] == f"{daemon.row.python or '3.13'}\n"


def test_file_goes_there_and_back(daemon: Daemon) -> None:
    content = bytes(range(256)) * 100
    assert daemon.client.put("/v1/files/sub/file", content=content).status_code == 204
    assert daemon.client.get("/v1/files/sub/file").content == content
    done = daemon.python("print(len(open('sub/file', 'rb').read()))")
    assert done["stdout"] == f"{len(content)}\n"


def test_terminal_is_one(daemon: Daemon) -> None:
    done = daemon.python("import os; print(os.isatty(0), os.get_terminal_size().columns)", pty=True)
    assert done["stdout"] == "True 80\r\n"


def test_program_over_its_time_ends_with_its_tree(daemon: Daemon) -> None:
    code = "import os\nif os.fork(): print(os.getpid(), flush=True)\nwhile True: pass"
    done = daemon.python(code, timeout_seconds=1)
    assert done["exit_reason"] == "timeout"
    assert done["survivors"] == []


def test_tree_cannot_be_written(daemon: Daemon) -> None:
    code = """
import os
for path in "app/__main__.py", "lib/python3.13/os.py", "bin/python3":
    try:
        open(f"/opt/execd/{path}", "ab").close()
        print(path, "is open")
    except OSError as error:
        print(error.errno)
"""
    errors = daemon.python(code)["stdout"].split()
    assert len(errors) == 3
    assert set(errors) <= {"13", "30"}  # EACCES, EROFS
