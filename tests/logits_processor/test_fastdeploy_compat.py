"""Processors written for FastDeploy run as they are, whichever of its two counts of rows they go by."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.declared import refusal
from support.fastdeploy_modules import WRITTEN_FOR_FASTDEPLOY
from support.sequences import Ran, request, run_to_end, tiny_fd_config
from support.stand_ins import fastdeploy_stand_ins

from fastdeploy_lp.logits_processor import (
    LogitsProcessorChain,
    RequestArgsError,
    RequestArgsValidator,
    fastdeploy_compat,
    load_processors,
)
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.worker.engine_core import EngineCore

MARKED, SLOTS, VOCAB_SIZE = 9, 4, 512


@pytest.fixture
def written(folder: Path) -> Iterator[Path]:
    """The module `written`, beside the stand-ins that it imports."""
    (folder / "written.py").write_text(WRITTEN_FOR_FASTDEPLOY)
    with fastdeploy_stand_ins():
        yield folder


def engine_with(*specs: str) -> EngineCore:
    config = tiny_fd_config(max_num_seqs=SLOTS, max_num_batched_tokens=10)
    entries = {**config.model_config.hf_config, "think_start_id": MARKED}
    config = replace(config, model_config=replace(config.model_config, hf_config=entries))
    return EngineCore(config, LogitsProcessorChain(load_processors(specs), config))


def ran(engine: EngineCore, requests: list[AddRequest]) -> dict[str, Ran]:
    return run_to_end(engine, requests)


def churn(count: int = 40) -> Iterator[tuple[str, list[int], dict[str, Any], int]]:
    """Requests of every length, so that stopped slots stand below active ones and prompts are read in chunks."""
    draw = random.Random(5)
    for index in range(count):
        prompt = [draw.randrange(10, VOCAB_SIZE) for _ in range(draw.choice([1, 3, 17]))]
        if index % 7 == 0:
            prompt[0] = MARKED
        args: dict[str, Any] = {}
        if index % 3 == 1:
            args["wanted"] = 100 + index
        if index % 3 == 2:
            args |= {"after": draw.randrange(4), "token": 200 + index}
        yield f"r{index}", prompt, args, draw.randint(1, 7)


def test_both_counts_of_rows_mean_the_same_rows(written: Path) -> None:
    requests = [
        request(name, prompt, max_tokens=length, logits_processors_args=args) for name, prompt, args, length in churn()
    ]
    plain = ran(engine_with(), requests)
    found = ran(engine_with("written:CountsRows", "written:NumbersSlots"), requests)
    for name, prompt, args, length in churn():
        expected = plain[name].token_ids
        if "wanted" in args:
            expected = [args["wanted"]] * length
        if "after" in args:
            free = 0 if prompt[0] == MARKED else min(args["after"], length)
            expected = expected[:free] + [args["token"]] * (length - free)
        assert found[name].token_ids == expected, name


def test_a_class_without_a_check_of_its_own_needs_no_process_for_checks(written: Path) -> None:
    (written / "checking.py").write_text("""
from written import CountsRows


class Checks(CountsRows):
    @staticmethod
    def validate_params(sampling_params):
        pass
