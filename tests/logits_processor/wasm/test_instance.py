"""Steps of an instance, and the faults of a bad one."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import paddle
import pytest
from support.wasm import NO_REPEATS, TOP_GAP, VOCAB_SIZE, started, wat, words

from fastdeploy_lp.logits_processor.dialects.wasm import put_edits
from fastdeploy_lp.logits_processor.testing.loading import standalone_model
from fastdeploy_lp.logits_processor.wasm.edits import StepEdits
from fastdeploy_lp.logits_processor.wasm.engine import WasmEngine, wasm_engine
from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault, ModuleRefusal
from fastdeploy_lp.logits_processor.wasm.limits import MEBIBYTE, WasmLimits
from fastdeploy_lp.model_executor.ops.row_selection import row_ops


def edited(edits: StepEdits | None, row: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    rows = paddle.to_tensor(np.zeros((1, VOCAB_SIZE), np.float32) if row is None else row[None])
    assert edits is not None
    assert not put_edits(row_ops(), rows, [(0, edits)])
    return rows[0].numpy()


def test_biases_are_added_also_twice_to_one_token() -> None:
    floats = "(f32.store (i32.const 300) (f32.const 1.5)) (f32.store (i32.const 304) (f32.const 2))"
    tokens = "(i32.store (i32.const 200) (i32.const 7)) (i32.store (i32.const 204) (i32.const 7))"
    row = edited(started(wat(f"{floats} {tokens} {words(2, 200, 300)}")).step(()))
    assert row[7] == 3.5
    assert row.sum() == 3.5


def test_a_bitmask_bans_the_tokens_without_a_bit() -> None:
    row = edited(started(wat(f"(i32.store (i32.const 200) (i32.const 5)) {words(0, 0, 0, 200)}")).step(()))
    assert np.flatnonzero(np.isfinite(row)).tolist() == [0, 2]


def test_a_module_that_needs_logits_may_return_the_row_that_it_was_given() -> None:
    body = "(f32.store offset=12 (local.get 2) (f32.const 9)) (i32.store (i32.const 80) (local.get 2)) (i32.const 64)"
    before = np.arange(VOCAB_SIZE, dtype=np.float32)
    row = edited(started(wat(body, logits=True)).step((), before), before)
    assert row[3] == 9
    assert (np.delete(row, 3) == np.delete(before, 3)).all()


def test_finish_and_emit_are_texts_of_the_struct() -> None:
    data = '(data (i32.const 400) "enough{\\"n\\":1}") (data (i32.const 500) "\\96\\01\\00\\00\\07\\00\\00\\00")'
    edits = started(wat(words(0, 0, 0, 0, 0, 400, 6, 500, 1), more=data)).step(())
    assert edits is not None
    assert edits.finish == "enough"
    assert edits.emits == ({"n": 1},)


def test_a_module_sees_its_parameters_its_prompt_and_its_seed() -> None:
    kept = "".join(f"(global $g{index} (mut i32) (i32.const 0))" for index in range(4))
    init = """(global.set $g0 (i32.load8_u offset=1 (local.get 0))) (global.set $g1 (i32.load offset=4 (local.get 2)))
        (global.set $g2 (i32.wrap_i64 (i64.shr_u (local.get 5) (i64.const 32)))) (global.set $g3 (local.get 4))
        (i32.const 0)"""
    step = "".join(f"(i32.store (i32.const {200 + 4 * index}) (global.get $g{index}))" for index in range(4))
    instance = started(
        wat(f"{step} {words(4, 200, 300)}", init=init, more=kept), {"x": 1}, prompt=(3, 41), seed=5 << 32
    )
    edits = instance.step(())
    assert edits is not None
    assert edits.tokens is not None
    assert edits.tokens.tolist() == [ord('"'), 41, 5, VOCAB_SIZE]


def test_many_tokens_at_once_are_all_seen() -> None:
    step = "(i32.store (i32.const 200) (i32.load offset=396 (local.get 0)))" + words(1, 200, 300)
    edits = started(wat(step)).step(list(range(100)))
    assert edits is not None
    assert edits.tokens is not None
    assert edits.tokens.tolist() == [99]


FOREVER = "(loop $again (br $again)) (i32.const 0)"
GROWS = "(if (i32.eq (memory.grow (i32.const 1000)) (i32.const -1)) (then (unreachable))) (i32.const 0)"
BAD_STEPS = {
    "unreachable": ("(unreachable)", "executed `unreachable`"),
    "endless": (FOREVER, "out of fuel: a step may use"),
    "outside": ("(i32.load (i32.const -8))", "outside its memory"),
    "too much memory": (GROWS, "ran out of memory"),
    "division": ("(i32.div_u (i32.const 1) (local.get 1))", "divided by zero"),
    "edits outside": ("(i32.const 65532)", "are outside its memory of 65536 bytes"),
    "edits at the end of the address space": ("(i32.const -16)", "are outside its memory"),
    "edits not aligned": ("(i32.const 66)", "no multiple of 4"),
    "too many biases": (words(VOCAB_SIZE + 1, 200, 300), "65 biases; the vocabulary has 64 tokens"),
    "biases outside": (words(4, 65528, 300), "outside its memory"),
    "too many banned": (words(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 200, 65), "65 banned tokens; the vocabulary has 64"),
    "long reason": (words(0, 0, 0, 0, 0, 64, 1 << 20), "a text of 1048576 bytes"),
    "reason that is no text": (f"(i32.store (i32.const 400) (i32.const 255)) {words(0, 0, 0, 0, 0, 400, 1)}", "UTF-8"),
    "too many values": (words(0, 0, 0, 0, 0, 0, 0, 200, 65), "65 values to emit"),
    "value that is no JSON": (words(0, 0, 0, 0, 0, 0, 0, 200, 1), "a value to emit that is no JSON"),
    "deep recursion": ("(call $deep (i32.const 0))", "its stack is full"),
    "fill": ("(memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br 0 (i32.const 0))", None),
}
DEEP = "(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))"


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_bad_step_is_a_fault_with_its_reason(name: str) -> None:
    body, reason = BAD_STEPS[name]
    instance = started(wat(body, more=DEEP))
    if reason is None:
        assert instance.step(()) is None
    else:
        with pytest.raises(ModuleFault, match=reason.replace("(", r"\(")):
            instance.step(())


@pytest.mark.parametrize(
    ("token", "bias", "reason"),
    [(64, "1", "a bias on token 64"), (1, "nan", "NaN or positive infinity"), (1, "inf", "NaN or positive infinity")],
)
def test_a_bias_that_is_none_is_a_fault_of_its_row_alone(token: int, bias: str, reason: str) -> None:
    body = f"(i32.store (i32.const 200) (i32.const {token})) (f32.store (i32.const 300) (f32.const {bias}))"
    bad, good = (
        started(wat(body + words(1, 200, 300))),
        started(wat("(i32.store (i32.const 200) (i32.const 3))" + words(1, 200, 304))),
    )
    rows = paddle.zeros([2, VOCAB_SIZE])
    first, second = bad.step(()), good.step(())
    assert first is not None
    assert second is not None
    failed = put_edits(row_ops(), rows, [(0, first), (1, second)])
    assert list(failed) == [0]
    assert reason in str(failed[0])
    assert not rows[0].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_dense_row_is_biased_and_masked_after_it_is_put(dtype: str) -> None:
    edits = StepEdits(
        row=np.full(VOCAB_SIZE, 2, np.float32),
        tokens=np.array([3, 5], np.uint32),
        values=np.array([1, 4], np.float32),
        allowed=np.array([0b101000, 0], np.uint32),
    )
    logits = paddle.zeros([3, VOCAB_SIZE], dtype)
    assert not put_edits(row_ops(), logits, [(1, edits)])
    before, edited, behind = logits.astype("float32").numpy()
    assert not before.any()
    assert not behind.any()
    assert {token: edited[token] for token in np.flatnonzero(np.isfinite(edited))} == {3: 3, 5: 6}


def test_a_module_may_refuse_its_parameters() -> None:
    imports = '(import "fastdeploy_lp" "fail" (func $fail (param i32 i32)))'
    content = wat(
        init="(call $fail (i32.const 400) (i32.const 3)) (i32.const 0)",
        imports=imports,
        more='(data (i32.const 400) "no!")',
    )
    with pytest.raises(ModuleRefusal, match=r"^no!$"):
        started(content)
    with pytest.raises(ModuleFault, match="lp_init returned 3"):
        started(wat(init="(i32.const 3)"))


def test_a_start_function_may_not_call_the_server() -> None:
    imports = '(import "fastdeploy_lp" "fail" (func $fail (param i32 i32)))'
    start = "(start $begin) (func $begin (call $fail (i32.const 400) (i32.const 3)))"
    with pytest.raises(ModuleFault, match="its start function calls the server"):
        started(wat(imports=imports, more=start))
    with pytest.raises(ModuleFault, match="executed `unreachable`"):
        started(wat(more="(start $begin) (func $begin (unreachable))"))


TOKENIZER = """
  (import "fastdeploy_lp" "tokenize" (func $tokenize (param i32 i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "detokenize" (func $detokenize (param i32 i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "token_bytes" (func $token_bytes (param i32 i32 i32) (result i32)))
  (import "fastdeploy_lp" "vocabulary" (func $vocabulary (param i32 i32 i32) (result i32)))"""


def agree(*checks: tuple[str, int]) -> str:
    """Traps unless every expression has its value."""
    each = (f"(if (i32.ne {text} (i32.const {value})) (then (unreachable)))" for text, value in checks)
    return "".join([*each, "(i32.const 0)"])


AGREES = agree(
    ("(call $tokenize (i32.const 400) (i32.const 2) (i32.const 500) (i32.const 1))", 2),
    ("(i32.load (i32.const 500))", 0),
    ("(call $tokenize (i32.const 400) (i32.const 2) (i32.const 500) (i32.const 2))", 2),
    ("(call $detokenize (i32.const 500) (i32.const 2) (i32.const 600) (i32.const 9))", 2),
    ("(i32.load16_u (i32.const 600))", 0x6968),
    ("(call $token_bytes (i32.load (i32.const 504)) (i32.const 700) (i32.const 1))", 1),
    ("(i32.load8_u (i32.const 700))", 0x69),
    ("(call $vocabulary (i32.const 1000) (i32.const 3000) (i32.const 4000))", 256),
    ("(i32.load (i32.const 2024))", 256),
)


def test_the_servers_functions_know_the_tokenizer_and_are_paid_in_fuel() -> None:
    with standalone_model(256) as config:
        engine = WasmEngine(WasmLimits(step_fuel=200_000), 256, config.tokenizer)
        data = '(data (i32.const 400) "hi")'
        started(wat(init=AGREES, imports=TOKENIZER, more=data), engine=engine)
        dear = "(call $tokenize (i32.const 400) (i32.const 101) (i32.const 500) (i32.const 0))"
        with pytest.raises(ModuleFault, match="out of fuel: a step may use 200000 units"):
            started(wat(dear, imports=TOKENIZER), engine=engine).step(())
        beyond = "(call $token_bytes (i32.const 256) (i32.const 0) (i32.const 9))"
        with pytest.raises(ModuleFault, match="token_bytes: 256 is beyond the vocabulary of 256"):
            started(wat(beyond, imports=TOKENIZER), engine=engine).step(())
        outside = "(call $tokenize (i32.const 400) (i32.const 2) (i32.const 65534) (i32.const 9))"
        with pytest.raises(ModuleFault, match="outside its memory"):
            started(wat(outside, imports=TOKENIZER, more=data), engine=engine).step(())
    with pytest.raises(ModuleFault, match="this server has no tokenizer"):
        started(wat(dear.replace("101", "1"), imports=TOKENIZER)).step(())


def test_the_clock_bounds_what_fuel_does_not() -> None:
    engine = WasmEngine(WasmLimits(step_fuel=2**62, step_seconds=0.05), VOCAB_SIZE, None)
    with pytest.raises(ModuleFault, match=r"took longer than 0.05 s"):
        started(wat(FOREVER), engine=engine).step(())


def test_all_instances_together_have_bounded_memory_and_return_it() -> None:
    engine = WasmEngine(WasmLimits(total_memory=MEBIBYTE), VOCAB_SIZE, None)
    kept = [started(wat(memory="4"), engine=engine) for _ in range(4)]
    with pytest.raises(ModuleFault, match="out of memory: the modules of all requests together"):
        started(wat(), engine=engine)
    kept.clear()
    gc.collect()
    assert engine.quota.taken == 0
    grows = started(wat("(drop (memory.grow (i32.const 100))) (i32.const 0)"), engine=engine)
    with pytest.raises(ModuleFault, match="out of memory"):
        grows.step(())


def test_a_state_belongs_to_its_instance() -> None:
    counts = """(global.set $n (i32.add (global.get $n) (i32.const 1))) (i32.store (i32.const 200) (global.get $n))"""
    content = wat(counts + words(1, 200, 300), more="(global $n (mut i32) (i32.const 0))")
    first, second = started(content), started(content)
    for _ in range(3):
        made = first.step(())
    assert made is not None
    assert made.tokens is not None
    assert made.tokens.tolist() == [3]
    made = second.step(())
    assert made is not None
    assert made.tokens is not None
    assert made.tokens.tolist() == [1]


def test_nan_has_one_form() -> None:
    """Otherwise its bits, which a module can read, would depend on the machine."""
    step = "(i32.store (i32.const 200) (i32.reinterpret_f32 (f32.div (f32.const -0) (f32.const 0))))" + words(
        1, 200, 300
    )
    edits = started(wat(step)).step(())
    assert edits is not None
    assert edits.tokens is not None
    assert edits.tokens.tolist() == [0x7FC00000]


def test_the_examples_in_c_edit_what_they_say() -> None:
    instance = started(NO_REPEATS.read_bytes(), {"penalty": 2.5, "window": 2})
    assert instance.step(()) is None
    assert edited(instance.step((5,)))[5] == -2.5
    instance.step((6,))
    row = edited(instance.step((7,)))
    assert np.flatnonzero(row).tolist() == [6, 7]
    gap = started(TOP_GAP.read_bytes(), {"gap": 3})
    before = np.arange(VOCAB_SIZE, dtype=np.float32)
    row = edited(gap.step((), before), before)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [60, 61, 62, 63]


def test_engines_of_one_model_are_one() -> None:
    assert wasm_engine(VOCAB_SIZE, None) is wasm_engine(VOCAB_SIZE, None)
