"""Tests of the comparison: as a program against servers that work and servers that fail, and its arithmetic alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import compare
import pytest
from peers.contender import (
    Contender,
    hugging_face_contender,
    llama_contender,
    our_contender,
    printable,
    vllm_contender,
    without_folders,
)
from peers.cpu_time import TICKS, busy_seconds, tree_seconds
from peers.outcome import LevelResult, Outcome, PrefillResult, Run, throughput_ratio, ttft_ratio
from peers.page import BEGIN, END, write_page
from peers.plot import render_svg
from peers.section import BILLION
from peers.server_process import ServerError, ServerProcess
from support.processes import process_exists
from support.server import wait_until

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.entrypoints.bench.http_client import Client
from fastdeploy_lp.entrypoints.bench.load import ChatStream, Sample, SSEDecoder

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"
TINY_MODEL = Path(__file__).parents[1] / "data" / "golden" / "tiny-llama"


def stand_in(llama_server: Path, model: str) -> Contender:
    """The stand-in with one of its models."""
    return llama_contender(str(llama_server), llama_server.parent / f"{model}.gguf", "Q4_1")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison as a user would, with a proxy in the environment that is dead."""
    environment = os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=600, check=False)


def result(concurrency: int, tokens_per_s: float, *, ttft_ms: float = 10.0, problem: str | None = None) -> LevelResult:
    """One level's numbers."""
    return LevelResult(concurrency, tokens_per_s, ttft_ms, 5.0, 0.01, 0.0, problem)


def outcome(engine: str, precision: str, *tokens_per_s: float, ttft_ms: float = 10.0, ours: bool = False) -> Outcome:
    """A contender with one run for each throughput, all of them at concurrency 8."""
    runs = [Run([result(8, value, ttft_ms=ttft_ms)]) for value in tokens_per_s]
    return Outcome(Contender(engine, precision, ("true",), ours=ours), runs)


def test_working_and_failing_servers_share_one_page(llama_server: Path, tmp_path: Path) -> None:
    """Each server gets the same load in each run; one that fails is a line of the page and ends nothing."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "benchmarks.md").write_text(f"# Ours\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    models = [
        f"{name}={tmp_path / model}.gguf" for name, model in (("Q4_1", "works"), ("f32", "dies"), ("Q8_0", "refuses"))
    ]
    done = run(
        *("--ours", "--llama-server", str(llama_server), "--llama-gguf", *models, "--processors"),
        *("--concurrency", "1", "2", "--rounds", "1", "--max-tokens", "7", "--repeats", "2", "--output", str(folder)),
        *("--long-prompts", "2", "--prompt-tokens", "9"),
    )
    assert done.returncode == 0, done.stderr
    page = (folder / "benchmarks.md").read_text(encoding="utf-8")
    assert page.startswith("# Ours\n\nBefore.\n")
    assert page.endswith("\n\nAfter.\n")
    assert "old" not in page
    first_table = page[page.index("| server |") :].split("\n\n")[0]
    rows = {cells[1].strip(): cells[2].strip() for line in first_table.splitlines() if (cells := line.split("|"))}
    assert rows["llama.cpp, f32"] == rows["llama.cpp, Q8_0"] == "failed"
    assert rows["llama.cpp, Q4_1"].split()[0].isdigit()
    assert "- llama.cpp, f32: ended with status 1: error: no tensors in dies.gguf" in page
    assert "- llama.cpp, Q8_0: 9 failed: HTTP 500: cannot decode refuses.gguf" in page
    assert "(version: 1 (stand-in))" in page
    assert "- llama.cpp, Q4_1: AVX2, AVX512_VNNI; 12 MiB of weights in CPU_REPACK\n" in page
    assert "Bounds" not in page
    report = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))
    works, dies, _ = report["contenders"]
    assert [len(entry["runs"]) for entry in report["contenders"]] == [2, 1, 2]
    assert "dies.gguf" in dies["error"]
    for one in works["runs"]:
        assert one["prefill"]["problem"] is None
        assert one["prefill"]["prompt_tokens"] == 5
        for results in (one["plain"], one["biased"]):
            assert [(level["concurrency"], level["problem"]) for level in results] == [(1, None), (2, None)]
            assert all(level["tokens_per_s"] > 0 for level in results)
    written = page + json.dumps(report) + (folder / "benchmarks.svg").read_text(encoding="utf-8")
    assert str(tmp_path) not in written
    assert "/srv" not in written


def test_a_run_that_is_ended_keeps_its_results_and_leaves_no_server(llama_server: Path, tmp_path: Path) -> None:
    """SIGTERM while the second server starts: the first one's results are written, and nothing runs on."""
    folder = tmp_path / "results"
    folder.mkdir()
    models = [f"Q4_1={tmp_path}/works.gguf", f"f32={tmp_path}/never.gguf"]
    options = ["--concurrency", "1", "--max-tokens", "7", "--repeats", "1", "--output", str(folder)]
    command = [sys.executable, str(SCRIPT), "--ours", "--llama-server", str(llama_server), "--llama-gguf", *models]
    running = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    left = [tmp_path / "works.pid", tmp_path / "never.pid"]
    wait_until(lambda: (folder / "benchmarks.md").is_file() and left[1].is_file(), 60.0)
    children = [int(path.read_text()) for path in left]
    running.terminate()
    assert running.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(process_exists, children)), 30.0)
    (works, never) = json.loads((folder / "benchmarks.json").read_text())["contenders"]
    assert works["runs"][0]["plain"][0]["tokens_per_s"] > 0
    assert never["runs"] == []


