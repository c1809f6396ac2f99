"""The tree: one folder with execd, a Python and all libraries, put into any image.

    bin/python3   the tree's own Python
    app/execd     this package, which sessions on that Python cannot import

In a tree the image belongs to somebody else, so a few settings have other defaults (``config``).
"""

from __future__ import annotations

import os
import sys


def root(prefix: str = sys.prefix, package: str = os.path.dirname(__file__)) -> str | None:
    """Return the folder of the tree; None if execd was installed in another way. ``prefix``: of the
    Python that runs execd. ``package``: the folder of the package execd."""
    expected = os.path.join(prefix, "app", "execd")
    return prefix if os.path.realpath(expected) == os.path.realpath(package) else None


def own_python(tree: str | None) -> str:
    """Return the Python that runs execd."""
    return sys.executable if tree is None else os.path.join(tree, "bin", "python3")
