"""The stand-ins that do something: configuration, parameters, errors, loggers, platform and tokenizer."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from support.sequences import request, run_to_end, tiny_engine
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.logits_processor.dialects.batch_tracker import ServedParams
from fastdeploy_lp.logits_processor.vllm_compat import platform, utils
from fastdeploy_lp.logits_processor.vllm_compat import requests as exceptions
from fastdeploy_lp.logits_processor.vllm_compat.requests import SamplingParams
from fastdeploy_lp.logits_processor.vllm_compat.tokenizer import cached_tokenizer_from_config, get_tokenizer
from fastdeploy_lp.logits_processor.vllm_compat.utils import init_logger
from fastdeploy_lp.logits_processor.vllm_config import HfConfig, VllmConfig, get_current_vllm_config
from fastdeploy_lp.request import sampling_params as own
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams


def test_the_configuration_has_what_processors_read() -> None:
    fd_config = tiny_fd_config()
    config = VllmConfig.from_fd_config(fd_config)
    model, hf_config = config.model_config, fd_config.model_config.hf_config
    assert model.tokenizer == fd_config.model_config.directory
    assert model.trust_remote_code is False
    assert model.hf_config.vocab_size == model.get_vocab_size() == model.hf_text_config.vocab_size == 512
    assert model.get_hidden_size() == hf_config["hidden_size"]
    assert model.hf_config.to_dict() == hf_config
    assert getattr(model.hf_config, "no_such_key", None) is None
    assert (config.scheduler_config.max_num_seqs, config.scheduler_config.max_model_len) == (8, 64)
    assert (config.speculative_config, config.reasoning_config) == (None, None)
    assert HfConfig.of({"text_config": {"hidden_size": 3}}).get_text_config().hidden_size == 3
    assert VllmConfig().model_config.get_vocab_size() == 0


def test_the_current_configuration_is_that_of_the_processor_being_built() -> None:
    seen: list[Any] = []
    with vllm_stand_ins():
        from vllm.v1.sample.logits_processor import LogitsProcessor

        class Asks(LogitsProcessor):
            def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
                seen.append(vllm_config)
                assert get_current_vllm_config() is vllm_config
                assert vllm_config.model_config.dtype is torch.float32

            def is_argmax_invariant(self) -> bool:
                return False

            def update_state(self, batch_update: Any) -> None:
                for _, params, _, _ in batch_update.added if batch_update else ():
                    assert isinstance(params, SamplingParams)
                    seen.append(params)

            def apply(self, logits: torch.Tensor) -> torch.Tensor:
                return logits

        engine = tiny_engine([Asks], eos_token_ids=(3,))
        run_to_end(engine, [request("r", [1], max_tokens=1, stop_token_ids=[9])])
    assert seen[0].model_config.get_vocab_size() == 512
    assert seen[1].all_stop_token_ids == {3, 9}
    with pytest.raises(RuntimeError, match="constructor"):
        get_current_vllm_config()


def test_sampling_params_are_this_servers_with_vllms_default_length() -> None:
    made = SamplingParams(temperature=0.0, extra_args={"thinking_budget": 7})
    assert type(made) is own.SamplingParams
    assert isinstance(made, SamplingParams)
    assert issubclass(ServedParams, SamplingParams)
    assert (made.max_tokens, SamplingParams(max_tokens=None).max_tokens) == (16, None)
    assert (made.thinking_token_budget, own.SamplingParams().thinking_token_budget) == (7, None)
    assert (made.eos_token_id, made.all_stop_token_ids, made.structured_outputs) == (None, set(), None)
    regex = GuidedDecodingParams(regex="a+")
    assert SamplingParams(structured_outputs=regex).structured_outputs is regex
    copy = made.clone()
    copy.extra_args.clear()
    assert made.extra_args == {"thinking_budget": 7}
    with pytest.raises(TypeError, match="detokenize"):
        SamplingParams(detokenize=False)


def test_a_validation_error_refuses_a_request_and_names_its_parameter() -> None:
    error = exceptions.VLLMValidationError("too large", parameter="k", value=3)
    assert str(error) == "too large (parameter=k, value=3)"
    assert isinstance(error, ValueError)
    assert isinstance(error, exceptions.VLLMClientError)
    assert str(exceptions.VLLMValidationError("no")) == "no"


def test_a_logger_says_a_thing_once(caplog: pytest.LogCaptureFixture) -> None:
    logger: Any = init_logger("a.package")
    assert init_logger("a.package") is logger is logging.getLogger("a.package")
    with caplog.at_level(logging.DEBUG, "a.package"):
        for _ in range(3):
            logger.warning_once("token %s", 5)
            logger.info_once("loaded", scope="global")
            logger.debug_once("seen")
            logger.error_once("wrong")
        logger.warning_once("token %s", 6)
    assert [record.getMessage() for record in caplog.records] == ["token 5", "loaded", "seen", "wrong", "token 6"]
    assert {record.filename for record in caplog.records} == {Path(__file__).name}
    assert pickle.loads(cloudpickle.dumps(logger)) is logger


def test_the_platform_is_the_device_that_processors_are_told() -> None:
    current = platform.current_platform
    assert (current.device_type, current.device_count()) == ("cpu", 1)
    assert current.is_cpu()
    assert not current.is_cuda()
    assert not current.is_cuda_alike()
    assert not current.is_pin_memory_available()
    assert not utils.is_pin_memory_available()
    with pytest.raises(AttributeError, match="no stand-in"):
        _ = current.get_device_capability


def test_helpers() -> None:
    assert utils.cdiv(7, 2) == 4
    assert len(utils.random_uuid()) == 32
    assert utils.resolve_obj_by_qualname("pathlib.Path") is Path
    assert utils.async_tensor_h2d([1, 2], device="cpu", dtype=torch.int32).tolist() == [1, 2]


def test_the_served_models_tokenizer(tmp_path: Path) -> None:
    config = VllmConfig()
    config.model_config.tokenizer = str(write_tiny_checkpoint(tmp_path))
    tokenizer = cached_tokenizer_from_config(config.model_config)
    model = config.model_config
    assert tokenizer is get_tokenizer(
        model.tokenizer, tokenizer_mode="auto", trust_remote_code=model.trust_remote_code, revision=None
    )
    ids = tokenizer.encode("the dog")
    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.eos_token_id == 2
    assert len(tokenizer.get_vocab()) >= 256
    with pytest.raises(ValueError, match="trust_remote_code"):
        get_tokenizer(str(tmp_path), trust_remote_code=True)
    with pytest.raises(ValueError, match="tokenizer_mode: must be one of auto, hf, slow here, not 'mistral'"):
        get_tokenizer(str(tmp_path), tokenizer_mode="mistral")


def test_a_request_bound_to_a_grammar_shows_it_to_processors() -> None:
    made = request("r", [1])
    made.grammar = '{"grammars": []}'
    from fastdeploy_lp.worker.sequence import Sequence

    assert Sequence.from_request(made, (), 8).params.structured_outputs is not None
    assert Sequence.from_request(request("r", [1]), (), 8).params.structured_outputs is None
