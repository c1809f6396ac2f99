"""The digest of the examples that a run has drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PLANTED = """
    from hypothesis import given, strategies as st

    @given(st.integers(), st.sets(st.text()), st.data())
    def test_drawn(number, texts, data):
        data.draw(st.lists(st.just(object()), max_size=number % 5))

    @given(number=st.integers())
    async def test_drawn_in_a_loop(number):
        pass
"""


def summary(folder: Path, *options: str) -> str:
    for name in ("test_first.py", "test_second.py"):
        (folder / name).write_text(PLANTED.replace("\n    ", "\n"))
    # Under CI=true hypothesis takes a profile of its own, which ignores the seed.
    hidden = ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.drawn", "-o", "asyncio_mode=auto"]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = [line for line in done.stdout.splitlines() if line.startswith("examples: ")]
    return found


def test_same_seed_has_the_same_digest_in_any_order_and_any_number_of_processes(
    tmp_path: Path,
) -> None:
    one = summary(tmp_path, "--hypothesis-seed=1", "test_first.py", "test_second.py")
    n_drawn = int(one.split()[1])
    assert n_drawn > 2 * (100 + 100 + 100), "a number, a set and a list; and the loop's number"
    assert summary(tmp_path, "--hypothesis-seed=1", "test_second.py", "test_first.py") == one
    assert summary(tmp_path, "--hypothesis-seed=1", "--numprocesses=2") == one


def test_another_seed_has_another_digest(tmp_path: Path) -> None:
    digests = {summary(tmp_path, f"--hypothesis-seed={seed}").split()[-1] for seed in (1, 2)}
    assert len(digests) == 2
