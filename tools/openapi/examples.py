"""The examples of the OpenAPI document, in an order in which a fresh daemon gives these replies.
Pure.

The times, sizes and pids of replies are made up; everything else a daemon says. Each operation has
an example.
"""

from __future__ import annotations

from tools.openapi import (
    checkpoint_examples,
    execution_examples,
    file_examples,
    python_runtime_examples,
    sandbox_examples,
    session_examples,
)
from tools.openapi.example import Example

EXAMPLES = (
    *file_examples.EXAMPLES,
    *python_runtime_examples.EXAMPLES,
    *execution_examples.EXAMPLES,
    *session_examples.EXAMPLES,
    *checkpoint_examples.EXAMPLES,
    *sandbox_examples.EXAMPLES,
    Example(operation="delete_base_dir", parameters={"recursive": "true"}, status=204),
)
