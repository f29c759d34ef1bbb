"""The page of results: prose by hand around a part that each run replaces."""

from __future__ import annotations

from pathlib import Path

PAGE = "benchmarks.md"
BEGIN, END = "<!-- results: written by benchmarks/compare.py -->", "<!-- end of results -->"
PLOT = "![Output tokens per second](benchmarks.svg)"


def write_page(directory: Path, results: str) -> None:
    """Put `results` into the page of `directory`, between its two marks; a page without them is made."""
    page = directory / PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        before, after = text or "# Benchmarks\n\n", "\n"
    page.write_text(f"{before}{BEGIN}\n\n{PLOT}\n\n{results}\n{END}{after}", encoding="utf-8")
