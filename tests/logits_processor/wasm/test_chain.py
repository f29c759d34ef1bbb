"""Modules in a chain: the tokens of their Python twins, and faults that end their own requests only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.sequences import request, run_to_end
from support.tiny import tiny_fd_config
from support.wasm import NO_REPEATS, TOP_GAP, wat, words
from support.wasm_twins import ROOMS, both

from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.worker.engine_core import EngineCore


def engine_with(tmp_path: Path, more: tuple[str, ...] = (), **modules: bytes) -> EngineCore:
    specs = list(more)
    for name, content in modules.items():
        (tmp_path / f"{name}.wasm").write_bytes(content)
        specs.append(str(tmp_path / f"{name}.wasm"))
    config = tiny_fd_config(max_num_seqs=4, max_model_len=64)
    return EngineCore(config, LogitsProcessorChain(load_processors(specs), config))


def steps_of(engine: EngineCore, requests: list[AddRequest]) -> dict[str, list[SequenceStep]]:
    for each in requests:
        engine.add(each)
    steps: dict[str, list[SequenceStep]] = {}
    for step in engine.finish_preparing():
        steps.setdefault(step.request_id, []).append(step)
    while engine.has_work:
        for step in engine.step().steps:
            steps.setdefault(step.request_id, []).append(step)
    return steps


def naming(name: str, request_id: str = "r", client: str = "", **args: Any) -> AddRequest:
    return request(request_id, [5, 6, 7], max_tokens=6, selection=Selection(named={name: args}), client=client)


@pytest.mark.parametrize("name", ROOMS)
def test_a_module_has_the_tokens_of_its_twin_in_python(name: str) -> None:
    native, module, engine = both(40, 7, ROOMS[name])
    assert native == module
    assert (engine.scheduler.num_preemptions > 3) == ("preemption" in name)
    assert sum(len(ran.token_ids) for ran in module.values()) > 300


PLAIN = request("plain", [5, 6, 7], max_tokens=6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wat("(unreachable)"), "executed `unreachable`"),
        (wat("(loop $again (br $again)) (i32.const 0)"), "out of fuel"),
        (wat("(i32.const 65532)"), "outside its memory"),
        (wat(init="(unreachable)"), "executed `unreachable`"),
        (wat(f"(i32.store (i32.const 200) (i32.const 4000)) {words(1, 200, 300)}"), "a bias on token 4000"),
    ],
)
def test_a_fault_ends_its_own_request(content: bytes, reason: str, tmp_path: Path) -> None:
    engine = engine_with(tmp_path, bad=content, good=NO_REPEATS.read_bytes())
    calm = run_to_end(engine_with(tmp_path, good=NO_REPEATS.read_bytes()), [naming("good", "good", penalty=50), PLAIN])
    steps = steps_of(engine, [naming("bad", "bad", client="x"), naming("good", "good", penalty=50), PLAIN])
    assert reason in str(steps["bad"][-1].error)
    for name, ran in calm.items():
        assert [token for step in steps[name] for token in step.token_ids] == ran.token_ids
    assert engine.runner.chain.stats["bad"].faults == 1
    assert engine.runner.chain.stats["good"].faults == 0


def test_a_module_that_fails_for_many_clients_goes_into_quarantine(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, bad=wat("(unreachable)"))
    for index in range(5):
        steps_of(engine, [naming("bad", f"r{index}", client=str(index))])
    (step,) = steps_of(engine, [naming("bad", "last", client="other")])["last"]
    assert step.unavailable
    assert "is in quarantine" in str(step.error)
    engine.reset_processor("bad")
    (step,) = steps_of(engine, [naming("bad", "again", client="other")])["again"]
    assert not step.unavailable


def test_a_module_ends_its_request_and_emits_values(tmp_path: Path) -> None:
    data = '(data (i32.const 400) "enough{\\"n\\":1}") (data (i32.const 500) "\\96\\01\\00\\00\\07\\00\\00\\00")'
    counts = "(global.set $n (i32.add (global.get $n) (i32.const 1)))"
    ends = "(if (i32.eq (global.get $n) (i32.const 3)) (then (i32.store (i32.const 84) (i32.const 400))))"
    stores = words(0, 0, 0, 0, 0, 0, 6, 500, 1).removesuffix("(i32.const 64)")
    step = f"{counts} {stores} {ends} (i32.const 64)"
    engine = engine_with(tmp_path, acts=wat(step, more=f"{data} (global $n (mut i32) (i32.const 0))"))
    steps = steps_of(engine, [naming("acts")])["r"]
    assert [each.emitted for each in steps] == [[("acts", b'{"n":1}')]] * 3
    assert [len(each.token_ids) for each in steps] == [1, 1, 0]
    assert steps[-1].stop_reason == {"processor": "acts", "reason": "enough"}


REWINDS = """
  (if (i32.eqz (local.get 1)) (then (return (i32.const 0))))
  (if (i32.ne (i32.load (local.get 0)) (i32.const {token})) (then (return (i32.const 0))))
  (if (i32.eqz (call $rewindable)) (then (unreachable)))
  (i32.store (i32.const 200) (i32.const {token}))"""


def test_a_module_takes_tokens_back(tmp_path: Path) -> None:
    imports = '(import "fastdeploy_lp" "rewindable" (func $rewindable (result i32)))'
    plain = [token for step in steps_of(engine_with(tmp_path), [PLAIN])["plain"] for token in step.token_ids]
    step = REWINDS.format(token=plain[1]) + words(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 200, 1)
    engine = engine_with(tmp_path, rewinds=wat(step, imports=imports, about={"max_rewind": 2}))
    steps = steps_of(engine, [naming("rewinds")])["r"]
    assert steps[-1].error is None
    tokens = [token for each in steps for token in each.token_ids]
    assert len(tokens) == len(plain) == 6
    assert tokens[0] == plain[0]
    assert plain[1] not in tokens[1:]
    assert engine.runner.chain.stats["rewinds"].rewinds > 0
    undeclared = engine_with(tmp_path, more=(), rewinds=wat(words(0, 0, 0, 0, 0, 0, 0, 0, 0, 1)))
    failed = steps_of(undeclared, [naming("rewinds")])["r"]
    assert "declares no max_rewind" in str(failed[-1].error)


def test_a_module_sees_each_token_once_although_its_step_runs_again(tmp_path: Path) -> None:
    """Another processor fails, so that the logits of the step are computed again."""
    alone = run_to_end(engine_with(tmp_path, good=NO_REPEATS.read_bytes()), [naming("good", "good", penalty=50)])
    config = tiny_fd_config(max_num_seqs=4, max_model_len=64)
    specs = [str(tmp_path / "good.wasm"), str(TOP_GAP), "support.wasm:FailsLater"]
    engine = EngineCore(config, LogitsProcessorChain(load_processors(specs), config))
    later = request("later", [5], max_tokens=6, selection=Selection(named={"FailsLater": {"at": 3}}))
    steps = steps_of(engine, [naming("good", "good", penalty=50), naming("top_gap", "gap", gap=2), later])
    assert "fails later" in str(steps["later"][-1].error)
    assert [token for step in steps["good"] for token in step.token_ids] == alone["good"].token_ids
    assert len(steps["gap"]) == 6
