"""Memory over a soak as an SVG written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from soak_memory import Point

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 40
CURVES = (
    ("worker_rss_mb", "worker, resident", "#2563eb"),
    ("worker_anonymous_mb", "worker, anonymous", "#60a5fa"),
    ("api_rss_mb", "API process, resident", "#111827"),
)


def render_svg(points: Sequence[Point]) -> str:
    """The processes' MB over the requests done; raises ValueError without points."""
    if not points:
        raise ValueError("points: must not be empty")
    most = max(getattr(point, name) for point in points for name, _, _ in CURVES) or 1.0
    total = points[-1].done or 1
    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" stroke="#9ca3af"/>',
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{most:.0f} MB</text>',
        f'<text x="{LEFT - 6}" y="{floor + 4}" text-anchor="end">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{floor + 18}" text-anchor="end">{total} requests</text>',
    ]
    for index, (name, label, colour) in enumerate(CURVES):
        spots = " ".join(
            f"{LEFT + point.done / total * (WIDTH - LEFT - RIGHT):.1f},"
            f"{floor - getattr(point, name) / most * (floor - TOP):.1f}"
            for point in points
        )
        parts += [
            f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{LEFT + 200 * index}" y="20" fill="{colour}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
