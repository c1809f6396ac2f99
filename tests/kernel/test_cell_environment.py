"""Variables of one cell, in a real worker: set for the cell, undone after the cell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.kernel.harness import WorkerProcess

SEEN = "import os; [os.environ.get(name) for name in ('NEW', 'OLD', 'OTHER')]"
BOTH = {"NEW": "new", "OLD": "changed"}


@pytest.fixture
def set_up(worker: WorkerProcess) -> WorkerProcess:
    assert worker.run("import os; os.environ['OLD'] = 'old'").done["status"] == "success"
    return worker


def test_a_cell_has_its_variables_and_the_next_cell_has_the_values_before(
    set_up: WorkerProcess,
) -> None:
    assert set_up.run(SEEN, env=BOTH).text == "['new', 'changed', None]"
    assert set_up.run(SEEN).text == "[None, 'old', None]"


def test_children_inherit_the_variables_of_the_cell(set_up: WorkerProcess) -> None:
    code = "import os, subprocess\n!echo $NEW\n_ = subprocess.run('echo $OLD', shell=True)"
    assert set_up.run(code, env=BOTH).stdout == "new\nchanged\n"
    assert set_up.run(code).stdout == "\nold\n"


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "raise SystemExit(3)",
        "x ==",
        "import os; os.environ.clear()",
        "import os; os.environ['NEW'] = os.environ['OLD'] = 'of the cell'",
        "import os; del os.environ['NEW'], os.environ['OLD']",
        "%env OLD=of a magic",
        "import os; os.environ = {}",
        "import os, sys\nif os.fork() == 0: os.environ['OLD'] = 'of a child'",
        "import signal; signal.setitimer(signal.ITIMER_REAL, 0.001); signal.pause()",
    ],
)
def test_variables_are_undone_whatever_the_cell_did(set_up: WorkerProcess, code: str) -> None:
    set_up.run(
        "import os, signal; real = os.environ\n"
        "def alarm(*_): raise RuntimeError\n"
        "_ = signal.signal(signal.SIGALRM, alarm)"
    )
    set_up.run(code, env=BOTH)
    assert set_up.run("real.get('NEW'), real.get('OLD')").text == "(None, 'old')"
    assert set_up.run("!echo $NEW-$OLD").stdout == "-old\n"


def test_variables_are_undone_after_an_interrupt(set_up: WorkerProcess) -> None:
    set_up.start("import time\nprint('runs')\ntime.sleep(60)", env=BOTH)
    wait_until(lambda: set_up.output_so_far() == "runs\n", 20)
    set_up.interrupt()
    assert set_up.finish().error is not None
    assert set_up.run(SEEN).text == "[None, 'old', None]"


def test_other_variables_stay_as_the_cell_left_them(set_up: WorkerProcess) -> None:
    set_up.run("os.environ['OTHER'] = 'kept'", env=BOTH)
    assert set_up.run(SEEN).text == "[None, 'old', 'kept']"


def test_time_zone_of_a_cell_is_undone_too(set_up: WorkerProcess) -> None:
    code = "import time; time.localtime(0).tm_hour"
    assert set_up.run(code, env={"TZ": "XXX-5"}).text == "5"
    assert set_up.run(code).text == str(time.gmtime(0).tm_hour)


def test_branch_of_a_session_has_no_variable_of_a_cell_before(set_up: WorkerProcess) -> None:
    set_up.run("1", env=BOTH)
    [branch], _ = set_up.fork()
    try:
        assert branch.run(SEEN).text == "[None, 'old', None]"
        assert branch.run(SEEN, env={"NEW": "b"}).text == "['b', 'old', None]"
        assert set_up.run(SEEN).text == "[None, 'old', None]"
    finally:
        branch.close()
