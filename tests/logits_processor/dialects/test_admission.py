"""Arguments that a processor of a per-request dialect cannot use are refused before the worker sees the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest
import torch
from pydantic import BaseModel
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from support.tried import RAISED

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, TokenId, load_processors
from fastdeploy_lp.model_tokenizer import model_tokenizer
from fastdeploy_lp.openai.logits_processor import LogitsProcessor
from fastdeploy_lp.request.sampling_params import SamplingParams

VOCAB_SIZE = 512
LIBRARY = "transformers.generation.logits_process"


class RaisesInParams(BaseModel):
    kind: str

    def model_post_init(self, _: Any) -> None:
        raise RAISED[self.kind]()


class NativeRaises(LogitsProcessor):
    """Raises while it validates the request, whatever the request passes."""

    def __init__(self, fd_config: Any) -> None: ...
    def update_state(self, share_inputs: Any) -> None: ...
    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        return logits

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        kind = (sampling_params.extra_args or {}).get("kind")
        if kind is not None:
            raise RAISED[kind]()


class NativeRaisesInParams(NativeRaises):
    Params = RaisesInParams


class Returns:
    """Returns something else than the logits."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        return {"nothing": None, "narrow": scores[:, :5], "doubles": scores.double(), "row": scores[0]}[self._what]


def named(spec: str, args: dict[str, Any], directory: Path | None = None) -> dict[str, Any]:
    """The arguments of a request that names the processor, as they are sent on; raises RequestArgsError."""
    declared = load_processors([f"p={spec}"])
    tokenizer = model_tokenizer(str(directory), (2,)) if directory is not None else None
    validator = RequestArgsValidator(declared, VOCAB_SIZE, tokenizer=tokenizer)
    chosen = validator.validate(SamplingParams(logits_processors={"p": args})).named
    assert chosen is not None
    return chosen["p"]


def refusal(spec: str, args: dict[str, Any]) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        named(spec, args)
    return caught.value


@pytest.mark.parametrize(
    ("name", "args", "where"),
    [
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": 512}, ".eos_token_id"),
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": -1}, ".eos_token_id"),
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": [2, 2**40]}, ".eos_token_id"),
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": "2"}, ".eos_token_id"),
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": None}, ".eos_token_id"),
        ("MinLengthLogitsProcessor", {"min_length": 5.5, "eos_token_id": 2}, ".min_length"),
        ("MinLengthLogitsProcessor", {"eos_token_id": 2}, ".min_length"),
        ("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": 2, "device": "cuda:1"}, ""),
        ("ForcedBOSTokenLogitsProcessor", {"bos_token_id": 512}, ".bos_token_id"),
        ("ForcedEOSTokenLogitsProcessor", {"max_length": 9, "eos_token_id": [512]}, ".eos_token_id"),
        ("SuppressTokensLogitsProcessor", {"suppress_tokens": [5, 999]}, ".suppress_tokens"),
        ("SuppressTokensLogitsProcessor", {"suppress_tokens": "all"}, ".suppress_tokens"),
        ("SuppressTokensAtBeginLogitsProcessor", {"begin_suppress_tokens": [512], "begin_index": 1}, "_tokens"),
        ("NoBadWordsLogitsProcessor", {"bad_words_ids": [[3], [4, 512]]}, ".bad_words_ids"),
        ("SequenceBiasLogitsProcessor", {"sequence_bias": [[[3, 512], 1.0]]}, ""),
        ("SequenceBiasLogitsProcessor", {"sequence_bias": [[3, 1.0]]}, ""),
        ("BarkEosPrioritizerLogitsProcessor", {"eos_token_id": 512, "min_eos_p": 0.5}, ".eos_token_id"),
        ("TemperatureLogitsWarper", {"temperature": 0.0}, ""),
        ("TemperatureLogitsWarper", {"temperature": "hot"}, ".temperature"),
        ("TopKLogitsWarper", {"top_k": True}, ".top_k"),
        ("TopKLogitsWarper", {"top_k": 5, "top_q": 1}, ".top_q"),
        ("WatermarkLogitsProcessor", {"vocab_size": 10**9}, ""),
    ],
)
def test_wrong_arguments_of_transformers_classes_are_that_requests(name: str, args: dict[str, Any], where: str) -> None:
    error = refusal(f"{LIBRARY}:{name}", args)
    assert error.path.startswith("logits_processors.p")
    assert error.path.endswith(where or "p")


