"""Tests of the comparison's parts: bounds, instruction sets, long prompts, and who takes part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import compare
import pytest
from peers import install, lineup
from peers.contender import Contender
from peers.instructions import of_llama, of_onednn, of_ours, output_of
from peers.machine import Machine
from peers.outcome import LevelResult, Outcome, PrefillResult, Run
from peers.prompts import long_prompts
from peers.report import Settings, render_json, render_results
from peers.section import BILLION, DEFAULT_MODEL, Verdict
from tokenizers import Tokenizer

from fastdeploy_lp.checkpoint import resolve_model

MODEL = "smollm2-135m"
PLAIN = Machine("processor", 2, 16.0, "6.1", ("avx2",))
AMX = replace(PLAIN, instructions=("avx2", "amx_int8"))
LEVELS = (1, 8, 32)


def outcome(engine: str, precision: str, rate: float, ttft_ms: float, *, source: str = "") -> Outcome:
    """A contender with the same throughput and time to first token at all levels; its prompts take twice the rate."""
    levels = [LevelResult(n, rate, ttft_ms, 5.0, 0.01, 0.0, None) for n in LEVELS]
    run = Run(levels, prefill=PrefillResult(1900, 2 * rate, 0.0, None))
    return Outcome(Contender(engine, precision, ("true",), ours=engine == "us", source=source), [run])


def verdicts(machine: Machine, *outcomes: Outcome) -> dict[str, Verdict]:
    """The default model's verdicts by the bounds' text."""
    return {str(x.bound): x for x in DEFAULT_MODEL.verdicts(machine, outcomes, LEVELS, prefill=True)}


def test_bounds_of_the_default_model() -> None:
    """Rates must reach their bounds, the time to the first token must not exceed its own."""
    peers = [outcome("vLLM", "w8a8", 100.0, 50.0), outcome("llama.cpp", "f32", 60.0, 80.0)]
    found = verdicts(AMX, outcome("us", "w8a8", 200.0, 30.0), outcome("us", "float32", 119.0, 30.0), *peers)
    holds = {text: verdict.holds for text, verdict in found.items()}
    assert holds == {
        "w8a8: tokens/s at 1, best peer of any": True,
        "w8a8: tokens/s at 8, best peer of any": False,
        "w8a8: tokens/s at 32, best peer of any": False,
        "w8a8: TTFT p50 at 1, best peer of any": True,
        "w8a8: TTFT p50 at 8, best peer of any": True,
        "w8a8: TTFT p50 at 32, best peer of any": True,
        "float32: tokens/s at 32, best peer of this precision": False,
        "w8a8: prompt tokens/s, best peer of any": True,
    }
    assert [text for text, verdict in found.items() if verdict.missed] == [t for t, held in holds.items() if not held]


def test_bounds_of_machines_with_amx_count_there_only() -> None:
    """Without AMX they are shown and do not fail the run; the others do."""
    peers = [outcome("vLLM", "w8a8", 100.0, 50.0), outcome("llama.cpp", "f32", 100.0, 80.0)]
    ours = [outcome("us", "w8a8", 200.0, 40.0), outcome("us", "float32", 100.0, 30.0)]
    missed = [text for text, verdict in verdicts(PLAIN, *ours, *peers).items() if verdict.missed]
    assert missed == [
        *(f"w8a8: TTFT p50 at {n}, best peer of any" for n in LEVELS),
        "float32: tokens/s at 32, best peer of this precision",
    ]
    assert str(verdicts(PLAIN, *ours, *peers)["w8a8: tokens/s at 8, best peer of any"]).startswith("missed, but")
    assert str(verdicts(AMX, *ours, *peers)["w8a8: tokens/s at 8, best peer of any"]) == "missed"


def test_only_what_was_measured_is_judged() -> None:
    """No bounds without peers, of levels and prompts that were left out, or of precisions that did not run."""
    ours, peer = outcome("us", "w8a8", 200.0, 30.0), outcome("vLLM", "w8a8", 100.0, 50.0)
    assert not DEFAULT_MODEL.verdicts(AMX, [ours], LEVELS, prefill=True)
    few = DEFAULT_MODEL.verdicts(AMX, [ours, peer], [8], prefill=False)
    assert [(x.bound.label, x.bound.quantity, x.bound.concurrency) for x in few] == [
        ("w8a8", "tokens/s", 8),
        ("w8a8", "TTFT p50", 8),
    ]


def test_a_failed_server_of_ours_misses_its_bounds() -> None:
    """No result is no pass."""
    failed = Outcome(Contender("us", "w8a8", ("true",), ours=True), error="did not start")
    found = verdicts(AMX, failed, outcome("vLLM", "w8a8", 100.0, 50.0))
    assert found
    assert all(verdict.missed for verdict in found.values())


def test_bounds_of_a_billion_parameters_are_those_from_q4_k_m() -> None:
    """The bfloat16 weights in 8 bits have none."""
    ours = [outcome("us", "w8a8", rate, 10.0, source=x) for rate, x in ((149.0, "Q4_K_M"), (1.0, "bfloat16"))]
    found = BILLION.verdicts(PLAIN, [*ours, outcome("llama.cpp", "Q4_K_M", 100.0, 50.0)], LEVELS, prefill=True)
    assert {x.bound.label for x in found} == {"w8a8 from Q4_K_M"}
    assert [x.missed for x in found] == [True, True, True, False, False, False, True]


def test_page_and_json_have_bounds_prompts_and_instruction_sets() -> None:
    """Each of them is in both."""
    ours, peer = outcome("us", "w8a8", 300.0, 20.0), outcome("vLLM", "w8a8", 100.0, 50.0)
    peer.instructions = "oneDNN 3.1: s8 brg"
    settings = Settings("m", LEVELS, 128, 1, 4, False, "today", 1900)
    found = DEFAULT_MODEL.verdicts(PLAIN, [ours, peer], LEVELS, prefill=True)
    page = render_results(settings, PLAIN, [ours, peer], found)
    assert "| us, w8a8 | 600 | 3.00 (vLLM, w8a8) |" in page
    assert "- vLLM, w8a8: oneDNN 3.1: s8 brg" in page
    assert "Bounds, on a machine without AMX:" in page
    assert "| w8a8: TTFT p50 at 8, best peer of any | ≤ 0.6 | 0.40 (vLLM, w8a8) | met |" in page
    written = render_json(settings, PLAIN, [ours, peer], found)
    assert written["contenders"][1]["instructions"] == "oneDNN 3.1: s8 brg"
    assert written["contenders"][0]["runs"][0]["prefill"]["tokens_per_s"] == 600
    assert [bound["holds"] for bound in written["bounds"]] == [True] * 7


def test_instruction_sets_of_onednn() -> None:
    """The kernels of products are named, not those that only move weights."""
    log = """
