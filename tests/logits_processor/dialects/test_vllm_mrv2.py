"""Slot-keyed processors for vLLM: its documents' examples and its tests of the interface, by their descriptions."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import paddle
import pytest
import support.hash_bias as hash_bias
from support.device_like import device_like
from support.outcomes import engine_with, naming, run
from support.sequences import Ran, request, run_to_end, tiny_engine
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import load_processors, vllm_mrv2, vllm_v1
from fastdeploy_lp.logits_processor.testing import ProcessorHarness, check_processor
from fastdeploy_lp.logits_processor.testing.report import Outcome
from fastdeploy_lp.messages import AddRequest

VOCAB_SIZE = 512


@pytest.fixture
def examples() -> Iterator[Any]:
    """The module of the examples, written for torch."""
    with vllm_stand_ins():
        yield importlib.import_module("support.slot_keyed_torch")
        del sys.modules["support.slot_keyed_torch"]


def crowd(every: Sequence[dict[str, Any] | None], number: int = 18) -> list[AddRequest]:
    """More requests than slots, of several lengths; their arguments repeat."""
    made = []
    for index in range(number):
        args = every[index % len(every)]
        prompt = [index + 1, 5] * (1 + index % 3)
        made.append(request(f"r{index}", prompt, max_tokens=2 + index % 7, logits_processors_args=args))
    return made


def outputs(processors: Sequence[Any], requests: Sequence[AddRequest], **config: Any) -> dict[str, list[int]]:
    ran = run_to_end(tiny_engine(processors, **{"max_num_seqs": 4, **config}), requests)
    return {name: each.token_ids for name, each in ran.items()}


def test_requests_with_a_target_repeat_it_and_the_others_are_as_without_the_processor(examples: Any) -> None:
    every = [{"target_token": 128}, None, {"target_token": 67}, None]
    plain = outputs([], crowd([None]))
    targeted = outputs([examples.TargetToken], crowd(every))
    for index, (name, tokens) in enumerate(targeted.items()):
        target = (every[index % 4] or {}).get("target_token")
        assert tokens == (plain[name] if target is None else [target] * len(plain[name]))


def repeats(tokens: Sequence[int], size: int) -> bool:
    grams = [tuple(tokens[index : index + size]) for index in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_n_gram_of_an_output_repeats_for_the_requests_that_ask_for_it(examples: Any, size: int) -> None:
    requests = [
        request(f"r{index}", [3, 4, index], max_tokens=24, logits_processors_args={"ngram_size": size} if odd else None)
        for index in range(9)
        for odd in [index % 2]
    ]
    plain, without = outputs([], requests), outputs([examples.NoRepeat], requests)
    for index in range(9):
        if index % 2:
            assert not repeats(without[f"r{index}"], size)
        else:
            assert without[f"r{index}"] == plain[f"r{index}"]
    assert any(repeats(tokens, size) for tokens in plain.values())


def test_a_continuation_found_by_positions_is_forced_and_then_the_request_is_free(examples: Any) -> None:
    every = [{"forced_tokens": [9, 8, 7]}, None, {"forced_tokens": [300]}]
    forced, plain = outputs([examples.Continuation], crowd(every)), outputs([], crowd([None]))
    for index, (name, tokens) in enumerate(forced.items()):
        wanted = (every[index % 3] or {}).get("forced_tokens", [])[: len(tokens)]
        assert tokens[: len(wanted)] == wanted
        assert len(tokens) == len(plain[name])
        if not wanted:
            assert tokens == plain[name]


def test_a_processor_of_single_rows_reads_the_history_that_it_was_given_at_the_start(examples: Any) -> None:
    plain = outputs([], crowd([None]))
    rules = {str(before): after for tokens in plain.values() for before, after in itertools.pairwise(tokens)}
    every = [{"banned_after": rules}, None]
    banned = outputs([examples.RowByRow], crowd(every))
    for index, (name, tokens) in enumerate(banned.items()):
        if index % 2:
            assert tokens == plain[name]
        else:
            pairs = itertools.pairwise(tokens)
            assert all(rules.get(str(before)) != after for before, after in pairs)
    assert any(banned[name] != tokens for name, tokens in plain.items())


def test_the_hooks_run_in_order_after_a_bias_declared_before_it_and_before_the_temperature(examples: Any) -> None:
    recording = examples.Recording
    bias = {"logit_bias": {recording.BOOSTED: 5.0}}
    engine = tiny_engine(["LogitBiasLogitsProcessor", recording], max_num_seqs=4)
    made = request("r", [1, 2], max_tokens=2, logits_processors_args=bias, temperature=2.0, seed=1)
    plain = tiny_engine([recording], max_num_seqs=4)
    run_to_end(engine, [made])
    assert recording.events == ["add_request:0", "apply_staged_writes", "apply", "apply_staged_writes", "apply"]
    biased = recording.seen[0][0]
    recording.seen.clear()
    run_to_end(plain, [request("r", [1, 2], max_tokens=1, temperature=2.0, seed=1)])
    unscaled = recording.seen[0][0].clone()
    unscaled[recording.BOOSTED] += 5.0
    assert biased.equal(unscaled)
    recording.events.clear()
    recording.seen.clear()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("TargetToken", [{"target_token": 7}, {"target_token": 40}]),
        ("NoRepeat", [{"ngram_size": 1}, {"ngram_size": 2}]),
        ("Continuation", [{"forced_tokens": [3, 4, 5, 6, 7, 8]}, {"forced_tokens": [9]}]),
    ],
)
def test_the_author_kit_finds_no_fault_in_the_examples(examples: Any, name: str, params: Any) -> None:
    report = check_processor(getattr(examples, name), params, skip=["speed"])
    assert report.passed, str(report)
    assert report.of(Outcome.ADVICE) == [], str(report)


def test_the_author_kit_finds_state_that_the_slots_last_request_left() -> None:
    class Forgetful(hash_bias.Mrv2):
        accepts_any_args = True

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            return bool(hash_bias.bias_of(sampling_params)) and super().add_request(req_idx, sampling_params)

    params = [{"hash_bias": [3, 50.0]}, {"hash_bias": [9, -4.0]}]
    report = check_processor(Forgetful, params, fd_config=tiny_fd_config(), skip=["speed"])
    assert report.of(Outcome.FAIL) == ["churn"], str(report)


# What a processor is shown


class Shown(vllm_mrv2.LogitsProcessor):
    """Keeps what it is shown; `picky` requests decline."""

    log: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, vllm_config: Any, req_states: vllm_mrv2.LogitsProcRequestState) -> None:
        self.states = req_states
        self.total, self.prefill = req_states.total_len.np, req_states.prefill_len.np

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        args = sampling_params.extra_args or {}
        if args.get("breaks"):
            raise LookupError("this request alone")
        if args.get("forgets"):
            return None  # type: ignore[return-value]
        self.log.append(("add", (req_idx, int(self.states.prompt_len.np[req_idx]), int(self.prefill[req_idx]))))
        return not args.get("picky")

    def apply(self, logits: paddle.Tensor, ctx: vllm_mrv2.LogitsContext) -> paddle.Tensor:
        assert ctx.expanded_idx_mapping.tolist() == ctx.idx_mapping.tolist() == ctx.idx_mapping_np.tolist()
        assert logits.shape[0] == len(ctx.idx_mapping_np)
        assert ctx.expanded_local_pos.tolist() == [0] * logits.shape[0]
        ids = self.states.all_token_ids.gpu.numpy()
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            length = int(self.total[slot])
            assert ctx.seq_lens_upper_bound_np[row] == length == ctx.pos.tolist()[row] + 1
            assert length == self.states.total_len.gpu.tolist()[slot]
            assert self.prefill[slot] == self.states.prefill_len.gpu.tolist()[slot]
            assert self.states.prompt_len.np[slot] == self.states.prompt_len.cpu.tolist()[slot]
            assert ctx.input_ids.tolist()[row] == ids[slot, length - 1]
            assert not ids[slot, length:].any()
            self.log.append(("row", (slot, ids[slot, :length].tolist())))
        return logits


@pytest.fixture
def log() -> Iterator[list[tuple[str, Any]]]:
    Shown.log.clear()
    yield Shown.log
    Shown.log.clear()


def check_rows(log: list[tuple[str, Any]], requests: Sequence[AddRequest], ran: dict[str, Ran]) -> None:
    """Every row that it was shown had the tokens of a request at that time, each once."""
    expected = [
        made.prompt_token_ids + ran[made.request_id].token_ids[:count]
        for made in requests
        for count in range(len(ran[made.request_id].token_ids))
    ]
    assert sorted(seen[1] for what, seen in log if what == "row") == sorted(expected)


def test_it_is_shown_every_row_once_with_its_requests_tokens(log: list[tuple[str, Any]]) -> None:
    requests = crowd([None])
    check_rows(log, requests, run_to_end(tiny_engine([Shown], max_num_seqs=4), requests))
    assert len([what for what, _ in log if what == "add"]) == len(requests)
    assert {slot for what, (slot, *_) in log if what == "add"} == set(range(4))


def test_the_same_on_a_device_with_memory_of_its_own(log: list[tuple[str, Any]]) -> None:
    with device_like():
        engine, requests = tiny_engine([Shown], max_num_seqs=4), crowd([None], number=7)
        # Such a device is warmed up with requests.
        log.clear()
        check_rows(log, requests, run_to_end(engine, requests))


def test_a_preempted_request_is_added_again_with_its_output(log: list[tuple[str, Any]]) -> None:
    requests = [request(f"r{index}", [index + 1, 5], max_tokens=24) for index in range(4)]
    engine = tiny_engine([Shown], max_num_seqs=3, max_model_len=40, block_size=4, num_blocks=15)
    check_rows(log, requests, run_to_end(engine, requests))
    assert engine.scheduler.num_preemptions > 0
    again = [seen for what, seen in log if what == "add" and seen[2] > seen[1]]
    assert len(again) == engine.scheduler.num_preemptions


def test_it_is_not_called_while_every_request_declines_and_sees_all_rows_otherwise(log: list[tuple[str, Any]]) -> None:
    harness = ProcessorHarness(Shown)
    harness.enter("declines", {"picky": True})
    harness.step()
    assert [what for what, _ in log] == ["add"]
    harness.enter("wants it", {"picky": False})
    harness.step()
    assert [what for what, _ in log] == ["add", "add", "row", "row"]
    harness.leave(1)
    harness.step()
    assert len(log) == 4


@pytest.mark.parametrize(
    ("args", "reason"),
    [({"breaks": True}, "LookupError: this request alone"), ({"forgets": True}, "add_request returned None")],
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_request_that_cannot_be_added_is_the_only_one_with_a_fault(
    log: list[tuple[str, Any]], args: dict[str, Any], reason: str, on_error: str
) -> None:
    def asked() -> list[AddRequest]:
        bad = request("bad", [1, 2], max_tokens=3, selection=naming(Shown=args))
        good = [request(f"good {n}", [3 + n, 4], max_tokens=3, selection=naming(Shown={})) for n in range(3)]
        return [good[0], bad, *good[1:]]

    plain = run(engine_with(), *[made for made in asked() if made.request_id != "bad"])
    engine = engine_with(Shown, max_num_seqs=4, on_error=on_error)
    outcome = run(engine, *asked())
    assert {name: tokens for name, tokens in outcome.tokens.items() if name != "bad"} == plain.tokens
    stats = engine.runner.chain.stats["Shown"]
    assert (stats.faults, stats.state) == (1, "ok")
    assert reason in (stats.last_error or "")
    assert set(outcome.errors) == ({"bad"} if on_error == "fail" else set())
    # Its row is never shown: the slot may have another request's state.
    assert not [seen for what, seen in log if what == "row" and seen[1][:2] == [1, 2]]
    assert len(outcome.tokens["bad"]) == (0 if on_error == "fail" else 3)


def test_a_processor_that_was_built_again_receives_the_running_requests(log: list[tuple[str, Any]]) -> None:
    class FailsOnce(Shown):
        failed: ClassVar[bool] = False

        def apply(self, logits: paddle.Tensor, ctx: vllm_mrv2.LogitsContext) -> paddle.Tensor:
            if not FailsOnce.failed and self.total.max() == 4:
                FailsOnce.failed = True
                raise ZeroDivisionError
            return super().apply(logits, ctx)

    engine = engine_with(FailsOnce, max_num_seqs=4, on_error="skip")
    run(engine, request("r", [1, 2], max_tokens=5))
    assert FailsOnce.failed
    assert [seen for what, seen in log if what == "add"] == [(0, 2, 2), (0, 2, 5)]


# Recognition and vLLM's own classes


def test_a_class_with_both_interfaces_runs_by_the_slot_keyed_one() -> None:
    class Both(vllm_v1.LogitsProcessor, hash_bias.Mrv2):
        accepts_any_args = True

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            hash_bias.Mrv2.__init__(self, vllm_config, req_states)

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            raise AssertionError("the older interface")

        def apply(self, logits: Any, ctx: Any) -> Any:  # type: ignore[override]
            return hash_bias.Mrv2.apply(self, logits, ctx)

    [declared] = load_processors(["here:Both"], {"here:Both": Both})
    assert declared.dialect.name == "vllm-mrv2"
    harness = ProcessorHarness(Both, fd_config=tiny_fd_config())
    harness.enter("r", {"hash_bias": [1, 4.0]}, prompt=[2])
    before = np.zeros(VOCAB_SIZE, np.float32)
    assert np.flatnonzero(harness.step({"r": before})["r"]).tolist() == [hash_bias.place(1, [2])]


def test_where_vllm_is_installed_states_and_contexts_are_of_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed vLLM brings a base class, a context, a state and an error of its own."""
    from types import ModuleType, SimpleNamespace

    class Base:
        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            if (sampling_params.extra_args or {}).get("refused"):
                raise ClientError("not this one")

        def apply_staged_writes(self) -> None: ...

    class Context(SimpleNamespace): ...

    class State(SimpleNamespace): ...

    class ClientError(Exception):
        """No ValueError."""

    class Mine(Base):
        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            assert type(req_states) is State

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            return True

        def apply(self, logits: Any, ctx: Any) -> Any:
            assert type(ctx) is Context
            logits[:, 3] += 1.0
            return logits

    names = {"LogitsProcessor": Base, "LogitsContext": Context, "LogitsProcRequestState": State}
    module, errors = ModuleType("interface"), ModuleType("errors")
    vars(module).update(names)
    vars(errors).update(VLLMClientError=ClientError)
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.sample.logits_processor", module)
    monkeypatch.setitem(sys.modules, "vllm.exceptions", errors)
    harness = ProcessorHarness(Mine)
    with pytest.raises(ValueError, match="not this one"):
        harness.enter("refused", {"refused": True})
    harness.enter("r", {})
    assert np.flatnonzero(harness.step({"r": np.zeros(harness.vocab_size)})["r"]).tolist() == [3]
