"""SVG plots: a few shapes, no library, the same bytes for the same values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.spread import Spread, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 44, 56
_COLOURS = (
    *("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e1b"),
    *("#4fa3d1", "#7a5230", "#5b8c85", "#b5838d", "#444444"),
)
_DASHES = ("", "6 3", "2 3")
_ROW = 26


@dataclass(frozen=True)
class Axis:
    """Values to pixels. Logarithmic; zero stands one step left of the smallest other value."""

    low: float
    high: float
    first_pixel: float
    last_pixel: float
    zero_at: float | None = None

    def at(self, value: float) -> float:
        if value <= 0 and self.zero_at is not None:
            value = self.zero_at
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first_pixel + share * (self.last_pixel - self.first_pixel)


def axis(values: Sequence[float], first_pixel: float, last_pixel: float) -> Axis:
    positive = [value for value in values if value > 0] or [1.0]
    has_zero = any(value <= 0 for value in values)
    low, high = min(positive), max(positive)
    zero_at = None
    if has_zero:
        low = zero_at = low / 4
    if low == high:
        low, high = low / 2, high * 2
    return Axis(low, high, first_pixel, last_pixel, zero_at)


def ticks(low: float, high: float) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten) within the bounds: about three to eight."""
    found = [
        step * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for step in (1, 2, 5)
        if low <= step * 10.0**power <= high
    ]
    if len(found) > 8:
        found = [tick for tick in found if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9)]
    return found


def _text(x: float, y: float, content: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def _document(title: str, height: float, shapes: Iterable[str]) -> str:
    title = title.replace("`", "")  # Markdown's, which SVG would show
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            _text(12, 24, title, more=' font-size="15"'),
            *shapes,
            "</svg>\n",
        ]
    )


Series = dict[float, Spread]
"""By x."""


def curves(
    title: str, x_title: str, y_title: str, series: Mapping[str, Series], order: Sequence[str]
) -> str:
    """A line for each subject, and a bar for the range over the rounds at each point. The place of
    a subject in the order decides the colour, in all plots alike."""
    xs = sorted({x for points in series.values() for x in points})
    ranges = [value for points in series.values() for value in points.values()]
    across = axis(xs, _LEFT, WIDTH - _RIGHT)
    up = axis(
        [bound for value in ranges for bound in (value.low, value.high)], HEIGHT - _BOTTOM, _TOP
    )
    shapes = [_frame(x_title, y_title)]
    below = HEIGHT - _BOTTOM + 18
    shapes += [_text(across.at(x), below, f"{x:g}", "middle") for x in xs]
    for tick in ticks(up.low, up.high):
        y = up.at(tick)
        shapes.append(_line(_LEFT, y, WIDTH - _RIGHT, y, 'stroke="#dddddd"'))
        shapes.append(_text(_LEFT - 6, y + 4, f"{tick:g}", "end"))
    for row, (name, points) in enumerate(series.items()):
        number = order.index(name)
        shapes += _curve(number, points, across, up)
        y = _TOP + 14 + row * 18
        x = WIDTH - _RIGHT + 12
        shapes.append(_line(x, y - 4, x + 20, y - 4, _stroke(number)))
        shapes.append(_text(x + 26, y, name))
    return _document(title, HEIGHT, shapes)


def _frame(x_title: str, y_title: str) -> str:
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    middle = _TOP + height / 2
    turned = f' transform="rotate(-90 16 {middle:.1f})"'
    return (
        f'<rect x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}" fill="none" '
        'stroke="#888888"/>\n'
        + _text(_LEFT + width / 2, HEIGHT - 14, x_title, "middle")
        + "\n"
        + _text(16, middle, y_title, "middle", turned)
    )


def _stroke(number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return f'stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _curve(number: int, points: Series, across: Axis, up: Axis) -> list[str]:
    ordered = sorted(points.items())
    path = " ".join(f"{across.at(x):.1f},{up.at(value.median):.1f}" for x, value in ordered)
    shapes = [f'<polyline points="{path}" fill="none" {_stroke(number)}/>']
    for x, value in ordered:
        at = across.at(x)
        shapes.append(_line(at, up.at(value.low), at, up.at(value.high), _stroke(number)))
        shapes.append(
            f'<circle cx="{at:.1f}" cy="{up.at(value.median):.1f}" r="3" '
            f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
    return shapes


def bars(title: str, unit: str, values: Mapping[str, Spread], order: Sequence[str]) -> str:
    """A bar for each subject from zero to the median, and a thin bar for the range."""
    high = max(value.high for value in values.values()) or 1.0
    left, right = 150, 190
    scale = (WIDTH - left - right) / high
    shapes = []
    for row, (name, value) in enumerate(values.items()):
        y = _TOP + row * _ROW
        middle = y + _ROW / 2 - 2
        shapes.append(_text(left - 8, middle + 4, name, "end"))
        shapes.append(
            f'<rect x="{left}" y="{y:.1f}" width="{value.median * scale:.1f}" height="{_ROW - 6}" '
            f'fill="{_COLOURS[order.index(name) % len(_COLOURS)]}" fill-opacity="0.75"/>'
        )
        low, top = left + value.low * scale, left + value.high * scale
        shapes.append(_line(low, middle, top, middle, 'stroke="#222222" stroke-width="1.5"'))
        shapes.append(_text(top + 6, middle + 4, f"{rounded(value.median)} {unit}".strip()))
    return _document(title, _TOP + len(values) * _ROW + 12, shapes)