onednn_verbose,v1,info,oneDNN v3.13.0 (commit 0e2a)
onednn_verbose,v1,info,cpu,isa:Intel AMX with bfloat16 and 8-bit integer support
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0 dst:f32::blocked:ab::f0,,,8x8,0.1
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,src:s8::blocked:ab::f0 wei:s8,,,1x8:8x8,0.1
INFO one line between
onednn_verbose,primitive,exec,cpu,inner_product,brgemm:avx512_core_amx,forward,src_bf16::f0,,,8,0.1
"""
    expected = "oneDNN 3.13.0 (Intel AMX with bfloat16 and 8-bit integer support): "
    assert of_onednn(log) == expected + "bf16 brgemm:avx512_core_amx, s8 brg_matmul:avx10_1_512_amx"
    assert of_onednn("nothing of it") == ""


def test_instruction_sets_of_llama() -> None:
    """What it was compiled for, and the buffers of rearranged weights: with AMX its own."""
    log = "I system_info: n_threads = 2 | CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1 | REPACK = 1 |\n"
    log += "load_tensors:   CPU_Mapped model buffer size =   513.13 MiB\n"
    log += "load_tensors:  AMX model buffer size =  455.06 MiB\n"
    assert of_llama(log) == "AVX2, AVX512, AMX_INT8; 455 MiB of weights in AMX"
    assert of_llama("nothing of it") == ""


def test_instruction_sets_of_ours() -> None:
    """The processor's, and what the operators say of their products."""
    processor = "Processor:\n  CPU (x86_64)\n  features: amx_int8 avx avx2 avx512f fma\n"
    assert of_ours(processor) == "avx2, avx512f, amx_int8"
    operators = f"{processor}Compiled operators:\n  /cache/ops.so\n  products of 8 bits: AMX tiles\nPlatform:\n"
    assert of_ours(operators) == "avx2, avx512f, amx_int8; products of 8 bits: AMX tiles"
    assert of_ours("") == ""


