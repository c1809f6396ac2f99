"""Whether the tests run in gVisor."""

from __future__ import annotations

from execd.proc import kernel_traits


def is_gvisor() -> bool:
    return kernel_traits.find() is kernel_traits.GVISOR
