"""``python -m execd``: the same as the ``execd`` command."""

from execd.cli import main

main()
