"""Generated text in the layout of the repository."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def formatted(text: str, path: Path) -> str:
    """The text with sorted imports, without unused imports, and laid out by ruff. ``path``: the
    file that the text is for."""
    for work in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *work, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text
