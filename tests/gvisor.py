"""Whether the tests run in gVisor, and what only the kernel can tell."""

from __future__ import annotations

import pytest

from execd.proc import kernel_traits


def is_gvisor() -> bool:
    return kernel_traits.find() is kernel_traits.GVISOR


def needs_field(name: str) -> pytest.MarkDecorator:
    """For a test that reads a field of /proc/PID/status. Some releases of gVisor lack some."""
    with open("/proc/self/status") as file:
        is_shown = any(line.startswith(f"{name}:") for line in file)
    assert is_shown or is_gvisor()
    return pytest.mark.skipif(not is_shown, reason=f"this gVisor shows no {name} of a process")
