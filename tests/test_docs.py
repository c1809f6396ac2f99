"""Documentation that the code can contradict: promises have tests, settings are in the README."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from execd import config
from execd.model import ExitReason

ROOT = Path(__file__).parent.parent
TEST_NAMES = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text())
}
README = (ROOT / "README.md").read_text()


def _promises() -> list[str]:
    lines = (ROOT / "docs" / "behaviour.md").read_text().splitlines()
    return [re.sub(r" \(.*\)$", "", line[2:]) for line in lines if line.startswith("* ")]


def _test_name(promise: str) -> str:
    return "test_" + re.sub(r"[^a-z0-9]+", "_", promise.lower()).strip("_")


@pytest.mark.parametrize("promise", _promises())
def test_promise_is_the_name_of_a_test(promise: str) -> None:
    assert _test_name(promise) in TEST_NAMES


def _attacks() -> list[list[str]]:
    """The cells of each row of the threat model's tables of attacks."""
    text = (
        (ROOT / "docs" / "threat-model.md")
        .read_text()
        .partition("\n## Attacks\n")[2]
        .partition("\n##")[0]
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


@pytest.mark.parametrize("row", _attacks(), ids=lambda row: row[0][:60])
def test_attack_has_a_test_or_is_said_not_to_be_defended(row: list[str]) -> None:
    attack, _shapes, _holds, proof = row
    names = re.findall(r"`(test_\w+)`", proof)
    assert names or proof.startswith("not "), attack
    assert set(names) <= TEST_NAMES


@pytest.mark.parametrize("setting", [field.name for field in msgspec.structs.fields(config.Config)])
def test_setting_is_in_the_readme(setting: str) -> None:
    assert f"`{config.flag(setting)}`" in README


@pytest.mark.parametrize("reason", list(ExitReason))
def test_exit_reason_is_explained(reason: ExitReason) -> None:
    assert f"`{reason}`" in README
