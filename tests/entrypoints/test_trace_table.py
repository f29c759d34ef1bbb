"""Traces as a table."""

from __future__ import annotations

import math
import re

import pytest

from fastdeploy_lp.entrypoints.cli.explain import TraceTable, shown
from fastdeploy_lp.request.trace import (
    FAILED,
    MODEL,
    PROCESSOR,
    SAMPLING,
    SKIPPED,
    TOOK_BACK,
    ShadowReport,
    ShadowToken,
    TokenText,
    TokenTrace,
    TracedToken,
    TraceStage,
)


def token(text: str, probability: float, *, rank: int = 1, token_id: int = 1) -> TracedToken:
    return TracedToken(token_id, math.log(probability), probability, rank, text, text.encode())


PARIS, LYON = token(" Paris", 0.9, token_id=1), token(" Lyon", 0.1, rank=2, token_id=2)
FLIPPED = [token(" Lyon", 0.75, token_id=2), token(" Paris", 0.25, rank=2, token_id=1)]
TAKEN = [TokenText(3, " Ni", b" Ni"), TokenText(4, "ce", b"ce")]
STAGES = [
    TraceStage("Ban", PROCESSOR, status=TOOK_BACK, taken_back=TAKEN),
    TraceStage("raw", MODEL, top=[PARIS, LYON], sampled=LYON, entropy=0.325, mass_moved=0.0),
    TraceStage("Bias", PROCESSOR, top=FLIPPED, sampled=FLIPPED[0], entropy=0.562, mass_moved=0.65, flipped=True),
    TraceStage("Warm", PROCESSOR, status=SKIPPED),
    TraceStage("Broken", PROCESSOR, status=FAILED),
    TraceStage("final", SAMPLING, top=FLIPPED[:1], sampled=FLIPPED[0], entropy=0.0, mass_moved=0.25),
]
TRACE = [TokenTrace(2, " Lyon", b" Lyon", STAGES, {"Other": ShadowToken(1, " Paris", changed=True)})]

# Without the line with a flip, which has no room for more than one token here.
WIDEST = len('  raw       0.0%    0.325   10.00%     2  " Paris" 90.0%  " Lyon" 10.0%')


def test_a_line_tells_of_a_stage() -> None:
    assert TraceTable().of(TRACE).splitlines() == [
        'token 1: " Lyon" (2)',
        "  stage    moved  entropy  sampled  rank  most likely",
        '  Ban     took back " Nice"',
        '  raw       0.0%    0.325   10.00%     2  " Paris" 90.0%  " Lyon" 10.0%',
        '  Bias     65.0%    0.562   75.00%     1  flipped " Lyon" 75.0%  " Paris" 25.0%',
        "  Warm    skipped",
        "  Broken  failed",
        '  final    25.0%    0.000   75.00%     1  " Lyon" 75.0%',
        '  with Other, in shadow, it would be " Paris"',
    ]


def test_colors_change_nothing_but_colors() -> None:
    colored = TraceTable(color=True).of(TRACE)
    assert "\x1b[31mflipped\x1b[0m" in colored
    assert re.sub("\x1b\\[[0-9]+m", "", colored) == TraceTable().of(TRACE)


@pytest.mark.parametrize("width", [10, 50, WIDEST - 1, WIDEST, 99])
def test_lines_fit_but_for_the_most_likely_token(width: int) -> None:
    lines = TraceTable(width=width).of(TRACE).splitlines()[2:-1]
    assert all(len(line) <= width or line.count("%") == 3 for line in lines if "%" in line)
    assert max(line.count("%") for line in lines) == (4 if width >= WIDEST else 3)


@pytest.mark.parametrize("shadow", [ShadowToken(None, None, changed=False, failed=True), ShadowToken(None, None, True)])
def test_a_shadow_without_a_token(shadow: ShadowToken) -> None:
    line = TraceTable().of([TokenTrace(2, "x", b"x", [], {"Other": shadow})]).splitlines()[-1]
    expected = "Other failed in shadow" if shadow.failed else "with Other, in shadow, it would be nothing"
    assert line.strip() == expected


def test_what_shadows_would_have_changed_is_summed_up() -> None:
    reports = {"One": ShadowReport(tokens=8, changed=3), "Two": ShadowReport(tokens=7, faults=1)}
    assert TraceTable().shadows(reports).splitlines() == [
        "One in shadow would have changed 3 of 8 tokens",
        "Two in shadow would have changed 0 of 7 tokens, 1 failed",
    ]


@pytest.mark.parametrize(
    ("text", "expected"), [("\n", '"\\n"'), ("\x1b[31m", '"\\x1b[31m"'), (" é", '" é"'), ("�", '"�"')]
)
def test_a_token_cannot_command_the_terminal(text: str, expected: str) -> None:
    assert shown(text) == expected
