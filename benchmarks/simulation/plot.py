"""Curves as an SVG written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 40
COLOURS = ("#2563eb", "#93c5fd", "#b91c1c", "#fca5a5", "#15803d", "#86efac", "#111827", "#9ca3af")


@dataclass(frozen=True)
class Curve:
    """Points of x and y under a name."""

    label: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Plot:
    """Curves over one x axis; a logarithmic axis has positive values only."""

    title: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False


class Axis:
    """From values to places."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self._log, self._start, self._end = log, start, end
        self.low, self.high = (min(values), max(values)) if log else (0.0, max(values))

    def place(self, value: float) -> float:
        """Returns the position of a value."""
        low, high, at = self.low, self.high, value
        if self._log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self._start + (self._end - self._start) * ((at - low) / (high - low) if high > low else 0.5)

    def ticks(self) -> list[float]:
        """The values to be named."""
        if not self._log:
            return [self.high * part / 4 for part in range(5)]
        powers = [10.0**power for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))]
        return [self.low, *(power for power in powers if self.low * 1.5 < power < self.high / 1.5), self.high]


def render(plot: Plot) -> str:
    """The plot; raises ValueError without points, or for one that a logarithmic axis cannot have."""
    points = [point for curve in plot.curves for point in curve.points]
    if not points:
        raise ValueError("curves: must have points")
    if (plot.log_x and min(x for x, _ in points) <= 0) or (plot.log_y and min(y for _, y in points) <= 0):
        raise ValueError("curves: a logarithmic axis has positive values only")
    across = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, log=plot.log_x)
    up = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, log=plot.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20">{plot.title}</text>',
    ]
    for value in across.ticks():
        parts.append(f'<text x="{across.place(value):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{value:,.3g}</text>')
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    for index, curve in enumerate(plot.curves):
        colour = COLOURS[index % len(COLOURS)]
        spots = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in curve.points)
        parts += [
            f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 18 * index + 12}" fill="{colour}">{curve.label}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