@pytest.mark.parametrize("given", [{}, {"vocab_size": VOCAB_SIZE}, {"device": "cpu", "vocab_size": VOCAB_SIZE}])
def test_a_request_may_repeat_what_the_server_supplies(given: dict[str, Any]) -> None:
    assert named(f"{LIBRARY}:WatermarkLogitsProcessor", given) == given


def test_an_integer_may_stand_for_a_number_and_a_list_for_a_tuple() -> None:
    assert named(f"{LIBRARY}:TemperatureLogitsWarper", {"temperature": 2}) == {"temperature": 2.0}
    decay = {"exponential_decay_length_penalty": [1, 2], "eos_token_id": 2, "input_ids_seq_length": 3}
    assert tuple(named(f"{LIBRARY}:ExponentialDecayLengthPenalty", decay)["exponential_decay_length_penalty"]) == (1, 2)


@pytest.mark.parametrize("token", [VOCAB_SIZE, 10**9, -VOCAB_SIZE - 1])
@pytest.mark.parametrize("plugin", ["PLUGIN", "TOKENIZER_SECOND"])
def test_a_plugin_that_fails_at_its_call_refuses_the_request(plugin: str, token: int) -> None:
    assert refusal(f"support.tried:{plugin}", {"token_id": token}).path == "logits_processors.p"
    assert named(f"support.tried:{plugin}", {"token_id": 7}) == {"token_id": 7}


def test_the_tokenizer_goes_to_the_parameter_of_its_name(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    assert named("support.tried:TOKENIZER_SECOND", {"token_id": 7}, directory) == {"token_id": 7}


@pytest.mark.parametrize("when", ["build", "first", "second"])
@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.usefixtures("as_in_a_worker")
def test_whatever_a_processor_raises_is_the_requests_error(kind: str, when: str) -> None:
    error = refusal("support.tried:Raises", {"kind": kind, "when": when})
    assert error.path == "logits_processors.p"
    assert type(RAISED[kind]()).__name__ in error.reason


@pytest.mark.parametrize("name", ["NativeRaises", "NativeRaisesInParams"])
@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.usefixtures("as_in_a_worker")
def test_whatever_a_native_check_raises_is_the_requests_error(kind: str, name: str) -> None:
    assert type(RAISED[kind]()).__name__ in refusal(f"{__name__}:{name}", {"kind": kind}).reason


@pytest.mark.parametrize("what", ["nothing", "narrow", "doubles", "row"])
def test_a_result_that_is_no_row_refuses_the_request(what: str) -> None:
    assert "returned" in refusal(f"{__name__}:Returns", {"what": what}).reason


class ByToken(BaseModel):
    one: TokenId | None = None
    several: list[TokenId] = []
    biases: dict[TokenId, float] = {}


class TakesTokens(NativeRaises):
    Params = ByToken


@pytest.mark.parametrize(
    ("args", "settled"),
    [
        ({"one": 511}, {"one": 511}),
        ({"several": [0, 511]}, {"several": [0, 511]}),
        ({"biases": {"0": 1.0, "511": 2.0, 7: 3.0}}, {"biases": {0: 1.0, 511: 2.0, 7: 3.0}}),
    ],
)
def test_token_ids_are_integers_or_keys(args: dict[str, Any], settled: dict[str, Any]) -> None:
    assert named(f"{__name__}:TakesTokens", args) == settled


@pytest.mark.parametrize("token", [512, -1, True, 5.0, "042", " 42", "4_2", "+42", "42.0", "-1", "٤", None, [3]])
def test_what_is_no_token_id_is_refused_at_its_place(token: Any) -> None:
    assert refusal(f"{__name__}:TakesTokens", {"several": [3, token]}).path.endswith(".several.1")
    if isinstance(token, str):
        assert refusal(f"{__name__}:TakesTokens", {"biases": {token: 1.0}}).path.endswith(f".biases.{token}")


def test_forms_made_of_the_schema_offer_tokens() -> None:
    schema = ByToken.model_json_schema()["properties"]
    token = {"type": "integer", "format": "token-id"}
    assert schema["several"]["items"] == token
    assert token in schema["one"]["anyOf"]
    (declared,) = load_processors([f"{LIBRARY}:MinLengthLogitsProcessor"])
    assert declared.params_model is not None
    schema = declared.params_model.model_json_schema()["properties"]["eos_token_id"]
    assert schema["anyOf"] == [token, {"type": "array", "items": token}]


def test_a_processor_of_its_own_gets_the_models_tokenizer(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    config = tiny_fd_config(eos_token_ids=(2,))
    object.__setattr__(config.model_config, "directory", str(directory))
    assert config.tokenizer.eos_token_id == 2
    assert config.tokenizer is config.tokenizer
