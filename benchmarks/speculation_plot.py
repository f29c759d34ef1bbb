"""Acceptance of drafts against speed-up as an SVG written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 200, 40, 50
COLOURS = ("#2563eb", "#16a34a", "#d97706", "#111827")


def render_svg(points: Sequence[tuple[str, int, float, float]]) -> str:
    """The ratio over the share of right draft tokens, from (task, requests, share, ratio); a colour for each number of
    requests. Raises ValueError without points."""
    if not points:
        raise ValueError("points: must not be empty")
    most = max(2.0, *(ratio for *_, ratio in points))
    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    counts = sorted({count for _, count, *_ in points})

    def height(ratio: float) -> float:
        return floor - ratio / most * (floor - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<line x1="{LEFT}" x2="{end}" y1="{floor}" y2="{floor}" stroke="#9ca3af"/>',
        f'<line x1="{LEFT}" x2="{end}" y1="{height(1):.1f}" y2="{height(1):.1f}" stroke="#9ca3af" '
        'stroke-dasharray="4 4"/>',
        f'<text x="{LEFT - 6}" y="{height(1) + 4:.1f}" text-anchor="end">1.0</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{most:.1f}</text>',
        f'<text x="{LEFT}" y="20">tokens per second after the first one, with drafts over without</text>',
        f'<text x="{LEFT}" y="{floor + 18}">0 %</text>',
        f'<text x="{end}" y="{floor + 18}" text-anchor="end">100 %</text>',
        f'<text x="{(LEFT + end) / 2}" y="{floor + 36}" text-anchor="middle">draft tokens that were right</text>',
    ]
    for task, count, share, ratio in points:
        x, y, colour = LEFT + share * (end - LEFT), height(ratio), COLOURS[counts.index(count) % len(COLOURS)]
        name = escape(f"{task}, {count} at a time: {ratio}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{name}</title></circle>')
        if count == counts[0]:
            parts.append(f'<text x="{x + 7:.1f}" y="{y + 4:.1f}">{escape(task)}</text>')
    for index, count in enumerate(counts):
        colour, y = COLOURS[index % len(COLOURS)], TOP + 20 * index
        parts += [
            f'<circle cx="{WIDTH - 110}" cy="{y}" r="4" fill="{colour}"/>',
            f'<text x="{WIDTH - 100}" y="{y + 4}">{count} at a time</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
