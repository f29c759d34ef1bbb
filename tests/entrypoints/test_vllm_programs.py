"""A program written for vLLM, its engine and processors included, runs as it is with the stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny import write_tiny_checkpoint

# Ours, in the shape of programs for vLLM: a batch-level class, a request-level one, one whose constructor asks for the
# device, a slot-keyed one, declared as classes of the program itself; offline and on an event loop.
PROGRAM = """
import asyncio
import json
import sys

import torch
from vllm import LLM, AsyncEngineArgs, RequestOutput, SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, RequestLogitsProcessor)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample import logits_processor as slot_keyed

logger = init_logger(__name__)


def wanted(params: SamplingParams, name: str):
    return (params.extra_args or {}).get(name)


class Batch(LogitsProcessor):
    @classmethod
    def validate_params(cls, params: SamplingParams):
        if not isinstance(wanted(params, "batch") or 0, int):
            raise VLLMValidationError("batch is not int", parameter="batch")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.rows = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None):
        process_dict_updates(self.rows, batch_update, lambda params, prompt, output: wanted(params, "batch"))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, token in self.rows.items():
            kept = logits[row, token].clone()
            logits[row] = -torch.inf
            logits[row, token] = kept
        return logits


class Forced:
    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        kept = logits[self.token].item()
        logits[:] = -torch.inf
        logits[self.token] = kept
        return logits


class Request(AdapterLogitsProcessor):
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        token = wanted(params, "request")
        logger.info_once("asked for %s", token)
        return None if token is None else Forced(token)


class OnThisDevice(AdapterLogitsProcessor):
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        super().__init__(vllm_config, device, is_pin_memory)
        self.matches = device.type == current_platform.device_type

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        return None

    def _new_state(self, params, prompt_ids, output_ids):
        if wanted(params, "device") is None or not self.matches:
            return None
        forced = Forced(wanted(params, "device") + len(prompt_ids))
        return lambda row: forced(output_ids, row)


class BySlot(slot_keyed.LogitsProcessor):
    @classmethod
    def validate_params(cls, params: SamplingParams):
        if not isinstance(wanted(params, "slot") or 0, int):
            raise VLLMValidationError("slot is not int", parameter="slot")

    def __init__(self, vllm_config: VllmConfig, req_states: slot_keyed.LogitsProcRequestState):
        self.staged = torch.full((req_states.max_num_reqs,), -1)
        self.tokens = self.staged.to(req_states.device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        token = wanted(sampling_params, "slot")
        self.staged[req_idx] = -1 if token is None else token
        return token is not None

    def apply_staged_writes(self) -> None:
        self.tokens.copy_(self.staged, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: slot_keyed.LogitsContext) -> torch.Tensor:
        tokens = self.tokens[ctx.expanded_idx_mapping.long()]
        rows = torch.nonzero(tokens >= 0).squeeze(1)
        kept = logits[rows, tokens[rows]].clone()
        logits[rows] = -torch.inf
        logits[rows, tokens[rows]] = kept
        return logits


PROMPTS = ["the dog", "the fox", "a cat", "over the", "jumps"]
PARAMS = [
    SamplingParams(temperature=0.0, extra_args={"batch": 128}),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, extra_args={"request": 67}),
    SamplingParams(temperature=0.0, max_tokens=3, extra_args={"device": 100}),
    SamplingParams(temperature=0.0, extra_args={"slot": 90}),
]
CLASSES = [Batch, Request, OnThisDevice, BySlot]


async def streamed(engine):
    async def last(index):
        async for output in engine.generate(
            request_id=f"request-{index}", prompt=PROMPTS[index], sampling_params=PARAMS[1]
        ):
            assert isinstance(output, RequestOutput)
        return output.outputs[0].token_ids

    # Nothing has started it.
    return await asyncio.gather(*map(last, range(len(PROMPTS))))


def main(argv):
    llm = LLM(model=argv[1], logits_processors=CLASSES)
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    plain = llm.generate(PROMPTS, PARAMS[1], use_tqdm=False)
    assert all(isinstance(output, RequestOutput) and output.prompt in PROMPTS for output in outputs)
    refusals = []
    for name in ("batch", "slot"):
        try:
            llm.generate("the", SamplingParams(extra_args={name: "x"}))
        except ValueError as error:
            refusals.append(str(error))
    # No classes, which test_async_llm_start.py has: its worker would import torch once more.
    args = AsyncEngineArgs(model=argv[1])
    engine = AsyncLLM.from_engine_args(args)

    async def run():
        try:
            return await streamed(engine)
        finally:
            await engine.shutdown()

    told = {
        "offline": [output.outputs[0].token_ids for output in outputs],
        "plain": [output.outputs[0].token_ids for output in plain],
        "prompt": len(outputs[3].prompt_token_ids),
        "async": asyncio.run(run()),
        "refusals": refusals,
    }
    print("TOLD", json.dumps(told))


if __name__ == "__main__":
    main(sys.argv)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program prints."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "an-org" / "a-model").mkdir(parents=True)
    write_tiny_checkpoint(folder / "an-org" / "a-model")
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "fastdeploy_lp.logits_processor.vllm_compat", "program.py", "an-org/a-model"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout.partition("TOLD ")[2])
    return answer


def test_processors_of_each_kind_force_their_tokens_and_leave_the_others_alone(told: dict[str, Any]) -> None:
    batch, untouched, request, device, by_slot = told["offline"]
    # 16 tokens is what vLLM generates unless a request says otherwise.
    assert (batch, request, by_slot) == ([128] * 16, [67] * 16, [90] * 16)
    assert device == [100 + told["prompt"]] * 3
    assert untouched == told["plain"][1]


def test_an_engine_that_nobody_started_answers_the_same(told: dict[str, Any]) -> None:
    assert told["async"] == told["plain"]


def test_vllms_error_refuses_a_request(told: dict[str, Any]) -> None:
    batch, by_slot = told["refusals"]
    assert "Batch: batch is not int (parameter=batch)" in batch
    assert "BySlot: slot is not int (parameter=slot)" in by_slot
