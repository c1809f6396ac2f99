"""Drawn trees of cells and commands: what is told to end ends with all that it began, and nothing
else ends. The processes double fork, start sessions, clear their environment and ignore signals."""

from __future__ import annotations

import itertools
import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import python
from .target import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from .conftest import Run

Tree = list[tuple[str, Any]]
"""For each process: how the process is started, and the tree below the process."""

# Each shell starts a short program again and again, also while the victim ends.
BODY = "echo {name} $$ >> pids; {below} while :; do sleep 0.3; done"
WAYS = {
    "child": "sh -c {script} &",
    "session": "setsid sh -c {script} &",
    "deaf": "sh -c \"trap '' TERM INT HUP; \"{script} &",
    "daemon": '(setsid env -i PATH="$PATH" sh -c {script} < /dev/null > /dev/null 2>&1 &);',
}
ROOTS = {
    "subprocess": "subprocess.Popen(['sh', '-c', {script!r}])",
    "system": "os.system({script!r})",
    "bang": "get_ipython().system({script!r})",
    "fork": (
        "if os.fork() == 0:\n    open('pids', 'a').write(f'{name} {{os.getpid()}}\\n')\n"
        "    os.system({script!r})\n    while True: time.sleep(0.3)"
    ),
    "daemon": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    open('pids', 'a').write(f'{name} {{os.getpid()}}\\n')\n"
        "    os.system({script!r})\n    while True: time.sleep(0.3)"
    ),
}
LIVING = """
import json
found = {}
for line in open("pids"):
    name, pid = line.split()
    try:
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    found[name] = state not in ("Z", "X", "gone")
print(json.dumps(found))
"""
trees = st.recursive(
    st.lists(st.tuples(st.sampled_from(sorted(WAYS)), st.just([])), min_size=1, max_size=2),
    lambda below: st.lists(st.tuples(st.sampled_from(sorted(WAYS)), below), max_size=2),
    max_leaves=4,
)


class Planter:
    """Writes the programs of drawn trees, each process with a name of its own."""

    def __init__(self) -> None:
        self._names = itertools.count()

    def script(self, tree: Tree, names: set[str]) -> str:
        lines = []
        for way, below in tree:
            names.add(name := f"p{next(self._names)}")
            body = BODY.format(name=name, below=self.script(below, names))
            lines.append(WAYS[way].format(script=shlex.quote(body)))
        return " ".join(lines)

    def code(self, root: str, tree: Tree, names: set[str]) -> str:
        name = f"p{next(self._names)}"
        if root in ("fork", "daemon"):
            names.add(name)
        return "import os, subprocess, time\n" + ROOTS[root].format(
            name=name, script=self.script(tree, names) + " true"
        )


@pytest.fixture
def sessions(client: httpx.Client) -> Iterator[list[str]]:
    made = [client.post("/v1/sessions", json={}).json()["id"] for _ in range(2)]
    yield made
    for name in made:
        client.delete(f"/v1/sessions/{name}").raise_for_status()


@pytest.mark.both_shapes
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    earlier=st.lists(
        st.tuples(st.sampled_from(["same", "other", "command"]), trees), min_size=1, max_size=3
    ),
    victim=st.tuples(st.sampled_from(["timeout", "interrupt", "command"]), trees),
    roots=st.lists(st.sampled_from(sorted(ROOTS)), min_size=4, max_size=4),
)
def test_what_is_told_to_end_leaves_nothing_and_takes_nothing_with_it(
    client: httpx.Client,
    run: Run,
    sessions: list[str],
    earlier: list[tuple[str, Tree]],
    victim: tuple[str, Tree],
    roots: list[str],
) -> None:
    folder = run.out("mktemp -d").strip()
    planter, others, own = Planter(), set[str](), set[str]()

    def living() -> dict[str, bool]:
        ran = run(f"cd {folder}; touch pids; {python(LIVING)}")
        found: dict[str, bool] = json.loads(ran.stdout)
        return found

    def execute(session: str, code: str, **fields: Any) -> dict[str, Any]:
        body = {"code": f"import os; os.chdir({folder!r})\n{code}", **fields}
        answer = client.post(f"/v1/sessions/{session}/execute", json=body)
        return answer.raise_for_status().json()

    try:
        for (where, tree), root in zip(earlier, roots[1:], strict=False):
            if where == "command":
                run(f"cd {folder}; {planter.script(tree, others)} true > /dev/null 2>&1")
            else:
                code = planter.code(root, tree, others)
                execute(sessions[where == "other"], code)
        # The victim begins at once, and not when the earlier trees have grown.
        end, tree = victim
        limit_seconds = 1.5
        if end == "command":
            script = f"cd {folder}; {planter.script(tree, own)} sleep 1000"
            body = {"command": script, "timeout_seconds": limit_seconds}
            done = client.post("/v1/executions", json=body).raise_for_status().json()
        elif end == "timeout":
            code = planter.code(roots[0], tree, own) + "\ntime.sleep(1000)"
            done = execute(sessions[0], code, timeout_seconds=limit_seconds)
        else:
            code = planter.code(roots[0], tree, own) + "\ntime.sleep(1000)"
            begun = execute(sessions[0], code, detach=True)
            wait_until(lambda: own <= living().keys(), 30, "the victim's tree has grown")
            client.post(f"/v1/sessions/{sessions[0]}/interrupt").raise_for_status()
            path = f"/v1/executions/{begun['id']}?wait_seconds=25"
            done = client.get(path).raise_for_status().json()
        # Right after the answer.
        assert not {name for name, lives in living().items() if lives and name in own}, done
        assert done["survivors"] == []
        wait_until(lambda: others <= living().keys(), 30, "the other trees have grown")
        assert others == {name for name, lives in living().items() if lives}
        if end != "command":
            assert execute(sessions[0], "1")["status"] == "success"
    finally:
        # The shell's own kill: an image need not have a program of this name.
        run(f"cd {folder}; kill -9 $(cut -d' ' -f2 pids)")