def test_all_levels_send_the_same_requests_but_for_the_bias(llama_server: Path, tmp_path: Path) -> None:
    """Full-length greedy streams; each level once with the bias in every request and once without."""
    options = ["--concurrency", "1", "3", "--rounds", "4", "--max-tokens", "7", "--processors"]
    measured = Run()
    with ServerProcess(stand_in(llama_server, "works"), 60.0) as server:
        compare.load(compare.parse_arguments(options), server, measured, bias=True)
    bodies = [json.loads(line) for line in (tmp_path / "bodies.jsonl").read_text().splitlines()]
    biased = [body.pop("logit_bias") for body in bodies if "logit_bias" in body]
    assert len(bodies) == 2 * len(biased) == 2 * ((1 + 8) + (3 + 12))
    assert all(bias == compare.LOGIT_BIAS and len(bias) == 8 for bias in biased)
    for body in bodies:
        del body["messages"]
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert all(
        body == stream | {"model": "stand-in", "max_tokens": 7, "temperature": 0, "ignore_eos": True} for body in bodies
    )
    assert [x.concurrency for x in measured.plain] == [x.concurrency for x in measured.biased] == [1, 3]


def test_long_prompts_are_sent_once(llama_server: Path, tmp_path: Path) -> None:
    """Each prompt in one request of one token, the first one not measured: a prefix cache finds nothing."""
    with ServerProcess(stand_in(llama_server, "works"), 60.0) as server:
        measured = compare.prefill(server, ["one", "two", "three"])
    bodies = [json.loads(line) for line in (tmp_path / "bodies.jsonl").read_text().splitlines()]
    assert [body["messages"][0]["content"] for body in bodies] == ["one", "two", "three"]
    assert all(body["max_tokens"] == 1 for body in bodies)
    assert measured.problem is None
    assert measured.tokens_per_s > 0


def test_tokens_of_a_prefix_cache_are_not_computed() -> None:
    """Rate of what was computed: 4 prompts of 100 tokens, half of them cached, in 20 ms each."""
    level = {"errors": 0, "completed": 4, "prompt_tokens": 400, "cached_prompt_tokens": 200, "latency_ms": {"p50": 20}}
    measured = PrefillResult.of(level, 0.0)
    assert (measured.prompt_tokens, measured.tokens_per_s) == (50, 2500)
    assert PrefillResult.of({"errors": 1, "first_error": "HTTP 500"}, 0.0).problem == "1 failed: HTTP 500"


