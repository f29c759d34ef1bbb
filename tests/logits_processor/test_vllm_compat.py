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

# The documents' processors are those of `support.documents_torch`; these two say more of what they are given.
STRICTER = """
from support.documents_torch import DummyLogitsProcessor, MyLogitsProcessor


class Validating(DummyLogitsProcessor):
    @classmethod
    def validate_params(cls, params):
        target_token = params.extra_args and params.extra_args.get("target_token")
        if target_token is not None and not isinstance(target_token, int):
            raise ValueError(f"target_token value {target_token} is not int")


class Halving(MyLogitsProcessor):
    def apply(self, logits):
        assert logits.shape[0] == self.batch_size
        return super().apply(logits)
"""
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from support.sequences import request, run_to_end, tiny_engine
from fastdeploy_lp.logits_processor import (LogitsProcessorSpecError, RequestArgsError, RequestArgsValidator,
                                            load_processors, vllm_compat)
from fastdeploy_lp.request.sampling_params import SamplingParams

told = {"advice": []}
specs = [
    "stricter:Validating",
    "support.documents_torch:WrappedPerReqLogitsProcessor",
    "stricter:Halving",
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
    (folder / "stricter.py").write_text(STRICTER)
    path = os.pathsep.join([str(folder), str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path, "MY_PROCESSOR_PARAM": "2.0"},
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
    assert "Validating: target_token value x is not int" in told["refusal"]


@pytest.mark.parametrize("spec", ["stricter:Validating", "support.documents_torch:WrappedPerReqLogitsProcessor"])
def test_the_documents_processors_force_their_tokens_and_leave_the_others_alone(
    told: dict[str, Any], spec: str
) -> None:
    for index in range(20):
        target = targets(index)
        forced = [target] * (1 + index % 4) if target is not None else told["plain"][f"r{index}"]
        assert told[spec][f"r{index}"] == forced


def test_a_processor_that_returns_another_tensor_runs_too(told: dict[str, Any]) -> None:
    # Halved logits have the same maximum.
    assert told["stricter:Halving"] == told["plain"]
