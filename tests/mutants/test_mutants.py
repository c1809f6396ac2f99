from __future__ import annotations

import ast
import ctypes
import functools
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from . import operators
from .mutant import REPOSITORY, Mutant, accepted_survivors, named_killers, picked
from .operators import made
from .slot import compile_library

if TYPE_CHECKING:
    from pathlib import Path

MOST_SURVIVORS = 10
"""The list may only get shorter, and so may this number only become smaller."""


made_once = functools.cache(made)


def whole_name(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", picked(), ids=whole_name)
def test_a_picked_mutant_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    source = (REPOSITORY / mutant.file).read_text()
    changed = mutant.applied_to(source)
    assert changed != source
    if mutant.file.endswith(".py"):
        ast.parse(changed)
    assert mutant.tests
    for test in mutant.tests:
        assert is_test(test), test


def is_test(name: str) -> bool:
    """Whether there is such a test function, file or folder."""
    path, _, function = name.partition("::")
    if not function:
        return (REPOSITORY / path).exists()
    return function.partition("[")[0] in functions(REPOSITORY / path)


@functools.cache
def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_killers_of_operators_mutants_are_tests_that_exist() -> None:
    for name, tests in named_killers().items():
        assert tests, name
        for test in tests:
            assert is_test(test), f"{name}: {test}"


def test_a_source_without_a_mutant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "REPOSITORY", tmp_path)
    (tmp_path / "execd").mkdir()
    (tmp_path / "execd/__init__.py").write_text('"""Only a text."""')
    (tmp_path / "execd/changed.py").write_text('"""A text."""\nx = y < 1\n')
    (tmp_path / "execd/names.py").write_text('"""A text."""\nx = y\n')
    (tmp_path / "execd/types.py").write_text(
        "from typing import Protocol\n\n\nclass Room(Protocol):\n    size: int\n\n"
        '    def take(self) -> None:\n        """Take room."""\n'
    )
    (tmp_path / "execd/code.c").touch()
    (tmp_path / "execd/generated_pb2.py").write_text("x = 1\n")
    assert operators.without_mutant(made(0)) == ["execd/code.c", "execd/names.py"]


def test_a_picked_mutant_whose_line_is_gone_is_named(tmp_path: Path) -> None:
    mutant = picked()[0]
    with pytest.raises(ValueError, match=f"{re.escape(mutant.name)}: .* has 0 of the text"):
        mutant.applied_to("another text")


def test_names_of_picked_mutants_are_unique() -> None:
    names = [mutant.name for mutant in picked()]
    assert len(names) == len(set(names))


def test_operators_make_the_same_mutants_again_and_each_is_python() -> None:
    mutants = made_once(60)
    assert mutants == made(60)
    for mutant in mutants:
        source = (REPOSITORY / mutant.file).read_text()
        before, after = ast.parse(source), ast.parse(mutant.applied_to(source))
        assert any(
            ast.dump(old) != ast.dump(new) for old, new in zip(before.body, after.body, strict=True)
        ), mutant.name


def test_modules_take_turns() -> None:
    files = [mutant.file for mutant in made_once(60)]
    assert len(set(files)) == len(files)


def test_generated_modules_have_no_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "REPOSITORY", tmp_path)
    (tmp_path / "execd").mkdir()
    for name in ("messages", "messages_pb2"):
        (tmp_path / f"execd/{name}.py").write_text("x = y < 1\n")
    assert {mutant.file for mutant in made(100)} == {"execd/messages.py"}


def test_a_change_of_a_line_leaves_the_other_mutants_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "REPOSITORY", tmp_path)
    path = tmp_path / "execd/module.py"
    path.parent.mkdir()
    path.write_text("".join(f"x{i} = y < {i}\n" for i in range(50)))
    before = [mutant.name for mutant in operators.mutants_of(path)]
    path.write_text("z = 1\n" + path.read_text().replace("y < 7\n", "y\n"))
    after = [mutant.name for mutant in operators.mutants_of(path)]
    gone = [name for name in before if ": x7 = " in name]
    assert gone
    assert [name for name in after if ": z = " not in name] == [
        name for name in before if name not in gone
    ]


def test_accepted_survivors_have_reasons_and_grow_no_more() -> None:
    assert all(accepted_survivors().values())
    assert len(accepted_survivors()) <= MOST_SURVIVORS


def test_the_library_of_a_slot_has_the_functions_of_every_source(tmp_path: Path) -> None:
    sources = ("_spawn.c", "_spawn.h")
    warden_sources = (
        *("_brake.c", "_children.c", "_children.h", "_early_end.c", "_early_end.h"),
        "_quick_starts.c",
    )
    names = [f"execd/proc/{each}" for each in sources]
    names += [f"execd/warden/{each}" for each in warden_sources]
    for name in ("pyproject.toml", *names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    library = ctypes.CDLL(str(compile_library(tmp_path, "execd/proc/_spawn.c")))
    assert library.execd_spawn
    assert library.execd_brake_start
    assert library.execd_await_early_end
    assert library.execd_start_quickly