""")
    plain, checking = load_processors(["written:CountsRows", "checking:Checks"])
    assert (plain.checks_with_own_code, checking.checks_with_own_code) == (False, True)


def test_fields_answer_what_paddle_code_asks_of_them(written: Path) -> None:
    engine = engine_with("written:Asks")
    requests = [request(f"r{index}", [index + 1, 3], max_tokens=2 + index) for index in range(3)]
    with_it = ran(engine, requests)
    assert {name: each.token_ids for name, each in with_it.items()} == {
        name: each.token_ids for name, each in ran(engine_with(), requests).items()
    }
    told = sys.modules["written"].Asks.told
    assert [len(each["not"]) for each in told] == [3, 3, 2, 1]
    first = told[0]
    assert first["config"] == (MARKED, -1, "float32", VOCAB_SIZE, 64, SLOTS, "absent")
    assert first["not"] == [[True]] * 3
    assert first["equal"] == [True] * 3
    assert first["loop"] == [(False, False, [False])] * 3
    assert (first["any"], first["item"], first["truth"], first["cast"]) == (False, False, True, 0)
    assert (first["shape"], first["dtype"], first["on host"]) == ([3, 1], "paddle.bool", True)
    assert [each["steps"][-1] for each in told] == [[1], [2], [3], [4]]
    assert {"pre_ids", "prompt_ids", "token_ids_all", "req_ids", "infer_seed"} <= set(first["fields"])


def test_the_documents_sample_runs_under_its_own_import(written: Path) -> None:
    spec = "support.documents_fastdeploy:YourLogitsProcessor"
    (declared,) = load_processors([spec])
    assert declared.dialect.name == "fastdeploy"
    enabled = {"enable_your_logits_processor": True}
    made = [request("on", [1, 2], logits_processors_args=enabled, max_tokens=3), request("off", [1, 2], max_tokens=3)]
    found = ran(engine_with(spec), made)
    assert found["on"].token_ids == [345] * 3
    assert found["off"].token_ids == ran(engine_with(), made)["off"].token_ids


def test_arguments_of_fastdeploys_own_classes_are_checked_when_a_request_arrives(written: Path) -> None:
    specs = ["written:LogitBiasLogitsProcessor", "written:ThinkingBudgetLogitsProcessor"]
    validator = RequestArgsValidator(load_processors(specs), VOCAB_SIZE, lambda text: [len(text), 7])
    given = {"logit_bias": {"42": 5}, "thinking_budget": 3, "think_stop_sentence": "Enough."}
    selection = validator.validate(SamplingParams(logits_processors_args=given))
    assert selection.flat == {"logit_bias": {42: 5.0}, "thinking_budget": 3, "think_stop_sentence": [7, 7]}
    found = ran(engine_with(*specs), [request("r", [1, 2], selection=selection, max_tokens=2), request("s", [1, 2])])
    assert found["r"].token_ids == [42, 42]
    seen = sys.modules["written"].ThinkingBudgetLogitsProcessor.seen
    assert {"logit_bias": {42: 5.0}, "thinking_budget": 3, "think_stop_sentence_token_ids": [7, 7]} in seen
    for wrong in ({"logit_bias": {"512": 1.0}}, {"logit_bias": 5}, {"thinking_budget": -1}, {"thinking_budgets": 1}):
        with pytest.raises(RequestArgsError):
            validator.validate(SamplingParams(logits_processors_args=wrong))


@pytest.mark.parametrize(
    "path",
    [
        "fastdeploy.model_executor.logits_processor:LogitsProcessor",
        "fastdeploy.model_executor.logits_processor:LogitBiasLogitsProcessor",
        "fastdeploy.model_executor.logits_processor:load_class",
        "fastdeploy.model_executor.logits_processor:build_logits_processors",
        "fastdeploy.model_executor.logits_processor.base:LogitsProcessor",
        "fastdeploy.model_executor.logits_processor.builtin:LogitBiasLogitsProcessor",
        "fastdeploy.model_executor.logits_processor.thinking_budget:ThinkingBudgetLogitsProcessor",
        "fastdeploy.openai.logits_processor:LogitsProcessor",
        "fastdeploy.config:FDConfig",
        "fastdeploy.config:ModelConfig",
        "fastdeploy.config:validate_thinking_token_sequences",
        "fastdeploy.engine.sampling_params:SamplingParams",
        "fastdeploy.logger:get_logger",
        "fastdeploy.utils:console_logger",
        "fastdeploy:LLM",
        "fastdeploy:SamplingParams",
        "paddleformers.utils.log:logger",
    ],
)
def test_an_import_path_of_fastdeploys(path: str) -> None:
    module, _, name = path.partition(":")
    with fastdeploy_stand_ins():
        found = importlib.import_module(module)
        assert getattr(found, name) is not None
        with pytest.raises(AttributeError, match="stand-in"):
            found.no_such_name  # noqa: B018 - the access is the test


def test_its_loader_and_builder_do_what_the_servers_do(written: Path) -> None:
    interface = importlib.import_module("fastdeploy.model_executor.logits_processor")
    assert interface.load_class("written:CountsRows") is sys.modules["written"].CountsRows
    config = tiny_fd_config()
    policy = replace(config.structured_outputs_config, logits_processors=("written:CountsRows",))
    (built,) = interface.build_logits_processors(replace(config, structured_outputs_config=policy))
    assert type(built) is sys.modules["written"].CountsRows


@pytest.mark.parametrize(
    ("sequences", "valid"),
    [
        (None, True),
        ({"start": [[1]], "end": [[2, 3]], "forced_end": [2, 3]}, True),
        ({"start": [[1]], "end": [[2, 3]]}, False),
        ({"start": [[1]], "end": [[2]], "forced_end": [512]}, False),
        ({"start": [[]], "end": [[2]], "forced_end": [2]}, False),
        ([1], False),
    ],
)
def test_thinking_token_sequences(sequences: Any, valid: bool) -> None:
    if valid:
        assert fastdeploy_compat.validate_thinking_token_sequences(sequences, VOCAB_SIZE) == sequences
        return
    with pytest.raises(ValueError, match="think_token_sequences"):
        fastdeploy_compat.validate_thinking_token_sequences(sequences, VOCAB_SIZE)


def test_where_fastdeploy_is_installed_its_own_classes_are_used(folder: Path) -> None:
    package = folder / "fastdeploy" / "model_executor" / "logits_processor"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:2]):
        (each / "__init__.py").touch()
    (package / "__init__.py").write_text("class LogitsProcessor:\n    own = True\n")
    methods = "def __init__(self, fd_config): ...\n    def update_state(self, share_inputs): ...\n"
    source = f"class Real(LogitsProcessor):\n    {methods}    def apply(self, logits):\n        return logits\n"
    (folder / "real.py").write_text(f"from fastdeploy.model_executor.logits_processor import LogitsProcessor\n{source}")
    with fastdeploy_stand_ins():
        (declared,) = load_processors(["real:Real"])
        assert declared.dialect.name == "fastdeploy"
        assert declared.found.own
        assert len(ran(engine_with("real:Real"), [request("r", [1, 2], max_tokens=3)])["r"].token_ids) == 3


def test_without_the_stand_ins_the_option_is_advised(folder: Path) -> None:
    (folder / "written.py").write_text(WRITTEN_FOR_FASTDEPLOY.replace("from paddleformers", "from logging"))
    (folder / "needs.py").write_text("from fastdeploy.config import FDConfig\n")
    assert "add --fastdeploy-compat" in refusal("needs:Anything")
