from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.logits_processor import ProcessorStats, Selection
from fastdeploy_lp.messages import (
    AbortRequests,
    AddRequest,
    FromWorker,
    PackedLogprobs,
    ResetProcessor,
    SequenceStep,
    Shutdown,
    StageNumbers,
    StageTrace,
    StepOutputs,
    TokenLogprobs,
    ToWorker,
    WorkerFailed,
    WorkerReady,
    WorkerStart,
    decoder,
    encode,
)
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.pooling_params import PoolingParams
from fastdeploy_lp.request.sampling_params import MAX_SEED, SettledParams
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.stats import SchedulerStats, ShadowStats

names = st.text(st.characters(codec="utf-8"), max_size=10)
tokens = st.integers(0, 2**31)
biases = st.floats(allow_nan=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | biases | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(names, json_values, max_size=3) | st.fixed_dictionaries(
    {"logit_bias": st.dictionaries(tokens, biases, max_size=5)}
)
sampling_params = st.builds(
    SettledParams,
    n=st.integers(1, 128),
    temperature=st.floats(0, 100),
    top_p=st.floats(1e-9, 1),
    top_k=st.integers(-1, 2**31),
    seed=st.none() | st.integers(0, MAX_SEED),
    max_tokens=st.none() | st.integers(1, 2**31),
    stop=st.none() | st.lists(names.filter(bool), max_size=3),
    stop_token_ids=st.none() | st.lists(tokens, max_size=3),
    ignore_eos=st.booleans(),
    logits_processors_args=st.none() | arguments,
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(1e-3, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    bad_words=st.none() | st.lists(names.filter(str.strip), max_size=3),
    bad_words_token_ids=st.none() | st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=3),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1, max_size=3),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    logits_processors_trace=st.none() | st.builds(TraceParams, top_k=st.integers(1, 20), max_tokens=st.integers(1, 99)),
    guided_decoding=st.none() | st.builds(GuidedDecodingParams, json=st.dictionaries(names, json_values, max_size=3)),
)
selections = st.builds(
    Selection,
    flat=arguments,
    named=st.none() | st.dictionaries(names, arguments, max_size=3),
    order=st.none() | st.lists(names, max_size=3).map(tuple),
    shadow=st.lists(names, max_size=3).map(tuple),
)
to_worker = st.one_of(
    st.builds(
        AddRequest,
        request_id=names,
        prompt_token_ids=st.lists(tokens),
        params=sampling_params,
        selection=selections,
        grammar=st.none() | names,
        pooling=st.none() | st.builds(PoolingParams, pooling=st.sampled_from(["mean", "last"])),
    ),
    st.builds(ResetProcessor, name=names),
    st.builds(AbortRequests, request_ids=st.lists(names)),
    st.just(Shutdown()),
)
logprobs = st.builds(
    TokenLogprobs,
    token_ids=st.lists(tokens, min_size=1, max_size=3),
    logprobs=st.lists(st.floats(-1e4, 0), min_size=1, max_size=3) | st.just([-math.inf]),
    rank=tokens,
)
numbers = st.builds(
    StageNumbers,
    token_ids=st.lists(tokens, max_size=3),
    logits=st.lists(biases, max_size=3),
    log_sum=biases,
    entropy=biases,
    moved=biases,
    most_likely=tokens,
    logit=biases,
    rank=tokens,
)
stages = st.builds(StageTrace, name=names, kind=names, status=names, seconds=biases, numbers=st.none() | numbers)
steps = st.builds(
    SequenceStep,
    request_id=names,
    token_ids=st.lists(tokens, max_size=3),
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    stop_reason=st.none() | tokens,
    error=st.none() | names,
    unavailable=st.booleans(),
    by_request=st.booleans(),
    num_cached_tokens=st.none() | tokens,
    scheduled_at=st.none() | st.floats(allow_nan=False),
    logprobs=st.none() | st.lists(logprobs, max_size=2),
    prompt_logprobs=st.none()
    | st.builds(PackedLogprobs, width=tokens, token_ids=st.binary(), logprobs=st.binary(), ranks=st.binary()),
    pooled=st.none() | st.binary(max_size=20),
    trace=st.none() | st.lists(st.lists(stages, max_size=3), max_size=2),
    shadows=st.none() | st.lists(st.dictionaries(names, st.none() | st.integers(-1, 2**31), max_size=3), max_size=2),
)
processor_stats = st.builds(
    ProcessorStats,
    name=names,
    state=st.sampled_from(["ok", "quarantined"]),
    seconds=st.floats(0, 1e6),
    rows=tokens,
    requests=tokens,
    faults=tokens,
    slow_steps=tokens,
    skipped_greedy=tokens,
    last_error=st.none() | names,
    shadow=st.builds(ShadowStats, tokens=tokens, changed=tokens, faults=tokens, last_error=st.none() | names),
)
from_worker = st.one_of(
    st.builds(
        WorkerReady, load_seconds=st.floats(0, 1e6), argmax_invariant=st.dictionaries(names, st.booleans(), max_size=3)
    ),
    st.builds(WorkerFailed, message=names),
    st.builds(
        StepOutputs,
        steps=st.lists(steps, max_size=4),
        scheduler_stats=st.builds(SchedulerStats, tokens, tokens, tokens, tokens, tokens, tokens, tokens, biases),
        processors=st.none() | st.lists(processor_stats, max_size=3),
    ),
)