def test_output_of_programs_that_fail() -> None:
    """None of them ends the run."""
    assert output_of(["/nowhere/program"]) == output_of(["false"]) == ""
    assert output_of(["sh", "-c", "echo $WORD"], {"WORD": "here"}) == "here"


def test_long_prompts_have_their_length_and_differ() -> None:
    """Within a few tokens of what was asked for, the same in each run, and different from the first words on."""
    file = resolve_model(MODEL).directory / "tokenizer.json"
    prompts = long_prompts(file, 300, 3)
    tokenizer = Tokenizer.from_file(str(file))
    assert prompts == long_prompts(file, 300, 3)
    assert len({prompt.split(":")[0] for prompt in prompts}) == 3
    assert all(abs(len(tokenizer.encode(prompt).ids) - 300) < 40 for prompt in prompts)
    assert not any("\n" in prompt for prompt in prompts)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as peers/install.py writes it, of empty files."""
    for name in ("vllm/bin/python", "vllm/lib/libiomp5.so", "llama-server", "float32.gguf", "billion/Q4_K_M.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("w8a8", "billion/bfloat16", "billion/w8a8"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def entered(*arguments: str) -> list[str]:
    """The names of those who take part."""
    args = compare.parse_arguments([*arguments])
    lineup.use_installed(args)
    return [contender.name for contender in lineup.lineup(args).contenders]


def test_installed_peers_take_part(installed: Path) -> None:
    """Everything in the folder, each in its precisions."""
    assert entered("--peers", str(installed), "--model", MODEL, "--ours", "float32", "w8a8") == [
        *("fastdeploy_lp, float32", "fastdeploy_lp, w8a8"),
        *("vLLM, float32", "vLLM, bfloat16", "vLLM, w8a8", "llama.cpp, Q4_1", "llama.cpp, float32"),
    ]


def test_options_go_before_what_is_installed(installed: Path) -> None:
    """An option without values leaves its peer out; several dtypes beside 8-bit weights have names of their own."""
    given = ("--ours", "--vllm-dtype", "--llama-gguf", "--vllm-w8a8-dtype", "bfloat16", "float32")
    assert entered("--peers", str(installed), "--model", MODEL, *given) == [
        "vLLM, w8a8 from int8 with bfloat16",
        "vLLM, w8a8 from int8 with float32",
    ]


def test_two_sources_of_a_billion_parameters(installed: Path) -> None:
    """Each of our precisions from both files, bfloat16 from its own only."""
    folder = installed / "billion"
    found = entered("--peers", str(installed), "--billion", str(folder), "--ours", "w8a8", "bfloat16")
    assert found == [
        *("fastdeploy_lp, w8a8 from Q4_K_M", "fastdeploy_lp, w8a8 from bfloat16"),
        "fastdeploy_lp, bfloat16 from bfloat16",
        *("vLLM, bfloat16", "vLLM, w8a8", "llama.cpp, Q4_K_M"),
    ]


def test_the_barrier_goes_before_the_load_of_the_tile_configuration(tmp_path: Path) -> None:
    """Once, however often it is asked for; sources that look different are an error."""
    source = tmp_path / "mmq.cpp"
    source.write_text("    fill(&tc);\n    _tile_loadconfig(&tc);\n")
    install.keep_tile_configuration(source)
    install.keep_tile_configuration(source)
    assert source.read_text() == '    fill(&tc);\n    asm volatile("" ::: "memory");\n    _tile_loadconfig(&tc);\n'
    source.write_text("something else")
    with pytest.raises(ValueError, match=r"mmq\.cpp"):
        install.keep_tile_configuration(source)
