"""What a mutant is, and the lists: the mutants picked by hand, the tests that kill the mutants of
operators, and the accepted survivors."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
KILLERS_HEAD = """\
# By name of a mutant of an operator, the tests of which one must fail. `python -m tests.mutants
# --write-killers` writes the file, and tries the tests that mirror the module where no test is
# named.
[killers]
"""


@dataclass(frozen=True)
class Mutant:
    name: str
    """Stable from run to run; survivors.toml uses the name."""
    file: str
    """Relative to the repository."""
    old: str
    new: str
    """The text that replaces ``old``."""
    tests: tuple[str, ...]
    """Arguments of pytest: the tests of which one must fail."""
    start: int | None = None
    """The offset of ``old`` in the file; None: ``old`` occurs once."""

    def applied_to(self, source: str) -> str:
        """Raises ValueError: the source has no such text, or has the text twice."""
        if self.start is not None:
            assert source.startswith(self.old, self.start)
            return source[: self.start] + self.new + source[self.start + len(self.old) :]
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {source.count(self.old)} of the text")
        return source.replace(self.old, self.new)


def picked() -> list[Mutant]:
    entries = tomllib.loads((FOLDER / "picked.toml").read_text())["mutant"]
    return [
        Mutant(entry["name"], entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))
        for entry in entries
    ]


def named_killers() -> dict[str, tuple[str, ...]]:
    """By name of a mutant of an operator: the tests of which one must fail."""
    listed = tomllib.loads((FOLDER / "killers.toml").read_text())["killers"]
    return {name: tuple(tests) for name, tests in listed.items()}


def write_killers(killers: Mapping[str, Sequence[str]]) -> None:
    lines = [
        f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(list(tests), ensure_ascii=False)}\n"
        for name, tests in sorted(killers.items())
    ]
    (FOLDER / "killers.toml").write_text(f"{KILLERS_HEAD}{''.join(lines)}")


def accepted_survivors() -> dict[str, str]:
    """By name of a mutant: the reason why no test kills the mutant."""
    listed: dict[str, str] = tomllib.loads((FOLDER / "survivors.toml").read_text())["survivors"]
    return listed
