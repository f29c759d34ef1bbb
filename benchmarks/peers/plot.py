"""Throughput as horizontal bars, written as SVG by hand."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from peers.outcome import Outcome

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 860, 230, 70
BAR, GAP, HEADING = 18, 6, 34
OURS, PEERS, SPREAD = "#2563eb", "#9ca3af", "#111827"


def render_svg(outcomes: Sequence[Outcome], concurrencies: Sequence[int]) -> str:
    """One panel a level, one bar a contender with a line from its lowest to its highest run; ours stand out."""
    panel = HEADING + len(outcomes) * (BAR + GAP)
    height = panel * len(concurrencies) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, concurrency in enumerate(concurrencies):
        parts += _panel(outcomes, concurrency, index * panel)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(outcomes: Sequence[Outcome], concurrency: int, top: int) -> list[str]:
    spreads = [outcome.spread(concurrency) for outcome in outcomes]
    largest = max((spread[1] for spread in spreads if spread is not None), default=1.0)
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / largest
    title = f"Output tokens per second, {concurrency} at a time"
    parts = [f'<text x="10" y="{top + 22}" font-weight="bold">{title}</text>']
    for row, (outcome, spread) in enumerate(zip(outcomes, spreads, strict=True)):
        y = top + HEADING + row * (BAR + GAP)
        text_y = y + BAR - 5
        name = escape(outcome.contender.name)
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{text_y}" text-anchor="end">{name}</text>')
        value = outcome.tokens_per_s(concurrency)
        if value is None or spread is None:
            parts.append(f'<text x="{LABEL_WIDTH + 4}" y="{text_y}" fill="#b91c1c">no result</text>')
            continue
        fill = OURS if outcome.contender.ours else PEERS
        low, high = (LABEL_WIDTH + bound * scale for bound in spread)
        middle = y + BAR / 2
        parts += [
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{value * scale:.1f}" height="{BAR}" fill="{fill}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{SPREAD}"/>',
            f'<text x="{high + 6:.1f}" y="{text_y}">{value:.0f}</text>',
        ]
    return parts
