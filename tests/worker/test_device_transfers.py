"""What a step exchanges with a device: numbers go there without a wait, and one read comes back.

The device computes as a GPU does, and its operators wait where a GPU's do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import Tensor
from support.device_like import DeviceLikePlatform, EmulatedBlockAttention, device_like
from support.grammars import TINY_EOS
from support.phrases_in_use import PHRASES_IN_USE
from support.sequences import chain_of, pooling, request, tiny_engine
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.logits_processor import BUILTIN, Selection
from fastdeploy_lp.logits_processor.testing.tensors import READS
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.platforms import current_platform, host_memory
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore

to_tensor = paddle.to_tensor
# Builtins that see in the logits of one step what they do in the next, and read that at its beginning, and one whose
# result is what it reads.
WATCHING = {"LowConfidenceFallback", "ForceLastPhrase", "TriggerPhrase", "ClassProbabilities", "Mirostat"}


class WaitingCopyError(AssertionError):
    """A tensor was made from the host's numbers in a way for which the host waits."""


@pytest.fixture
def waits() -> list[str]:
    """Names what the host has waited for besides reads."""
    return []


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch, waits: list[str]) -> Iterator[DeviceLikePlatform]:
    """A device whose attention reads nothing, and whose tensors the host cannot reach; a test must leave no waits."""

    def operate(self: EmulatedBlockAttention, qkv: Tensor, *_: object) -> Tensor:
        return qkv[:, : self.dims.num_heads * self.dims.head_dim].clone()

    monkeypatch.setattr(EmulatedBlockAttention, "_operate", operate)
    monkeypatch.setattr(host_memory, "in_host_memory", lambda _: False)
    with device_like(waits.append) as made:
        yield made
    assert waits == []


@contextmanager
def transfers() -> Iterator[list[str]]:
    """The reads of what is done within; a copy that waits raises WaitingCopyError."""
    reads: list[str] = []
    platform = current_platform()
    assert isinstance(platform, DeviceLikePlatform)

    def watched(name: str) -> Any:
        read = getattr(Tensor, name)

        def run(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            reads.append(name)
            platform.queue.reads += 1
            return read(self, *args, **kwargs)

        return run

    def make(data: NDArray[Any], *args: Any, place: Any = None, **kwargs: Any) -> Tensor:
        if not isinstance(place, paddle.CPUPlace):
            raise WaitingCopyError(f"paddle.to_tensor of {np.shape(data)}")
        return to_tensor(data, *args, place=place, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            if hasattr(Tensor, name):
                patch.setattr(Tensor, name, watched(name))
        patch.setattr(paddle, "to_tensor", make)
        patch.setattr(platform.queue, "on_read", lambda: reads.append("read_later"))
        yield reads


def demanding(selections: Sequence[Selection]) -> list[AddRequest]:
    """Requests that use all that the sampler has, two for each selection, and pooled prompts."""
    edits: dict[str, Any] = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "bad_words_token_ids": [[3], [4, 5]],
        "allowed_token_ids": list(range(2, 60)),
        "logprobs": 3,
        "prompt_logprobs": 2,
    }
    filters: list[dict[str, Any]] = [{"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.8}, {"temperature": 0.0}]
    made: list[AddRequest] = [
        request(
            f"r{index}",
            [index + 1, 2, 6, 5, 6],
            max_tokens=4,
            selection=selection,
            **{"temperature": 0.9, **filters[index % 4], **(edits if index % 5 == 0 else {})},
        )
        for index, selection in enumerate([*selections, *selections])
    ]
    return [*made, pooling("mean", [1, 2, 3] * 8, "mean"), pooling("last", [4] * 20, "last")]


def reads_of_steps(engine: EngineCore, requests: Sequence[AddRequest]) -> list[tuple[int, bool]]:
    """For every step, how often it read, and whether it had something to read.

    Steps in which a row is left without a token run its stages again, and are not counted.
    """
    for each in requests:
        engine.add(each)
    found = []
    while engine.has_work:
        with transfers() as reads:
            steps = engine.step().steps
        # Cuts and lists of tokens may leave a row with nothing; no other fault is right.
        errors = [step.error for step in steps if step.error]
        assert all("left no token" in error for error in errors)
        if not errors:
            found.append((len(reads), bool(steps)))
    return found


def test_a_step_without_processors_reads_once_and_waits_for_no_copy() -> None:
    found = reads_of_steps(tiny_engine(max_num_seqs=5, max_num_batched_tokens=16), demanding([Selection()] * 4))
    assert all(reads == int(something) for reads, something in found)
    assert len(found) > 8


SETTINGS: dict[str, dict[str, Any]] = {
    "LogitBias": {"logit_bias": {7: 2.0, 9: -np.inf}},
    "SequenceBias": {"sequence_bias": [[[5, 6], 2.0], [[7], -np.inf]]},
    "AllowedTokens": {"allowed_token_ids": [4, 5, 6]},
    "BadWords": {"bad_words_token_ids": [[4], [5, 6]]},
    "MinTokens": {"min_tokens": 3},
    "RepetitionPenalty": {"repetition_penalty": 1.3},
    "PresencePenalty": {"presence_penalty": 0.5},
    "FrequencyPenalty": {"frequency_penalty": 0.5},
    "NoRepeatNGram": {"no_repeat_ngram_size": 1},
    "DRY": {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    "ExponentialLengthDecay": {"exponential_decay_length_penalty": [1, 1.5]},
    "MinP": {"min_p": 0.05},
    "TopNSigma": {"top_n_sigma": 1.0},
    "TypicalP": {"typical_p": 0.5},
    "EpsilonCutoff": {"epsilon_cutoff": 0.001},
    "EtaCutoff": {"eta_cutoff": 0.001},
    "XTC": {"xtc_probability": 1.0, "xtc_threshold": 0.001},
    "GumbelWatermark": {"gumbel_key": 7, "gumbel_context_width": 1},
    "SynthIDWatermark": {"synthid_key": 7, "synthid_context_width": 1},
    "Mirostat": {"mirostat_tau": 3.0},
    "ClassProbabilities": {"class_labels": [{"text": "A", "tokens": [[5]]}, {"text": "B", "tokens": [[6, 7]]}]},
    **PHRASES_IN_USE,
}


def test_every_builtin_has_a_setting() -> None:
    # It needs a tokenizer, and is one of FEATURES.
    with_tokenizer = {"PhraseBanLogitsProcessor"}
    assert {f"{noun}LogitsProcessor" for noun in SETTINGS} | with_tokenizer == set(BUILTIN)


@pytest.mark.parametrize("watching", [False, True])
def test_builtins_wait_for_no_copy_and_read_at_most_once_more(watching: bool) -> None:
    """Each in two requests of its own, all in one chain."""
    settings = {f"{noun}LogitsProcessor": args for noun, args in SETTINGS.items() if (noun in WATCHING) is watching}
    engine = tiny_engine(list(settings), max_num_seqs=6, max_num_batched_tokens=24, eos_token_ids=(0,))
    found = reads_of_steps(engine, demanding([Selection(named={name: args}) for name, args in settings.items()]))
    extra = {reads - int(something) for reads, something in found}
    # Each that watches reads its own rows' signs.
    assert max(extra) <= (len(settings) if watching else 0)
    assert [name for name in settings if engine.runner.chain.stats[name].rows == 0] == []


def test_several_orders_wait_for_no_copy() -> None:
    engine = tiny_engine(["LogitBiasLogitsProcessor", "second=LogitBiasLogitsProcessor"], max_num_seqs=5)
    names = ("second", "LogitBiasLogitsProcessor")
    selection = Selection(named={name: {"logit_bias": {5: 1.0}} for name in names}, order=names)
    found = reads_of_steps(engine, demanding([selection, Selection(), Selection()]))
    assert all(reads == int(something) for reads, something in found)


FEATURES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"top_p": 0.9},
    {"top_k": 7},
    {"min_p": 0.05},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.01},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"bad_words_token_ids": [[3], [4, 5]]},
    {"allowed_token_ids": list(range(2, 60))},
    {"min_tokens": 2, "stop_token_ids": [5]},
    {"selection": Selection(flat={"logit_bias": {7: 2.0, 9: -np.inf}})},
    {"logprobs": 3},
    {"logprobs": 20, "top_k": 5},
    {"prompt_logprobs": 2, "temperature": 0.0},
    {"logits_processors_trace": TraceParams(top_k=5), "top_p": 0.7},
    {"selection": Selection(named={"PhraseBanLogitsProcessor": {"banned_phrases": ["dog", "77"]}})},
]
DIGITS = grammar_of(GuidedDecodingParams(regex="[0-9]{3}")).text


