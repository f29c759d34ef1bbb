"""The page of results: prose by hand around a part that each run replaces."""

from __future__ import annotations

from pathlib import Path

from peers.section import DEFAULT_MODEL, Section

PAGE = "benchmarks.md"
BEGIN, END = "<!-- results: written by benchmarks/compare.py -->", "<!-- end of results -->"


def write_page(directory: Path, results: str, section: Section = DEFAULT_MODEL) -> None:
    """Put the results of a section into the page of `directory`, between its two marks.

    A page without them is made; another section than the first goes after the first one.
    """
    page = directory / PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = marks(section)
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        before, after = _place(text, section)
    heading = f"## {section.title}\n\n" if section.title else ""
    plot = f"![Output tokens per second](benchmarks{section.suffix}.svg)"
    page.write_text(f"{before}{begin}\n\n{heading}{plot}\n\n{results}\n{end}{after}", encoding="utf-8")


def marks(section: Section) -> tuple[str, str]:
    """The lines around a section's results."""
    if not section.suffix:
        return BEGIN, END
    return BEGIN.replace("results", f"results{section.suffix}"), END.replace("results", f"results{section.suffix}")


def _place(text: str, section: Section) -> tuple[str, str]:
    """The parts of a page without the section's results that go before and after them."""
    first, ended, rest = text.partition(END)
    if section.suffix and ended:
        prose, heading, others = rest.partition("\n## ")
        return f"{first}{ended}{prose.rstrip()}\n\n", f"\n{heading}{others}" if heading else "\n"
    return (f"{text.rstrip()}\n\n" if text else "# Benchmarks\n\n"), "\n"
