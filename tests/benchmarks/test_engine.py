"""Tests of the engine's benchmark: its harnesses compute what they claim, and it measures a real, tiny engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import paddle
import pytest
from support.compilers import quick_compiler
from support.sequences import request, run_to_end, tiny_engine
from support.tiny import GOLDEN, tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.layers.quantization import dequantized_weight, quantize_dequantize
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat
from fastdeploy_lp.worker.sampler import Sampler

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ONEDNN = "FASTDEPLOY_LP_ONEDNN_INCLUDE"


def load_scripts() -> dict[str, ModuleType]:
    """Import the programs by name: ``benchmarks`` is a folder of programs, which find each other beside them."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("engine", "engine_floors", "engine_native", "engine_probe", "engine_report", "engine_run")
        return {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))


scripts: Any = load_scripts()
engine, floors, native, probe, report, run = scripts.values()
Shape, Timing = native.Shape, report.Timing
LEVELS4, LEVELS8 = WeightFormat.LEVELS4, WeightFormat.LEVELS8
# Digits of activations, and weights that they are multiplied by.
PRODUCTS = [(digits, packed) for digits in (0, 1, 2) for packed in WeightFormat if not digits or packed.bits <= 8]


@pytest.fixture(scope="module")
def harnesses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every test of this file compiles, once."""
    return tmp_path_factory.mktemp("harnesses")


@pytest.fixture(scope="module")
def library(harnesses: Path) -> Path:
    """The harness of our own kernels, compiled in less time than its programs would take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(quick_compiler(harnesses / "bin")))
        compiled: Path = native.compile_native(harnesses)
    return compiled


def tiny_job(harnesses: Path, **sizes: Any) -> Any:
    """Everything, for a moment."""
    chosen = {"prompts": [5, 9], "batches": [1, 3], "contexts": [8, 20], "turns": 2, "per_turn": 2, "rounds": 1}
    given = report.Sizes(**{**chosen, "stream_bytes": 1 << 20, **sizes})
    return report.Job("tiny", None, given, processors=True, guided=False, harnesses=str(harnesses), onednn_include=None)


@pytest.mark.parametrize("rows", [1, 7, 32])
@pytest.mark.parametrize(("digits", "packed"), PRODUCTS)
def test_our_products(library: Path, digits: int, packed: WeightFormat, rows: int) -> None:
    """Every product comes out, sizes that fill neither groups nor panels included, with one copy of weights each."""
    ops = compiled_ops()
    assert ops is not None
    of_blocks = packed in native.BLOCKS
    sizes = [(256, 96), (512, 50), (256, 96)] if of_blocks else [(64, 96), (40, 50), (64, 96)]
    shapes = [Shape(*size, packed) for size in sizes]
    products = native.OurProducts(library, ops, shapes, digits)
    assert products.weight_bytes == sum(
        ops.fdlp_packed_bytes(shape.in_features, shape.out_features, packed) for shape in shapes
    )
    of_rows = products.rows(rows)
    of_rows.multiply()
    for shape in shapes:
        x, weight = of_rows.inputs[shape], products.weights[shape]
        if digits:
            x = quantize_dequantize(paddle.to_tensor(x), digits).numpy()
            weight = weight if of_blocks else dequantized_weight(weight)
        found = of_rows.outputs[shape][:, : shape.out_features]
        np.testing.assert_allclose(found, x @ weight.T, rtol=1e-4, atol=1e-3)


# Where a block of K-quants has its levels.
LEVEL_BYTES = {
    WeightFormat.LEVELS4K: slice(16, None),
    WeightFormat.LEVELS5K: slice(16, None),
    WeightFormat.LEVELS6K: slice(0, 192),
}