def with_each_feature(count: int) -> list[AddRequest]:
    """This many requests, every other feature twice: with a grammar and without."""
    made = []
    for index in range(count):
        params = {"temperature": 0.9, "seed": index, "max_tokens": 3, **FEATURES[index // 2 % len(FEATURES)]}
        each = request(f"r{index}", [index % 200 + 1, 2, 6, 5, 6], **params)
        # A grammar of digits and a list of other tokens leave no token.
        if index % 2 and "allowed_token_ids" not in params:
            each.grammar = DIGITS
        made.append(each)
    return made


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize(("batch", "requests"), [(1, 34), (8, 34), (256, 256)])
def test_with_every_sampling_feature_a_step_waits_for_its_one_read_alone(
    batch: int, requests: int, mode: str, tmp_path: Path
) -> None:
    """Whatever the number of rows; the fixture sees that nothing else has waited."""
    config = tiny_fd_config(
        max_num_seqs=batch, max_num_batched_tokens=2 * batch + 8, eos_token_ids=(TINY_EOS,), logprobs_mode=mode
    )
    directory = str(write_tiny_checkpoint(tmp_path))
    config = replace(config, model_config=replace(config.model_config, directory=directory))
    engine = EngineCore(config, chain_of(["LogitBiasLogitsProcessor", "PhraseBanLogitsProcessor"], config))
    found = reads_of_steps(engine, with_each_feature(requests))
    # A step that holds its tokens back, since a banned phrase may begin with them, reads and reports nothing.
    assert [step for step in found if not int(step[1]) <= step[0] <= 1] == []
    assert len(found) >= 3 * requests // batch


def test_the_host_copies_of_256_rows_of_a_large_vocabulary_wait_for_nothing(platform: DeviceLikePlatform) -> None:
    """A mask for 151,936 tokens, before and after the chain, and penalties for all of 4,096 tokens of each row."""
    mask = np.zeros((256, 151_936 // 32), np.int32)
    lists = [np.zeros(256 * 4096, dtype) for dtype in (np.int64, np.int64, np.float64, np.float64, np.float64)]
    drawn = platform.to_device(np.arange(256))
    for _ in range(3):
        with transfers() as reads:
            sent = [platform.to_device(host) for host in (mask, *lists, mask)]
            drawn.numpy()
        assert len(sent) == 7
        assert len(reads) == 1


def test_the_audit_sees_a_copy_that_waits() -> None:
    with transfers(), pytest.raises(WaitingCopyError):
        paddle.to_tensor([1.0])


def test_the_audit_sees_an_operator_that_waits(waits: list[str]) -> None:
    paddle.cumsum(paddle.ones([1, 4]), axis=-1)
    assert waits == ["cumsum of one row"]
    waits.clear()
