"""What a request may ask of its trace."""

from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.trace import TraceParams


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (False, None),
        (True, TraceParams(top_k=8)),
        ({}, TraceParams()),
        ({"top_k": 20, "max_tokens": 1}, TraceParams(top_k=20, max_tokens=1)),
        (TraceParams(top_k=3), TraceParams(top_k=3)),
    ],
)
def test_every_form_says_the_same(given: Any, expected: TraceParams | None) -> None:
    params = SamplingParams(logits_processors_trace=given)
    assert params.trace == params.logits_processors_trace == expected


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"top_k": 0}, "logits_processors_trace.top_k"),
        ({"top_k": 21}, "logits_processors_trace.top_k"),
        ({"top_k": True}, "logits_processors_trace.top_k"),
        ({"top_k": 2.0}, "logits_processors_trace.top_k"),
        ({"max_tokens": 0}, "logits_processors_trace.max_tokens"),
        ({"max_tokens": "9"}, "logits_processors_trace.max_tokens"),
        ({"depth": 1}, "logits_processors_trace.depth"),
        (5, "logits_processors_trace"),
        ("true", "logits_processors_trace"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(given: Any, field: str) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(logits_processors_trace=given)
    assert str(caught.value).startswith(f"{field}: ")