def test_short_outputs_are_no_result(llama_server: Path) -> None:
    """A server that stops before the length asked for has done less work than the others."""
    with ServerProcess(stand_in(llama_server, "works"), 60.0) as server:
        measured = compare.level(compare.parse_arguments(["--max-tokens", "9"]), server, 1, {})
    assert measured.problem is not None
    assert "too short" in measured.problem


def test_a_server_leaves_nothing_behind(llama_server: Path, tmp_path: Path) -> None:
    """What a server started is ended with it."""
    with ServerProcess(stand_in(llama_server, "works"), 60.0):
        child = int((tmp_path / "works.pid").read_text())
        assert process_exists(child)
    wait_until(lambda: not process_exists(child), 30.0)


@pytest.mark.parametrize(
    ("model", "seconds", "message"),
    [("dies", 60.0, "status 1: error: no tensors in dies.gguf"), ("never", 0.5, "not healthy after 0 s")],
)
def test_a_server_that_does_not_start_says_why(llama_server: Path, model: str, seconds: float, message: str) -> None:
    """The message has what the server printed, without the folders of this machine."""
    with pytest.raises(ServerError, match=message) as error, ServerProcess(stand_in(llama_server, model), seconds):
        pass
    assert str(llama_server.parent) not in str(error.value)


def test_a_program_that_is_not_there() -> None:
    """A wrong path is this server's error and no traceback."""
    with pytest.raises(ServerError, match="llama-server"):
        ServerProcess(llama_contender("/nowhere/llama-server", Path("/x.gguf"), "Q4_1"), 5.0).__enter__()


def test_cpu_time_of_a_tree_holds_what_its_processes_used() -> None:
    """A child's work is its parent's tree's, before the child has ended and after; nobody else's is."""
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    own, idle, everything = tree_seconds(os.getpid()), tree_seconds(1 << 30), busy_seconds()
    child = subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child_ticks = round(TICKS * tree_seconds(child.pid))
    assert child_ticks > 0.45 * TICKS
    # The kernel rounds every process's time in user and in system mode to whole ticks.
    assert child_ticks <= round(TICKS * (tree_seconds(os.getpid()) - own)) + 2
    child.communicate(b"\n")
    assert tree_seconds(os.getpid()) - own > 0.45
    assert tree_seconds(1 << 30) == idle == 0.0
    assert busy_seconds() - everything > 0.4


def test_ratios_are_to_the_best_peer() -> None:
    """The best of one precision, whatever engines call it, and the best of all; never one of our own."""
    ours = outcome("us", "w8a8", 300.0, 100.0, 200.0, ttft_ms=30.0, ours=True)
    peers = [
        outcome("vLLM", "w8a8", 80.0, ttft_ms=40.0),
        outcome("llama.cpp", "Q8_0", 100.0, ttft_ms=20.0),
        outcome("llama.cpp", "Q4_1", 400.0, ttft_ms=25.0),
        Outcome(Contender("broken", "w8a8", ("true",)), error="did not start"),
    ]
    same = throughput_ratio(ours, peers, 8, same_precision=True)
    every = throughput_ratio(ours, peers, 8, same_precision=False)
    first = ttft_ratio(ours, peers, 8)
    assert same is not None
    assert every is not None
    assert first is not None
    assert (same.value, same.peer) == (2.0, "llama.cpp, Q8_0")
    assert (every.value, every.peer) == (0.5, "llama.cpp, Q4_1")
    assert (first.value, first.peer) == (1.5, "llama.cpp, Q8_0")
    assert throughput_ratio(ours, [], 8, same_precision=False) is None
    assert throughput_ratio(ours, peers, 32, same_precision=False) is None


