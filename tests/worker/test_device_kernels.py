"""The whole engine with the CUDA kernels, on a stand-in for a GPU: the same tokens and logprobs as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.device_like import DeviceLikePlatform, device_like
from support.row_ops import ShimRowOps
from support.sequences import Ran, request, run_to_end, tiny_engine

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

PROCESSORS = ["LogitBiasLogitsProcessor", "TypicalPLogitsProcessor", "MinPLogitsProcessor"]
# Requests that use every kernel of a step, with their arguments for processors.
REQUESTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.9}, {"logit_bias": {3: 2.0, 4: -2.0}}),
    ({"temperature": 0.8, "top_p": 0.9, "logprobs": 3}, {}),
    ({"temperature": 1.1, "top_k": 20, "top_p": 0.8}, {}),
    ({"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2, "frequency_penalty": 0.3}, {}),
    ({"temperature": 1.0, "logprobs": 2}, {"typical_p": 0.8}),
    ({"temperature": 1.0, "allowed_token_ids": [5, 6, 7, 8, 9]}, {}),
    ({"temperature": 1.0}, {"min_p": 0.1}),
    ({"temperature": 0.6, "bad_words_token_ids": [[5], [6, 7]], "presence_penalty": 0.5}, {}),
]


def crowd() -> list[AddRequest]:
    return [
        request(
            *(f"r{index}", [7, 3, 9, 1, index]),
            max_tokens=8,
            seed=index,
            ignore_eos=True,
            selection=Selection(flat=flat),
            **params,
        )
        for index, (params, flat) in enumerate(REQUESTS)
    ]


def ran() -> tuple[dict[str, Ran], EngineCore]:
    engine = tiny_engine(PROCESSORS)
    return run_to_end(engine, crowd()), engine


def test_the_same_tokens_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = ran()
    name = f"{ShimRowOps.__module__}:{ShimRowOps.__qualname__}"
    monkeypatch.setattr(DeviceLikePlatform, "get_row_ops", lambda _: name, raising=False)
    with device_like() as platform:
        found, engine = ran()
    assert isinstance(engine.runner._sampler.ops, ShimRowOps)  # type: ignore[attr-defined]
    assert {name: each.token_ids for name, each in found.items()} == {
        name: each.token_ids for name, each in expected.items()
    }
    for index in (2, 5):
        mine, theirs = found[f"r{index}"].logprobs, expected[f"r{index}"].logprobs
        assert [each.token_ids for each in mine] == [each.token_ids for each in theirs]
        for ours, others in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(ours.logprobs, others.logprobs, atol=1e-4)
    assert len({tuple(each.token_ids) for each in found.values()}) == len(REQUESTS)
    assert platform.repeated > 0