def sent(message: Any, kind: Any) -> Any:
    return decoder(kind).decode(encode(message))


@settings(max_examples=150)
@given(to_worker)
def test_what_the_worker_is_told_arrives_as_it_was(message: Any) -> None:
    arrived = sent(message, ToWorker)
    assert type(arrived) is type(message)
    assert arrived == message


@settings(max_examples=100)
@given(from_worker)
def test_what_the_worker_says_arrives_as_it_was(message: Any) -> None:
    arrived = sent(message, FromWorker)
    assert type(arrived) is type(message)
    assert arrived == message


def test_token_ids_in_processor_arguments_stay_integers() -> None:
    args = {"logit_bias": {5: 1.5, 0: -math.inf}, "deep": [{"7": {7: True}}]}
    arrived = sent(AddRequest("r", [1], SettledParams(), Selection(args, {"P": args})), ToWorker)
    for came in (arrived.selection.flat, arrived.selection.named["P"]):
        assert came == args
        assert [type(key) for key in came["logit_bias"]] == [int, int]
        assert list(came["deep"][0]) == ["7"]


def test_the_worker_starts_with_the_configuration_it_was_given() -> None:
    policy = StructuredOutputsConfig(
        ("LogitBiasLogitsProcessor", "m:C"), "skip", 3, 0.25, vllm_compat=True, fastdeploy_compat=True
    )
    message = WorkerStart(
        fd_config=tiny_fd_config(eos_token_ids=(2, 7), policy=policy),
        endpoint="ipc://somewhere",
        server_key=bytes(range(40)),
        pickled_processors={"m:C": b"\x00\xff"},
    )
    arrived = sent(message, WorkerStart)
    assert arrived == message
    assert isinstance(arrived.fd_config.model_config.eos_token_ids, tuple)
    assert isinstance(arrived.fd_config.structured_outputs_config.logits_processors, tuple)


@pytest.mark.parametrize("message", [Shutdown(), AbortRequests(["a"])])
def test_each_side_understands_only_what_it_is_told(message: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder(FromWorker).decode(encode(message))
    with pytest.raises(msgspec.ValidationError):
        decoder(ToWorker).decode(encode(WorkerReady(1.0)))


@pytest.mark.parametrize(
    "change",
    [{"params": {"temperature": 1000.0}}, {"params": {"unheard_of": 1}}, {"prompt_token_ids": ["1"]}, {"params": 5}],
)
def test_a_request_that_breaks_the_rules_does_not_arrive(change: dict[str, Any]) -> None:
    request = {"type": "AddRequest", "request_id": "r", "prompt_token_ids": [1], "params": {}}
    decoder(ToWorker).decode(msgspec.msgpack.encode(request))
    with pytest.raises(msgspec.ValidationError):
        decoder(ToWorker).decode(msgspec.msgpack.encode(request | change))


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_noise_is_refused_as_noise(noise: bytes) -> None:
    for kind in (ToWorker, FromWorker):
        with pytest.raises(msgspec.DecodeError):
            decoder(kind).decode(noise)


def test_one_decoder_serves_many_messages() -> None:
    inbox = decoder(ToWorker)
    assert [inbox.decode(encode(AbortRequests([name]))) for name in "abc"] == [AbortRequests([name]) for name in "abc"]