class ExtremeNumbers:
    """Levels are the highest or the lowest ones, and digits of activations the largest of both signs."""

    def __init__(self, digits: int, *, highest: bool) -> None:
        self._random = native.RandomNumbers()
        self._digits, self._highest = digits, highest

    def weight(self, shape: Any) -> Any:
        least, most = native.LEVELS[shape.format]
        size = (shape.out_features * shape.in_features // native.GROUP, native.GROUP)
        groups = np.full(size, (most if self._highest else least) / 16, np.float32)
        # The third one makes shorter levels impossible, and with 8 bits exact ones, whose lowest one is 1.
        groups[:, :3] = least / 16, most / 16, 0.1234 if shape.format == LEVELS8 else (least + 1) / 16
        return groups.reshape(shape.out_features, -1)

    def blocks(self, shape: Any) -> Any:
        blocks = self._random.blocks(shape)  # one for each column
        blocks[:, LEVEL_BYTES[shape.format]] = 255 if self._highest else 0
        return blocks

    def inputs(self, rows: int, columns: int) -> Any:
        # The low digit of the second number is -128.
        matrix = np.full((rows, columns), 1.0 if self._digits == 1 else (127 * 256 - 128) / (127 * 256), np.float32)
        matrix[:, :: native.GROUP] = 1.0
        return matrix * np.where(np.arange(rows) % 2, -1, 1)[:, None].astype(np.float32)


@pytest.mark.parametrize("highest", [False, True])
@pytest.mark.parametrize(("digits", "packed"), [each for each in PRODUCTS if each[0]])
def test_the_largest_products_do_not_overflow(library: Path, digits: int, packed: WeightFormat, highest: bool) -> None:
    ops = compiled_ops()
    assert ops is not None
    shape = Shape(256, 40, packed)
    products = native.OurProducts(library, ops, [shape], digits, numbers=ExtremeNumbers(digits, highest=highest))
    weight = products.weights[shape]
    weight = (weight if packed in native.BLOCKS else dequantized_weight(weight)).astype(np.float64)
    for rows in (1, 2, 3, 8):
        of_rows = products.rows(rows)
        of_rows.multiply()
        x = quantize_dequantize(paddle.to_tensor(of_rows.inputs[shape]), digits).numpy().astype(np.float64)
        found = of_rows.outputs[shape][:, : shape.out_features]
        sizes = np.abs(x) @ np.abs(weight).T
        np.testing.assert_allclose(found, x @ weight.T, rtol=0, atol=1e-5 * sizes.min())


@pytest.mark.skipif(ONEDNN not in os.environ, reason=f"{ONEDNN} names no headers of oneDNN")
@pytest.mark.parametrize("int8", [False, True])
def test_onednn_products(harnesses: Path, int8: bool) -> None:
    """oneDNN computes the products themselves, and 8-bit ones exactly."""
    libdnnl = Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"
    compiled = native.compile_onednn(harnesses, Path(os.environ[ONEDNN]), libdnnl)
    shapes = [Shape(64, 96, LEVELS8), Shape(40, 50, LEVELS8), Shape(64, 96, LEVELS8)]
    products = native.OneDnnRows(compiled, shapes, 5, int8=int8)
    products.multiply()
    for shape in shapes:
        x, weight = (part[shape].astype(np.float64) for part in (products.inputs, products.weights))
        np.testing.assert_allclose(products.outputs[shape], x @ weight.T, rtol=1e-5, atol=0 if int8 else 1e-4)


@pytest.mark.parametrize("size", [512, 1 << 20, (1 << 20) + 1536, 5 << 20])
def test_stream_reads_everything(library: Path, size: int) -> None:
    """The sum tells that no number was left out or read twice; each read goes on where the last one ended."""
    stream = native.MemoryStream(library, 1 << 20)
    stream.buffer[:] = np.random.default_rng(0).integers(-(2**40), 2**40, len(stream.buffer))
    numbers, at = np.tile(stream.buffer, 12), 0
    for _ in range(2):
        assert stream.read(size) == int(numbers[at : at + size // 8].sum())
        at = (at + size // 8) % len(stream.buffer)


def test_onednn_runs_on_openmp() -> None:
    """Only the three choices of a runtime change; everything else, the names of the runtimes among it, stays."""
    config = "#define DNNL_RUNTIME_OMP 2u\n#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_TBB\n"
    config += "#define DNNL_CPU_RUNTIME DNNL_RUNTIME_SYCL\n#define DNNL_GPU_RUNTIME DNNL_RUNTIME_SYCL\n"
    assert native._with_openmp(config).splitlines() == [
        "#define DNNL_RUNTIME_OMP 2u",
        "#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_OMP",
        "#define DNNL_CPU_RUNTIME DNNL_RUNTIME_OMP",
        "#define DNNL_GPU_RUNTIME DNNL_RUNTIME_NONE",
    ]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails is told of, and the measurement goes on without floors."""
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(native.CompileError, match="false ended with status 1"):
        native.compile_native(tmp_path)
    skipped: list[str] = []
    dims = Dimensions.from_hf_config(tiny_fd_config().model_config.hf_config)
    without = floors.Floors(tiny_job(tmp_path), dims, [32] * (4 * dims.num_layers + 1), 64, skipped)
    assert without.products(1) == {}
    assert without.reading(1, 8) == ({}, 0)
    assert without.weight_bytes is None
    assert skipped == ["floors: false ended with status 1: "]


def test_no_onednn_headers(tmp_path: Path) -> None:
    """A folder without headers is named."""
    with pytest.raises(native.CompileError, match=r"no oneDNN headers in .*nothing"):
        native.compile_onednn(tmp_path, tmp_path / "nothing", tmp_path / "libdnnl.so.3")


def test_shapes_of_a_step() -> None:
    """SmolLM2-135M: four products a layer and the head, with all of its weights but the norms."""
    dims = Dimensions(30, 576, 1536, 9, 3, 64, 49152, 1e-5, tie_word_embeddings=True)
    shapes = floors.step_shapes(dims, [LEVELS4] * 120 + [LEVELS8])
    assert [shape.format for shape in shapes] == [LEVELS4] * 120 + [LEVELS8]
    assert sum(shape.in_features * shape.out_features for shape in shapes) == 134_515_008 - 61 * 576


def test_turns() -> None:
    """Everyone gets the same number of calls, in turns, and the first of a turn does not count."""
    called: list[str] = []
    calls = {name: lambda name=name: called.append(name) for name in ("a", "b")}
    timings = run.in_turns(calls, turns=3, per_turn=2)
    assert called == ["a", "a", "a", "b", "b", "b"] * 3
    assert all(len(timing.turns) == 3 and 0 < timing.best <= min(timing.turns) for timing in timings.values())


def test_attention_multiplies_each_query_with_keys_and_values() -> None:
    """9 heads of 64 in 30 layers, twice: with 4,096 keys and with as many values."""
    dims = replace(Dimensions.from_hf_config(tiny_fd_config().model_config.hf_config), num_layers=30)
    dims = replace(dims, num_heads=9, head_dim=64)
    shape = floors.attention_shape(dims, 32, 128)
    assert floors.SQUARE * shape.in_features * shape.out_features == 2 * 32 * 128 * 9 * 64 * 30


def test_ratio_is_taken_turn_by_turn() -> None:
    """A machine that slows down tenfold in the middle changes both times and not their ratio."""
    assert Timing([2.0, 20.0, 2.0], 2.0).ratio_to(Timing([1.0, 10.0, 1.0], 1.0)) == 2


def decode(**changed: Any) -> Any:
    """Steps of 10 ms, of which 4 are products."""
    parts = {"forward": 5.0, "logits": 2.0, "chain": 0.5, "sampler": 1.0, "host": 1.5}
    own = {"bandwidth": Timing([3.0], 3.0), "our products": Timing([4.0], 4.0), "oneDNN products": Timing([3.5], 3.5)}
    step = report.Decode(8, 64.0, Timing([10.0], 9.0), Timing([7.0], 7.0), parts, own)
    return replace(step, **changed)


def test_shares() -> None:
    """Products come out of the passes, and all shares together are the step."""
    shares = decode().shares()
    assert shares == pytest.approx(
        {"products": 0.4, "attention etc.": 0.3, "chain": 0.05, "sampler": 0.1, "host": 0.15}
    )
    assert decode(floors={}).shares() == pytest.approx({"passes": 0.7, "chain": 0.05, "sampler": 0.1, "host": 0.15})


def test_floor() -> None:
    """The faster products count, unless reading memory takes longer still."""
    step = decode()
    assert step.floor() == "oneDNN products"
    assert decode(floors={**step.floors, "bandwidth": Timing([3.6], 3.6)}).floor() == "bandwidth"
    assert decode(floors={**step.floors, "our products": Timing([3.4], 3.4)}).floor() == "our products"
    assert decode(floors={}).floor() is None


def test_all_products() -> None:
    """Attention's come to the faster ones with weights, turn by turn, and are no floor of their own."""
    step = decode()
    assert step.all_products() is None
    with_attention = decode(floors={**step.floors, "attention products": Timing([0.5], 0.25)})
    assert with_attention.all_products() == Timing([4.0], 3.75)
    assert with_attention.floor() == "oneDNN products"
    assert decode(floors={"attention products": Timing([0.5], 0.25)}).all_products() is None


@pytest.fixture(scope="module")
def measured(harnesses: Path) -> Iterator[Any]:
    """The tiny model, measured; the methods that were timed are themselves again afterwards."""
    timed = (DecoderForCausalLM.forward, LogitsProcessorChain.apply, Sampler.__call__, paddle.Tensor.numpy)
    job = tiny_job(harnesses, prompts=[5, 9, 64], contexts=[8, 20, 64])
    yield run.measure(job, tiny_fd_config(max_num_seqs=3))
    assert timed == (DecoderForCausalLM.forward, LogitsProcessorChain.apply, Sampler.__call__, paddle.Tensor.numpy)


def test_measures_what_was_asked_for(measured: Any) -> None:
    """One entry for each prompt length and each batch at each context; what cannot be measured is said."""
    assert [row.prompt_tokens for row in measured.prefill] == [5, 9]
    assert all(0 < row.tokens_per_s <= row.best_tokens_per_s for row in measured.prefill)
    assert [row.batch for row in measured.decode] == [1, 1, 3, 3]
    # 2 turns of 1 + 2 steps around the context that was asked for; rows that start earlier are a few tokens ahead.
    for row, context in zip(measured.decode, [8, 20, 8, 20], strict=True):
        assert context - 3 <= row.context <= context + 6
    assert measured.skipped == [
        "prompt of 64: model length 64",
        "decode of 1 rows at 64: model length 64",
        "decode of 3 rows at 64: model length 64",
    ]


def test_measures_parts_and_floors(measured: Any) -> None:
    """Each part of a step took some of it, together all of it, and floors stand beside it."""
    for row in measured.decode:
        assert set(row.parts_ms) == {"forward", "logits", "chain", "sampler", "host"}
        assert all(ms > 0 for ms in row.parts_ms.values())
        assert list(row.floors) == ["bandwidth", "our products"]
        assert all(timing.best > 0 and len(timing.turns) == 2 for timing in row.floors.values())
    # The compiled operators draw into memory of the host.
    assert measured.device_reads_per_step == 0
    weights, per_token = measured.memory.weights_read_by_a_step, measured.memory.kv_cache_per_token
    tokens = [1 * 8, 1 * 20, 3 * 8, 3 * 20]
    assert [row.bytes_read for row in measured.decode] == [weights + count * per_token for count in tokens]
    assert measured.bandwidth_gb_per_s > 0
    assert measured.processors.batch == 3
    assert len(measured.processors.on.turns) == len(measured.processors.off.turns) == 2
    assert 0 < measured.processors.chain_ms < measured.processors.on.median


def test_memory(measured: Any) -> None:
    """Peaks rise only; the cache holds keys and values of all layers and heads in float32."""
    dims = Dimensions.from_hf_config(tiny_fd_config().model_config.hf_config)
    memory = measured.memory
    assert 0 < memory.peak_rss_loaded <= memory.peak_rss
    assert memory.kv_cache_per_token == 2 * dims.num_layers * dims.num_kv_heads * dims.head_dim * 4
    shapes = floors.step_shapes(dims, [32] * (4 * dims.num_layers + 1))
    unpadded = sum(4 * shape.in_features * shape.out_features for shape in shapes)
    assert memory.weights_read_by_a_step >= unpadded


def test_results_survive_the_way_to_the_parent(measured: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What the process writes is what its parent reads, shows and writes."""
    read = msgspec.json.decode(msgspec.json.encode(measured), type=report.Measured)
    assert read == measured
    report.show(read)
    shown = capsys.readouterr().out
    assert "float32" in shown
    assert "left out: prompt of 64" in shown
    (result,) = msgspec.json.decode(msgspec.json.encode(engine.report("tiny", [read])))["results"]
    assert [derived["batch"] for derived in result["derived"]] == [1, 1, 3, 3]
    for derived, row in zip(result["derived"], measured.decode, strict=True):
        assert derived["step_over_floor"] == pytest.approx(derived["step_over"][derived["floor"]])
        assert derived["step_ms"] == row.step.median


def test_guided_rows_are_measured_against_the_same_ones_without(harnesses: Path, tmp_path: Path) -> None:
    """All rows go on inside their grammars as long as it takes."""
    fd_config = tiny_fd_config(max_num_seqs=3, max_model_len=128, eos_token_ids=(2,))
    directory = str(write_tiny_checkpoint(tmp_path))
    fd_config = replace(fd_config, model_config=replace(fd_config.model_config, directory=directory))
    job = tiny_job(harnesses)
    with probe.StepProbe().installed() as installed:
        guided = run.measure_guided(run.Bench(job, fd_config, installed))
    assert guided.batch == max(job.sizes.batches)
    assert len(guided.on.turns) == len(guided.off.turns) == 2
    assert 0 < guided.mask_ms < guided.on.median


def test_repeated_passes_change_nothing() -> None:
    """Tokens are the same whether or not each step's pass is computed a second time."""

    def tokens(*, repeat: bool) -> list[int]:
        core = tiny_engine()
        core.add(request("one", [3, 1, 4, 1, 5], max_tokens=12))
        found: list[int] = []
        with probe.StepProbe().installed() as installed:
            while core.has_work:
                found += [token for step in core.step().steps for token in step.token_ids]
                if repeat and core.has_work:
                    installed.repeat_pass()
        return found

    assert (
        tokens(repeat=True)
        == tokens(repeat=False)
        == run_to_end(tiny_engine(), [request("one", [3, 1, 4, 1, 5], max_tokens=12)])["one"].token_ids
    )


def test_nothing_to_repeat() -> None:
    """Before the first step there is no pass."""
    with pytest.raises(RuntimeError, match="no step yet"):
        probe.StepProbe().repeat_pass()


def test_reads_are_counted() -> None:
    """Each way to read a tensor counts, and computing with it does not."""
    tensor = paddle.to_tensor([1.0, 2.0])
    with probe.counted_reads() as reads:
        total = (tensor + 1).sum()
        tensor.numpy()
        total.item()
    tensor.numpy()
    assert reads == ["numpy", "item"]


def test_smoke_changes_defaults_only() -> None:
    """An option given next to --smoke still counts; without it everything is measured."""
    smoke = engine.parse_arguments(["--smoke", "--batches", "2", "--quantization", "float32"])
    assert (smoke.batches, smoke.quantization, smoke.turns) == ([2], ["float32"], 2)
    assert smoke.processors
    assert smoke.guided
    full = engine.parse_arguments([])
    assert full.quantization == ["float32", "bfloat16", "w8a8", "w8a16"]
    assert (full.prompts, full.batches) == ([32, 128, 512, 1024, 2000], [1, 2, 4, 8, 16, 32])
    assert (full.contexts, full.processors, full.guided) == ([64, 256, 1024], False, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "0"], "0 is below 1"),
        (["--quantization", "int4"], "invalid choice: 'int4'"),
        (["--output", "no-such-folder/results.json"], "no directory no-such-folder"),
        (["--onednn", "no-such-folder"], "no-such-folder holds no dnnl.hpp"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that cannot work end the run before anything is loaded, with status 2."""
    with pytest.raises(SystemExit) as error:
        engine.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_failed_process_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is not there: status 1, the precision named, and a file that says that nothing was measured."""
    output = tmp_path / "results.json"
    arguments = ["--model", str(GOLDEN / "no-such-model"), "--quantization", "w8a8", "--output", str(output)]
    assert engine.main(arguments) == 1
    assert "error: w8a8 ended with status 1" in capsys.readouterr().err
    assert msgspec.json.decode(output.read_bytes())["results"] == []
