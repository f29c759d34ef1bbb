"""Classes of transformers and of logits-processor-zoo, unmodified: the greedy tokens of Hugging Face's `generate`."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import logits_processor_zoo.transformers as zoo_transformers
import logits_processor_zoo.vllm as zoo_vllm
import pytest
from support.hf_generate import Chain, Reference
from support.sequences import request, run_to_end
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from transformers.generation import logits_process

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import (
    LogitsProcessorChain,
    LogitsProcessorSpecError,
    RequestArgsValidator,
    load_processors,
)
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.worker.engine_core import EngineCore

LIBRARY = logits_process.__name__
LENGTH = 16
EOS = 2
PROMPT = [70, 81, 300, 301, 70, 81, 84, 12, 13, 10, 66, 14]
# Makes one token the most likely one.
BIASED = f"{LIBRARY}:SequenceBiasLogitsProcessor"
# Arguments, and the token that is likely if the processor waits for one.
TRANSFORMERS: dict[str, tuple[dict[str, Any], int | None]] = {
    "MinLengthLogitsProcessor": ({"min_length": 20, "eos_token_id": EOS}, EOS),
    "MinNewTokensLengthLogitsProcessor": (
        {"prompt_length_to_skip": len(PROMPT), "min_new_tokens": 6, "eos_token_id": [EOS]},
        EOS,
    ),
    "TemperatureLogitsWarper": ({"temperature": 0.3}, None),
    "RepetitionPenaltyLogitsProcessor": ({"penalty": 90.0}, 5),
    "TopPLogitsWarper": ({"top_p": 0.4}, None),
    "TopKLogitsWarper": ({"top_k": 3}, None),
    "TopHLogitsWarper": ({"top_h": 0.4}, None),
    "MinPLogitsWarper": ({"min_p": 0.1}, None),
    "TypicalLogitsWarper": ({"mass": 0.3}, None),
    "EpsilonLogitsWarper": ({"epsilon": 0.01}, None),
    "EtaLogitsWarper": ({"epsilon": 0.01}, None),
    "NoRepeatNGramLogitsProcessor": ({"ngram_size": 2}, 5),
    "SequenceBiasLogitsProcessor": ({"sequence_bias": [[[5], 40.0], [[5, 9], 90.0]]}, None),
    "NoBadWordsLogitsProcessor": ({"bad_words_ids": [[5], [70, 81]], "eos_token_id": EOS}, 5),
    "ForcedBOSTokenLogitsProcessor": ({"bos_token_id": 9}, None),
    "ForcedEOSTokenLogitsProcessor": ({"max_length": 20, "eos_token_id": EOS}, None),
    "InfNanRemoveLogitsProcessor": ({}, None),
    "ExponentialDecayLengthPenalty": (
        {
            "exponential_decay_length_penalty": [2, 4.0],
            "eos_token_id": EOS,
            "input_ids_seq_length": len(PROMPT),
        },
        None,
    ),
    "LogitNormalization": ({}, None),
    "SuppressTokensAtBeginLogitsProcessor": ({"begin_suppress_tokens": [5, 6], "begin_index": len(PROMPT)}, 5),
    "SuppressTokensLogitsProcessor": ({"suppress_tokens": list(range(0, 500, 3))}, None),
    "AlternatingCodebooksLogitsProcessor": (
        {"input_start_len": len(PROMPT), "semantic_vocab_size": 100, "codebook_size": 50},
        None,
    ),
    "BarkEosPrioritizerLogitsProcessor": ({"eos_token_id": EOS, "min_eos_p": 1e-6}, None),
    "WatermarkLogitsProcessor": ({"bias": 20.0}, None),
    "SynthIDTextWatermarkLogitsProcessor": (
        {
            "ngram_len": 3,
            "keys": [654, 400, 836],
            "sampling_table_size": 256,
            "sampling_table_seed": 0,
            "context_history_size": 64,
        },
        None,
    ),
}
KEEP_THE_MOST_LIKELY = (
    *("TemperatureLogitsWarper", "TopPLogitsWarper", "TopKLogitsWarper", "TopHLogitsWarper", "MinPLogitsWarper"),
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "InfNanRemoveLogitsProcessor", "LogitNormalization"),
)
REFUSED = {
    "LogitsProcessor": "must be a subclass",
    "LogitsProcessorList": "must be a subclass",
    "SynthIDTextWatermarkState": "must be a subclass",
    "EncoderRepetitionPenaltyLogitsProcessor": "needs encoder_input_ids (torch.LongTensor), which no request can give",
    "EncoderNoRepeatNGramLogitsProcessor": "needs encoder_input_ids (torch.LongTensor), which no request can give",
    "PrefixConstrainedLogitsProcessor": "needs prefix_allowed_tokens_fn (Callable",
    "WhisperTimeStampLogitsProcessor": "needs generate_config (GenerationConfig), which no request can give",
    "WhisperNoSpeechDetection": "needs set_model() and set_inputs(), which only generate() of transformers calls",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "needs model, which no request can give",
    "ClassifierFreeGuidanceLogitsProcessor": "needs two rows for each sequence",
    "DiaClassifierFreeGuidanceLogitsProcessor": "needs two rows for each sequence",
    "DiaEOSChannelFilterLogitsProcessor": "needs a row for each audio channel",
    "DiaEOSDelayPatternLogitsProcessor": "needs a row for each audio channel",
}
PHRASE = "the quick fox."
ZOO: dict[str, tuple[dict[str, Any], int | None]] = {
    "GenLengthLogitsProcessor": ({"boost_factor": 2.0, "p": 1}, None),
    "CiteFromPromptLogitsProcessor": ({"boost_factor": 5.0, "conditional_boost_factor": 4.0}, None),
    "ForceLastPhraseLogitsProcessor": ({"phrase": PHRASE}, EOS),
    "MultipleChoiceLogitsProcessor": ({"choices": ["a", "b", "c"], "boost_first_words": 0.5}, None),
    "TriggerPhraseLogitsProcessor": ({"phrase": PHRASE, "trigger_token_phrase": "e", "trigger_count": 2}, 71),
    "PreventHallucinationLogitsProcessor": ({"minp": 0.9, "tolerate": 2, "phrase": PHRASE}, None),
    "MaxTimeLogitsProcessor": ({"max_time": -1.0}, None),
}
SHORT = {"ForcedBOSTokenLogitsProcessor": [7]}


@dataclasses.dataclass(frozen=True)
class Case:
    """The chain whose last processor is looked at, and the prompt that it runs on."""

    chain: Chain
    prompt: list[int]


def cases() -> dict[str, Case]:
    """By a class's name, with its package's where two have the same."""
    found = {name: case(LIBRARY, name, *given) for name, given in TRANSFORMERS.items()}
    for package in (zoo_transformers, zoo_vllm):
        style = package.__name__.rpartition(".")[2]
        found |= {f"{style}.{name}": case(package.__name__, name, *given) for name, given in ZOO.items()}
    return found


def case(module: str, name: str, args: dict[str, Any], token: int | None) -> Case:
    before = [] if token is None else [(BIASED, {"sequence_bias": [[[token], 60.0]]})]
    return Case([*before, (f"{module}:{name}", args)], SHORT.get(name, PROMPT))


CASES = cases()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(directory)


def config_of(directory: Path) -> FDConfig:
    config = tiny_fd_config(max_num_seqs=8, eos_token_ids=())
    return dataclasses.replace(config, model_config=dataclasses.replace(config.model_config, directory=str(directory)))


@pytest.fixture(scope="module")
def served(directory: Path) -> dict[str, list[int]]:
    """The tokens of every case, all of them running at once, eight a step."""
    config = config_of(directory)
    specs = {
        spec: f"p{index}" for index, spec in enumerate({spec for case in CASES.values() for spec, _ in case.chain})
    }
    declared = load_processors([f"{name}={spec}" for spec, name in specs.items()])
    validator = RequestArgsValidator(declared, config.model_config.vocab_size, tokenizer=config.tokenizer)
    engine = EngineCore(config, LogitsProcessorChain(declared, config))
    requests = []
    for name, case in CASES.items():
        chosen = [{"name": specs[spec], "params": args} for spec, args in case.chain]
        selection = validator.validate(SamplingParams(logits_processors=chosen))
        requests.append(request(name, case.prompt, max_tokens=LENGTH, selection=selection, ignore_eos=True))
    return {name: each.token_ids for name, each in run_to_end(engine, requests).items()}


@pytest.mark.parametrize("name", CASES)
def test_the_tokens_are_those_of_generate(name: str, served: dict[str, list[int]], reference: Reference) -> None:
    case = CASES[name]
    assert served[name] == reference.tokens(case.prompt, LENGTH, case.chain)
    unchanged = served[name] == reference.tokens(case.prompt, LENGTH, case.chain[:-1])
    assert unchanged == (name in KEEP_THE_MOST_LIKELY)


def classes_of_the_library() -> list[str]:
    found = vars(logits_process).items()
    return [name for name, value in found if inspect.isclass(value) and value.__module__ == LIBRARY]


def test_every_class_of_the_library_runs_or_is_refused() -> None:
    assert sorted([*TRANSFORMERS, *REFUSED]) == sorted(classes_of_the_library())


def test_every_class_of_the_zoo_runs() -> None:
    assert sorted(zoo_transformers.__all__) == sorted(zoo_vllm.__all__) == sorted(ZOO)


@pytest.mark.parametrize("name", REFUSED)
def test_classes_that_need_more_than_a_request_has_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(LogitsProcessorSpecError) as caught:
        load_processors([f"{LIBRARY}:{name}"])
    assert REFUSED[name] in str(caught.value)
