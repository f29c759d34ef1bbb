"""docs/sampling.md against the code."""

from __future__ import annotations

import re

import pytest
from support.server import REPOSITORY

from fastdeploy_lp.config.model_config import LOGPROBS_MODES
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest
from fastdeploy_lp.request.sampling_params import SamplingParams

DOCUMENT = (REPOSITORY / "docs" / "sampling.md").read_text()
# Told elsewhere: what ends an output, how many there are, and logits processors.
ELSEWHERE = {
    "n",
    "max_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "extra_args",
    "output_kind",
    "guided_decoding",
    "prediction",
}


def documented() -> list[str]:
    table = DOCUMENT.partition("| field |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


def test_every_sampling_field_is_documented_and_taken_over_http() -> None:
    processors = {name for name in SamplingParams.__struct_fields__ if name.startswith("logits_processors")}
    assert sorted(documented()) == sorted({*SamplingParams.__struct_fields__} - ELSEWHERE - processors)
    for body in (ChatCompletionRequest, CompletionRequest):
        assert set(documented()) <= set(body.model_fields)


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_every_logprobs_mode_is_documented(mode: str) -> None:
    assert f"`{mode}`" in DOCUMENT
