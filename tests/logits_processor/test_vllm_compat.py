"""Modules written for vLLM run as they are, in a process of their own: `install` changes what `import vllm` means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]

# As vLLM's documents print them.
BATCH_LEVEL = '''
from typing import Optional
import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import (BatchUpdate,
                                             LogitsProcessor,
                                             MoveDirectionality)


class DummyLogitsProcessor(LogitsProcessor):
    """Fake logit processor to support unit testing and examples"""

    @classmethod
    def validate_params(cls, params: SamplingParams):
        target_token = params.extra_args and params.extra_args.get("target_token")
        if target_token is not None and not isinstance(target_token, int):
            raise ValueError(f"target_token value {target_token} is not int")

    def __init__(self, vllm_config: "VllmConfig", device: torch.device,
                 is_pin_memory: bool):
        self.req_info: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        """Never impacts greedy sampling"""
        return False

    def update_state(self, batch_update: Optional[BatchUpdate]):
        if not batch_update:
            return

        # Process added requests.
        for index, params, _, _ in batch_update.added:
            assert params is not None
            if params.extra_args and (target_token :=
                                      params.extra_args.get("target_token")):
                self.req_info[index] = target_token
            else:
                self.req_info.pop(index, None)

        if self.req_info:
            # Process removed requests.
            for index in batch_update.removed:
                self.req_info.pop(index, None)

            # Process moved requests, unidirectional move (a->b) and swap
            # (a<->b)
            for adx, bdx, direct in batch_update.moved:
                a_val = self.req_info.pop(adx, None)
                b_val = self.req_info.pop(bdx, None)
                if a_val is not None:
                    self.req_info[bdx] = a_val
                if direct == MoveDirectionality.SWAP and b_val is not None:
                    self.req_info[adx] = b_val

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.req_info:
            return logits

        # Save target values before modification
        cols = torch.tensor(
            list(self.req_info.values()), dtype=torch.long, device=logits.device
        )
        rows = torch.tensor(
            list(self.req_info.keys()), dtype=torch.long, device=logits.device
        )
        values_to_keep = logits[rows, cols].clone()

        # Mask all but target tokens
        logits[rows] = float('-inf')
        logits[rows, cols] = values_to_keep

        return logits
'''
REQUEST_LEVEL = """
from typing import Any, Optional
import torch
from vllm.logger import init_logger
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,  # Wrapper base-class
    RequestLogitsProcessor,  # Request-level logitsproc type annotation
)

logger = init_logger(__name__)


class DummyPerReqLogitsProcessor:
    def __init__(self, target_token: int) -> None:
        self.target_token = target_token

    def __call__(
        self,
        output_ids: list[int],
        logits: torch.Tensor,
    ) -> torch.Tensor:
        val_to_keep = logits[self.target_token].item()
        logits[:] = float("-inf")
        logits[self.target_token] = val_to_keep
        return logits


class WrappedPerReqLogitsProcessor(AdapterLogitsProcessor):
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self,
        params: SamplingParams,
    ) -> Optional[RequestLogitsProcessor]:
        target_token: Optional[Any] = params.extra_args and params.extra_args.get("target_token")
        if target_token is None:
            return None
        if not isinstance(target_token, int):
            logger.warning("target_token value %s is not int; not applying logits processor to request.", target_token)
            return None
        return DummyPerReqLogitsProcessor(target_token)
"""
INTERFACE = '''
from typing import Optional
import torch
from vllm.v1.sample.logits_processor.interface import LogitsProcessor

# TYPE_CHECKING imports to avoid circular dependencies
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor.interface import BatchUpdate


class MyLogitsProcessor(LogitsProcessor):
    """Out of place, for every row."""

    def __init__(self, vllm_config: "VllmConfig", device: torch.device, is_pin_memory: bool):
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        self.batch_size = 0
        self.my_param = 2.0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Optional["BatchUpdate"]) -> None:
        if batch_update:
            self.batch_size = batch_update.batch_size

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if logits.size(0) == 0:
            return logits
        assert logits.shape == (self.batch_size, self.vocab_size)
        modified_logits = logits / self.my_param
        return modified_logits
'''
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from support.sequences import request, run_to_end, tiny_engine
from fastdeploy_lp.logits_processor import (LogitsProcessorSpecError, RequestArgsError, RequestArgsValidator,
                                            load_processors, vllm_compat)
from fastdeploy_lp.sampling_params import SamplingParams

told = {"advice": []}
specs = [
    "batch_level:DummyLogitsProcessor",
    "request_level:WrappedPerReqLogitsProcessor",
    "interface:MyLogitsProcessor",
]
for spec in specs:
    try:
        load_processors([spec])
    except LogitsProcessorSpecError as error:
        told["advice"].append(str(error))
assert "vllm" not in sys.modules

vllm_compat.install()
stand_in = sys.modules["vllm"]
vllm_compat.install()
assert sys.modules["vllm"] is stand_in

declared = load_processors(specs)
told["dialects"] = [each.dialect.name for each in declared]
try:
    RequestArgsValidator(declared, 512).validate(SamplingParams(extra_args={"target_token": "x"}))
except RequestArgsError as error:
    told["refusal"] = str(error)


def requests():
    for index in range(20):
        args = {"target_token": 100 + index} if index % 3 else None
        yield request(f"r{index}", [index + 1, 5], max_tokens=1 + index % 4, logits_processors_args=args)


told["plain"] = {name: ran.token_ids for name, ran in run_to_end(tiny_engine(max_num_seqs=4), requests()).items()}
for spec in specs:
    engine = tiny_engine([spec], max_num_seqs=4)
    told[spec] = {name: ran.token_ids for name, ran in run_to_end(engine, requests()).items()}
print("TOLD", json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process tells that loads and runs the modules."""
    folder = tmp_path_factory.mktemp("modules")
    for name, source in (("batch_level", BATCH_LEVEL), ("request_level", REQUEST_LEVEL), ("interface", INTERFACE)):
        (folder / f"{name}.py").write_text(source)
    path = os.pathsep.join([str(folder), str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout.partition("TOLD ")[2])
    return answer


def targets(index: int) -> int | None:
    return 100 + index if index % 3 else None


def test_without_the_stand_ins_the_option_is_advised(told: dict[str, Any]) -> None:
    assert len(told["advice"]) == 3
    for message in told["advice"]:
        assert "No module named 'vllm'" in message
        assert "add --vllm-compat" in message
        assert "\n" not in message


def test_the_stand_ins_make_them_torch_processors(told: dict[str, Any]) -> None:
    assert told["dialects"] == ["torch"] * 3


def test_validate_params_runs_when_a_request_arrives(told: dict[str, Any]) -> None:
    assert "DummyLogitsProcessor: target_token value x is not int" in told["refusal"]


@pytest.mark.parametrize("spec", ["batch_level:DummyLogitsProcessor", "request_level:WrappedPerReqLogitsProcessor"])
def test_the_documents_processors_force_their_tokens_and_leave_the_others_alone(
    told: dict[str, Any], spec: str
) -> None:
    for index in range(20):
        target = targets(index)
        forced = [target] * (1 + index % 4) if target is not None else told["plain"][f"r{index}"]
        assert told[spec][f"r{index}"] == forced


def test_a_processor_that_returns_another_tensor_runs_too(told: dict[str, Any]) -> None:
    # Halved logits have the same maximum.
    assert told["interface:MyLogitsProcessor"] == told["plain"]
