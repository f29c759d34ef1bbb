"""What is settled before any worker hears of a request."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.request.sampling_params import SamplingParams

FORCED = "ForcedSequenceLogitsProcessor"


def test_a_phrase_with_a_token_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path)
    tokens = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    config = tiny_fd_config()
    known = tokens["z"]
    model = replace(config.model_config, directory=str(checkpoint), vocab_size=known)
    preparation = RequestPreparation(replace(config, model_config=model), load_processors([FORCED]))
    params = SamplingParams(logits_processors={FORCED: {"forced_sequence": "z"}})

    async def settle() -> None:
        try:
            await preparation.settle(params, Prompt([1], None))
        finally:
            await preparation.close()

    with pytest.raises(InvalidRequestError, match=f"has the token {known}") as caught:
        asyncio.run(settle())
    assert (caught.value.param or "").startswith(f"logits_processors.{FORCED}")
