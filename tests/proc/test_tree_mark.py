from __future__ import annotations

import json
import resource
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from execd.proc import tree_mark

# Sheds everything that a daemon sheds, and shows the mark of the last process to the first.
SHED = """
import json, os, subprocess, sys
mark = int(sys.argv[1])
import resource
resource.setrlimit(resource.RLIMIT_RSS, (mark, resource.RLIM_INFINITY))
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        show = (
            "import json, os, resource; from execd.proc import tree_mark;"
            "os.write({write}, json.dumps([resource.getrlimit(resource.RLIMIT_RSS)[0],"
            "tree_mark._read_limits(os.getpid())]).encode())"
        ).replace("{write}", str(write))
        os.set_inheritable(write, True)
        os.execve(sys.executable, [sys.executable, "-c", show], {})
    os._exit(0)
os.wait()
os.close(write)
print(os.read(read, 1000).decode())
"""


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_mark_names_its_tree_and_its_cell_and_no_other(tag: int, cell: int, other: int) -> None:
    daemon, another = (tree_mark.MARKED | n << 44 for n in (5, 6))
    tree = tree_mark.of_tree(daemon, tag)
    mark = tree_mark.of_cell(tree, cell)
    assert tree_mark.MARKED <= mark < 2 * tree_mark.MARKED
    assert tree_mark.is_of_tree(mark, tree)
    assert not tree_mark.is_of_tree(mark, tree_mark.of_tree(another, tag))
    assert not tree_mark.is_of_tree(mark, 0)
    is_same = tag % (1 << tree_mark.TAG_BITS) == other % (1 << tree_mark.TAG_BITS)
    assert tree_mark.is_of_tree(mark, tree_mark.of_tree(daemon, other)) == is_same
    assert tree_mark.of_cell(tree, cell + 1) != mark


def test_the_limits_of_a_program_tell_its_mark() -> None:
    mark = tree_mark.of_tree(tree_mark.new_daemon(), 7)
    assert tree_mark.of_limits([[resource.RLIMIT_CORE, 0, 0], tree_mark.limit(mark)]) == mark
    assert tree_mark.of_limits([tree_mark.limit(None)]) == 0
    assert tree_mark.of_limits([[resource.RLIMIT_RSS, 1 << 30, 1 << 30]]) == 0


def test_a_mark_outlives_a_new_session_a_cleared_environment_and_the_parents_end() -> None:
    mark = tree_mark.of_cell(tree_mark.of_tree(tree_mark.new_daemon(), 3), 4)
    argv = [sys.executable, "-c", SHED, str(mark)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == [mark, mark], shown.stderr


def test_the_mark_of_a_process_is_read_by_its_pid() -> None:
    mark = tree_mark.of_tree(tree_mark.new_daemon(), 1)
    for limit, expected in ((mark, mark), (1 << 30, 0), (resource.RLIM_INFINITY, 0)):
        with subprocess.Popen(["sleep", "1000"]) as process:
            resource.prlimit(process.pid, resource.RLIMIT_RSS, (limit, resource.RLIM_INFINITY))
            assert tree_mark.of_process(process.pid) == expected
            process.kill()
    assert tree_mark.of_process(process.pid) == 0
