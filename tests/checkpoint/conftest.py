"""A daemon in a gVisor sandbox that can be frozen, copied and restored. Needs root, and settings:

RUNSC                      the runsc binary (.ci/install-runsc prints its path)
EXECD_CONFORMANCE_COMMAND  the program that takes the flags of `execd serve`, as uid 1000
"""

from __future__ import annotations

import os

collect_ignore_glob = (
    [] if "RUNSC" in os.environ and "EXECD_CONFORMANCE_COMMAND" in os.environ else ["test_*.py"]
)
