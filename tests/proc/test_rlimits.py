from __future__ import annotations

import ast
import resource
import subprocess
import sys

import pytest

from execd.model import Limits
from execd.proc import kernel_traits
from execd.proc import rlimits as limits
from execd.proc.process_caps import MARGIN_TASKS, MOST_MARGIN_TASKS
from execd.proc.rlimits import rlimits


def by_resource(wanted: list[list[int]]) -> dict[int, tuple[int, int]]:
    found = {which: (soft, hard) for which, soft, hard in wanted}
    assert len(found) == len(wanted), "a resource twice"
    return found


def capped(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def test_without_limits_of_its_own_an_execution_gets_the_defaults_and_no_more() -> None:
    found = by_resource(rlimits(Limits()))
    three_quarters = int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * 0.75)
    open_files = min(limits.DEFAULT_OPEN_FILES, three_quarters)
    processes = capped(resource.RLIMIT_NPROC, limits.PROCESSES_BACKSTOP)
    assert found == {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (open_files, open_files),
        resource.RLIMIT_NPROC: (processes, processes),
    }


def test_each_limit_becomes_the_resource_it_is_named_for() -> None:
    asked = Limits(
        cpu_seconds=7,
        address_space_bytes=1 << 30,
        file_size_bytes=4096,
        open_files=99,
        core_bytes=0,
        processes=3,
    )
    found = by_resource(rlimits(asked))
    assert found[resource.RLIMIT_AS] == (1 << 30, 1 << 30)
    assert found[resource.RLIMIT_FSIZE] == (4096, 4096)
    assert found[resource.RLIMIT_NOFILE] == (99, 99)
    assert found[resource.RLIMIT_NPROC][0] != 3, (
        "processes are counted by the warden: NPROC counts the user's, not the tree's"
    )


def test_in_gvisor_the_kernel_refuses_processes_close_above_a_trees_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits.kernel_traits, "find", lambda: kernel_traits.GVISOR)
    monkeypatch.setattr(limits.spawn, "count_tasks", lambda: 30)
    soft, hard = (
        capped(resource.RLIMIT_NPROC, 30 + 64 + margin)
        for margin in (MARGIN_TASKS, MOST_MARGIN_TASKS)
    )
    asked = Limits(processes=64)
    assert by_resource(rlimits(asked, in_namespace=True))[resource.RLIMIT_NPROC] == (soft, hard)
    backstop = capped(resource.RLIMIT_NPROC, limits.PROCESSES_BACKSTOP_IN_NAMESPACE)
    assert by_resource(rlimits(Limits(), in_namespace=True))[resource.RLIMIT_NPROC] == (
        backstop,
        backstop,
    )
    assert by_resource(rlimits(asked))[resource.RLIMIT_NPROC] != (soft, hard)


def test_the_cpu_limit_kills_a_second_after_it_signals() -> None:
    assert by_resource(rlimits(Limits(cpu_seconds=7)))[resource.RLIMIT_CPU] == (7, 8)


# A process can only lower a hard limit, so each case runs in a new process.
UNDER = """
import resource, sys
sys.path.insert(0, sys.argv[1])
which, ceiling = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(which, (ceiling, ceiling))
from execd.model import Limits
from execd.proc.rlimits import rlimits
wanted = {item[0]: item[1:] for item in rlimits(eval(sys.argv[4]))}
for item in wanted:
    resource.setrlimit(item, wanted[item])
print(wanted[which])
"""


@pytest.mark.parametrize(
    ("which", "ceiling", "asked", "expected"),
    [
        (resource.RLIMIT_NOFILE, 512, "Limits()", [384, 384]),
        (resource.RLIMIT_NOFILE, 512, "Limits(open_files=512)", [384, 384]),
        (resource.RLIMIT_NOFILE, 512, "Limits(open_files=100)", [100, 100]),
        (resource.RLIMIT_CPU, 10, "Limits(cpu_seconds=100)", [10, 10]),
        (resource.RLIMIT_CPU, 10, "Limits(cpu_seconds=10)", [10, 10]),
        (resource.RLIMIT_CPU, 10, "Limits(cpu_seconds=9)", [9, 10]),
        (resource.RLIMIT_FSIZE, 1000, "Limits(file_size_bytes=2000)", [1000, 1000]),
        (resource.RLIMIT_NPROC, 4000, "Limits()", [4000, 4000]),
    ],
)
def test_a_limit_above_our_own_hard_limit_becomes_that_and_can_be_set(
    which: int, ceiling: int, asked: str, expected: list[int]
) -> None:
    root = limits.__file__.rpartition("/execd/")[0]
    done = subprocess.run(
        [sys.executable, "-c", UNDER, root, str(which), str(ceiling), asked],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert ast.literal_eval(done.stdout) == expected