def test_runs_with_a_problem_do_not_count() -> None:
    """Medians, spread and the price of a bias come from the good levels alone, paired within their run."""
    runs = [
        Run([result(8, 100.0)], [result(8, 50.0)]),
        Run([result(8, 1.0, problem="cut off")], [result(8, 90.0)]),
        Run([result(8, 200.0)], [result(8, 180.0)]),
        Run([result(8, 400.0)]),
    ]
    measured = Outcome(Contender("x", "float32", ("true",)), runs)
    assert measured.tokens_per_s(8) == 200.0
    assert measured.tokens_per_s(8, biased=True) == 90.0
    assert measured.spread(8) == (100.0, 400.0)
    assert measured.bias_ratio(8) == pytest.approx(0.7)
    assert measured.problem == "cut off"
    assert measured.tokens_per_s(1) is measured.spread(1) is measured.bias_ratio(1) is None


def test_plot_shows_every_server() -> None:
    """The plot is well-formed whatever the names are, and a server without a result says so."""
    outcomes = [outcome("<us> & co", "w8a8", 30.0, 60.0, ours=True), Outcome(Contender("them", "f32", ("x",)))]
    root = ElementTree.fromstring(render_svg(outcomes, [1, 8]))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("<us> & co, w8a8") == texts.count("them, f32") == 2
    assert texts.count("no result") == 3
    assert "45" in texts


def test_page_is_made_and_replaced(tmp_path: Path) -> None:
    """Writing twice leaves the second results alone."""
    write_page(tmp_path, "older results")
    write_page(tmp_path, "newer results")
    page = (tmp_path / "benchmarks.md").read_text()
    assert "older" not in page
    assert page.count("newer results") == page.count(BEGIN) == page.count(END) == 1


def test_nothing_published_names_a_folder() -> None:
    """Command lines and messages keep the last part of a path only."""
    environment = {"PYTHONPATH": "/src", "LD_PRELOAD": "/opt/lib/a.so.4:/opt/lib/b.so", "BIND": "0-1"}
    contender = Contender("vLLM", "f32", ("/opt/a/bin/vllm", "serve", "/data/m", "--port", "{port}"), environment)
    assert printable(contender) == "LD_PRELOAD=a.so.4:b.so BIND=0-1 vllm serve m --port {port}"
    text = without_folders("cannot open '/srv/models/x y/m.gguf': see /var/log/a.log, 3/4 of http://127.0.0.1:1/v1")
    assert "srv" not in text
    assert "var" not in text
    assert "a.log, 3/4 of" in text


def test_our_precisions_are_options() -> None:
    """float32 is what the server does without an option."""
    assert "--quantization" not in our_contender("m", "float32").command
    command = our_contender("m", "w8a8").command
    assert command[command.index("--quantization") + 1] == "w8a8"


def test_bfloat16_is_a_dtype() -> None:
    """Ours is asked for by --dtype, vLLM's 8-bit weights have it beside them: with AMX they take nothing else."""
    ours = our_contender("m", "bfloat16").command
    assert ours[ours.index("--dtype") + 1] == "bfloat16"
    assert "--quantization" not in ours
    for precision, dtype in (("w8a8", "bfloat16"), ("float32", "float32"), ("bfloat16", "bfloat16")):
        theirs = vllm_contender("python", Path("m"), precision, {}).command
        assert theirs[theirs.index("--dtype") + 1] == dtype


