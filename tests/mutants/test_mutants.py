from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

import pytest

from .mutant import REPOSITORY, Mutant, accepted_survivors, named_killers, picked
from .operators import made, modules
from .operators import tests_of as mirrors_of

if TYPE_CHECKING:
    from pathlib import Path

MOST_SURVIVORS = 10
"""The list may only get shorter, and so may this number only become smaller."""


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


def test_names_of_picked_mutants_are_unique() -> None:
    names = [mutant.name for mutant in picked()]
    assert len(names) == len(set(names))


def test_operators_make_the_same_mutants_again_and_each_is_python() -> None:
    mutants = made(60)
    assert mutants == made(60)
    for mutant in mutants:
        source = (REPOSITORY / mutant.file).read_text()
        before, after = ast.parse(source), ast.parse(mutant.applied_to(source))
        assert any(
            ast.dump(old) != ast.dump(new) for old, new in zip(before.body, after.body, strict=True)
        ), mutant.name


def test_every_wing_has_mutants_whose_tests_exist() -> None:
    for project in REPOSITORY.glob("wings/*/pyproject.toml"):
        of_wing = [path for path in modules() if path.is_relative_to(project.parent)]
        assert of_wing
        for path in of_wing:
            assert all(map(is_test, mirrors_of(path))), path


def test_accepted_survivors_have_reasons_and_grow_no_more() -> None:
    assert all(accepted_survivors().values())
    assert len(accepted_survivors()) <= MOST_SURVIVORS
