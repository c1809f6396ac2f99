from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from execd.warden import own_peak
from execd.warden.own_peak import TOLERANCE_BYTES, OwnPeak

if TYPE_CHECKING:
    import pytest


def own_rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_figure_up_to_the_own_peak_says_nothing_of_a_program() -> None:
    peak = OwnPeak()
    assert peak.may_hide(1)
    assert peak.may_hide(own_rss_bytes())
    assert not peak.may_hide(own_rss_bytes() + (1 << 30))


def test_a_peak_that_has_grown_is_read_again() -> None:
    peak = OwnPeak()
    before = own_rss_bytes()
    assert not peak.may_hide(before + (1 << 30)), "now the peak is known"
    held = bytearray(64 << 20)
    held[:: resource.getpagesize()] = b"x" * len(held[:: resource.getpagesize()])
    with_held = own_rss_bytes()
    assert with_held > before + TOLERANCE_BYTES
    del held
    assert peak.may_hide(with_held - TOLERANCE_BYTES)


def test_the_own_peak_is_read_again_only_for_a_larger_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = OwnPeak()
    assert not peak.may_hide(1 << 40), "now the peak is known"
    known = peak.hiding_bytes
    reads: list[int] = []

    def read() -> int:
        reads.append(1)
        return 0

    monkeypatch.setattr(own_peak, "_read_own_peak", read)
    assert peak.may_hide(known)
    assert reads == []
    assert not peak.may_hide(known + 1)
    assert reads == [1]