def test_sections_of_a_page_keep_apart(tmp_path: Path) -> None:
    """A second section goes before the next heading, and each run replaces its own."""
    (tmp_path / "benchmarks.md").write_text(f"# Us\n\n{BEGIN}\nold\n{END}\n\nProse.\n\n## Later\n")
    write_page(tmp_path, "a billion, first", BILLION)
    write_page(tmp_path, "the default model")
    write_page(tmp_path, "a billion, second", BILLION)
    page = (tmp_path / "benchmarks.md").read_text()
    expected = ["the default model", "Prose.", "## A billion parameters", "a billion, second", "## Later"]
    positions = [page.index(part) for part in expected]
    assert positions == sorted(positions)
    assert "old" not in page
    assert "first" not in page
    assert "(benchmarks-billion.svg)" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vllm-env", "A"], "is not NAME=VALUE"),
        (["--llama-gguf", "=x.gguf"], "is not NAME=VALUE"),
        (["--rounds", "0"], "0 is below 1"),
        (["--output", "no-such-folder"], "no directory no-such-folder"),
        (["--billion", "no-such-folder"], "no directory no-such-folder"),
        (["--long-prompts", "-1"], "-1 is below 0"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that cannot work end the run before any server starts, with status 2."""
    with pytest.raises(SystemExit) as error:
        compare.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_hugging_face_peer_answers_as_the_reference(golden_cases: list[dict[str, Any]]) -> None:
    """Rows of different lengths in one padded batch get the reference's answers, and full length on demand."""
    sure = [case for case in golden_cases if case["min_top1_top2_gap"] > 0.01]
    cases = sorted(sure, key=lambda case: len(case["output_ids"]))[:3]
    limit = len(cases[0]["output_ids"]) + 2
    common = {"max_tokens": limit, "stream": True}

    async def ask(client: Client, body: dict[str, Any]) -> tuple[str, Sample]:
        received = bytearray()
        await client.exchange(
            "POST", "chat/completions", json.dumps(body).encode(), lambda _, part: received.extend(part)
        )
        sample = Sample(0.0)
        stream = ChatStream(sample)
        stream.receive(200, bytes(received))
        stream.finish()
        payloads = [json.loads(x) for x in SSEDecoder().feed(bytes(received)) if x != "[DONE]"]
        return "".join(c["delta"].get("content", "") for x in payloads for c in x["choices"]), sample

    async def ask_all(url: str) -> list[tuple[str, Sample]]:
        client = Client(f"{url}/v1", {})
        full = {"messages": cases[0]["messages"], "ignore_eos": True} | common
        bodies = [{"messages": case["messages"]} | common for case in cases]
        answers = await asyncio.gather(*(ask(client, body) for body in [*bodies, full]))
        await client.close()
        return answers

    contender = hugging_face_contender(resolve_model("smollm2-135m").directory)
    with ServerProcess(contender, 300.0) as server:
        *answers, (text, sample) = asyncio.run(ask_all(server.url))
    assert len(answers) == 3
    for case, (answer, measured) in zip(cases, answers, strict=True):
        assert measured.output_tokens == min(limit, len(case["output_ids"]))
        assert answer
        assert case["output_text"].startswith(answer)
    assert answers[0][0] == cases[0]["output_text"]
    assert sample.output_tokens == limit
    assert text.startswith(cases[0]["output_text"])


@pytest.mark.long
def test_smoothing_changes_no_output_and_int8_stays_close() -> None:
    """The folded model computes what it did, and each int8 weight is within half a step of its float."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from peers import w8a8_checkpoint

    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    random = torch.Generator().manual_seed(5)
    linear = {name: x for name, x in model.named_modules() if isinstance(x, torch.nn.Linear)}
    maxima = {name: 10 * torch.rand(x.in_features, generator=random) + 0.1 for name, x in linear.items()}
    tokens = torch.randint(0, model.config.vocab_size, (2, 9), generator=random)
    before = {name: x.weight.detach().clone() for name, x in linear.items()}
    with torch.inference_mode():
        expected = model(tokens).logits
        w8a8_checkpoint.smooth(model, maxima)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-3, atol=1e-4)
    assert all(not torch.equal(before[name], x.weight) for name, x in linear.items())
    tensors = w8a8_checkpoint.quantized_tensors(model)
    for name, layer in linear.items():
        weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
        assert weight.dtype == torch.int8
        assert scale.shape == (layer.out_features, 1)
        assert ((weight * scale - layer.weight).abs() <= 0.5001 * scale).all()
