"""The example packages of a model, a platform and a logits processor, installed and seen working through servers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.distributions import install
from support.forks import command, run_forks, serve
from support.fresh_venv import FreshVenv
from support.server import ServerProcess
from support.tiny import GOLDEN
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.version import __version__

SECONDS = 60.0
VOCAB_SIZE, HIDDEN_SIZE = 512, 16
TOKENS = 12
LISTED = ("example_model", "example_platform", "breaks", "newer", "future")
# Groups in which a plugin's failure ends the start, and a part of the message.
FAILING = {"platform_plugins": "platform plugin", "logits_processors": "tested"}
Ended = dict[str, subprocess.CompletedProcess[str]]
# What 1 MiB holds of blocks of 8 tokens of the tiny Llama, in float32; one of them is the null block.
EXAMPLE_BLOCKS = (1 << 20) // (2 * 3 * 2 * 8 * 4 * 8) - 1

BROKEN = """
    from fastdeploy_lp.plugins import requires_version


    def breaks():
        raise RuntimeError("out of order")


    @requires_version(">=99")
    def newer():
        raise RuntimeError("called all the same")
"""


@pytest.fixture(scope="module")
def fresh(plugin_venv: FreshVenv) -> FreshVenv:
    """Beside the examples, general plugins that fail: what they do to the others is seen, too."""
    (site,) = Path(plugin_venv.python).parents[1].glob("lib/python*/site-packages")
    install(
        site,
        "broken_plugins",
        {"general_plugins": {"breaks": "broken_plugins:breaks", "newer": "broken_plugins:newer"}},
        modules={"broken_plugins": BROKEN},
    )
    install(site, "future_plugins", {"general_plugins": {"future": "os:abort"}}, requires=["fastdeploy_lp>=99"])
    return plugin_venv


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, np.ndarray]:
    """A checkpoint of the example's architecture, and the token that follows each."""
    folder = tmp_path_factory.mktemp("bigram")
    write_tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    changed = {"architectures": ["BigramForCausalLM"], "hidden_size": HIDDEN_SIZE, "eos_token_id": VOCAB_SIZE - 1}
    (folder / "config.json").write_text(json.dumps(config | changed))
    random = np.random.default_rng(7)
    embedding, head = (random.standard_normal((VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32) for _ in range(2))
    # Some tokens follow themselves, for the processor to break.
    head[100:200] = 3 * embedding[100:200]
    save_file({"embedding.weight": embedding, "head.weight": head}, str(folder / "model.safetensors"))
    return str(folder), embedding @ head.T


@pytest.fixture(scope="module")
def bigram_server(fresh: FreshVenv, bigram: tuple[str, np.ndarray]) -> Iterator[ServerProcess]:
    """The example model with the example processor, and the plugins that fail."""
    environment = fresh.environment("example_model", "example_processor", "breaks", "newer", "future")
    with ServerProcess(model=bigram[0], own_metrics_port=False, python=fresh.python, env=environment) as running:
        yield running


@pytest.fixture(scope="module")
def platform_server(fresh: FreshVenv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A tiny Llama on the example platform."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"))
    environment = fresh.environment("example_platform")
    options = ["--log-level", "debug"]
    with ServerProcess(*options, model=model, own_metrics_port=False, python=fresh.python, env=environment) as running:
        yield running


@pytest.fixture(scope="module")
def ended(fresh: FreshVenv, bigram: tuple[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What commands did that need no running server, by their names."""
    tiny = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    check = ["check", "example_processor", "--strict", "--skip", "speed", "--params"]
    programs = {
        "no plugin": serve("--model", bigram[0]),
        "check": command(*check, json.dumps({"no_immediate_repeat": True}), variables=only("example_processor")),
        "w8a8": serve("--model", tiny, "--quantization", "w8a8", variables=only("example_platform")),
        "list": command("plugins", "--json", variables=only(*LISTED)),
    }
    for group in FAILING:
        site = tmp_path_factory.mktemp("site")
        install(site, "tested", {group: {"tested": "tested_plugin:found"}}, modules={"tested_plugin": "1 / 0"})
        programs[group] = serve("--model", "no-such-model", variables=only("tested"), paths=[str(site)])
    folder = tmp_path_factory.mktemp("ended")
    done = run_forks(list(programs.values()), folder, fresh.environment(), python=fresh.python)
    return dict(zip(programs, done, strict=True))


def only(*plugins: str) -> dict[str, str]:
    return {"FASTDEPLOY_LP_PLUGINS": ",".join(plugins)}


def tokens_of(server: ServerProcess, prompt: list[int], **fields: object) -> list[int]:
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body | fields, timeout=SECONDS)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def lines_with(server: ServerProcess, text: str) -> list[str]:
    return [line for line in server.log.splitlines() if text in line]


def followers(logits: np.ndarray, start: int, *, repeats: bool) -> list[int]:
    """What the bigram model says after a token, with or without tokens that follow themselves."""
    found = [start]
    for step in range(TOKENS):
        row = logits[found[-1]].copy()
        if not repeats and step:
            row[found[-1]] = -np.inf
        found.append(int(row.argmax()))
    return found[1:]


# The model


@pytest.mark.parametrize("start", [3, 77, 100, 150])
def test_a_model_of_a_package_of_its_own_is_served(
    bigram_server: ServerProcess, bigram: tuple[str, np.ndarray], start: int
) -> None:
    assert tokens_of(bigram_server, [8, 9, start]) == followers(bigram[1], start, repeats=True)


def test_its_function_was_called_in_the_api_process_and_in_the_worker(bigram_server: ServerProcess) -> None:
    lines = lines_with(bigram_server, "general plugin example_model (fastdeploy-lp-example-model 0.1.0) is loaded")
    assert sorted("worker:" in line for line in lines) == [False, True]


def test_without_the_plugin_the_architecture_is_unknown(ended: Ended) -> None:
    done = ended["no plugin"]
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert "architectures ['BigramForCausalLM'] are not supported; supported are LlamaForCausalLM" in line


# The logits processor


def test_a_processor_is_in_the_chain_of_every_server_beside_which_it_is_installed(
    bigram_server: ServerProcess, bigram: tuple[str, np.ndarray]
) -> None:
    listed = httpx.get(f"{bigram_server.url}/v1/logits_processors", timeout=SECONDS).json()
    assert [each["name"] for each in listed["data"]] == ["example_processor"]
    # Token 150 follows itself, and with the processor it may not.
    prompt = [8, 9, 150]
    expected = followers(bigram[1], 150, repeats=False)
    assert tokens_of(bigram_server, prompt, logits_processors_args={"no_immediate_repeat": True}) == expected
    assert expected != followers(bigram[1], 150, repeats=True)
    named = {"example_processor": {"no_immediate_repeat": True}}
    assert tokens_of(bigram_server, prompt, logits_processors=named) == expected


def test_its_arguments_are_checked_in_the_api_process(bigram_server: ServerProcess) -> None:
    body = {"prompt": "a", "logits_processors_args": {"no_immediate_repeat": "often"}}
    answer = httpx.post(f"{bigram_server.url}/v1/completions", json=body, timeout=SECONDS)
    assert answer.status_code == 400
    assert "no_immediate_repeat" in answer.json()["error"]["message"]


def test_it_keeps_the_contract(ended: Ended) -> None:
    assert ended["check"].returncode == 0, ended["check"].stdout


# What fails


def test_general_plugins_that_fail_are_told_in_both_processes_and_skipped(bigram_server: ServerProcess) -> None:
    raised = "general plugin breaks (broken_plugins 1.0): broken_plugins:breaks raised: RuntimeError: out of order"
    for message in (
        f"{raised}; it is skipped",
        f"general plugin newer (broken_plugins 1.0): needs fastdeploy-lp>=99, this is {__version__}; install",
        f"general plugin future (future_plugins 1.0): needs fastdeploy-lp>=99, this is {__version__}; install",
    ):
        assert sorted("worker:" in line for line in lines_with(bigram_server, message)) == [False, True], message
    assert len(lines_with(bigram_server, ", in breaks")) == 2
    assert not lines_with(bigram_server, "called all the same")


@pytest.mark.parametrize("group", FAILING)
def test_others_that_fail_end_the_start_before_a_model_is_looked_for(ended: Ended, group: str) -> None:
    done, name = ended[group], FAILING[group]
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert name in last
    assert "(tested 1.0)" in done.stderr
    assert "ZeroDivisionError: division by zero" in last
    assert "Traceback" in done.stderr
    assert "no-such-model" not in done.stderr


# The platform


@pytest.mark.parametrize("index", range(2))
def test_a_platform_of_a_package_of_its_own_serves(platform_server: ServerProcess, index: int) -> None:
    """Its attention gives the tokens of the reference."""
    case = json.loads((GOLDEN / "tiny-llama" / "reference.json").read_text())["cases"][index]
    assert tokens_of(platform_server, case["prompt_ids"]) == case["greedy_ids"][:TOKENS]


def test_its_classes_are_those_that_run(platform_server: ServerProcess) -> None:
    tokens_of(platform_server, [1, 2, 3])
    assert lines_with(platform_server, "(platform example; logits processors: none)")
    told = "worker: ExampleWorker on platform example: the CPU, as an example, "
    (line,) = lines_with(platform_server, told)
    assert line.endswith(f", {EXAMPLE_BLOCKS + 1} blocks of 8 tokens")
    for message in ("the example worker is warm", "the example model runner takes its first step"):
        (line,) = lines_with(platform_server, message)
        assert "worker:" in line


def test_what_it_says_of_blocks_and_memory_holds(platform_server: ServerProcess) -> None:
    tokens_of(platform_server, [1, 2, 3])
    metrics = httpx.get(f"{platform_server.url}/metrics", timeout=SECONDS).text
    (total,) = re.findall(r"^\S*kv_cache_blocks(?:\{.*\})? (\S+)$", metrics, re.MULTILINE)
    assert float(total) == EXAMPLE_BLOCKS


def test_what_the_device_cannot_do_is_told_before_the_worker_starts(ended: Ended) -> None:
    done = ended["w8a8"]
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: quantization: w8a8 cannot be had on example"


# The command


def test_the_command_lists_what_became_of_each(ended: Ended) -> None:
    done = ended["list"]
    assert done.returncode == 1
    listed = json.loads(done.stdout)
    assert listed["filter"] == sorted(LISTED)
    found = {(each["group"].partition(".")[2], each["name"]): each for each in listed["plugins"]}
    states = {name: each["state"] for (_, name), each in found.items()}
    expected = {
        "example_model": "loaded",
        "example_platform": "loaded",
        "example_processor": "filtered",
        "breaks": "failed",
        "newer": "incompatible",
        "future": "incompatible",
    }
    assert expected.items() <= states.items()
    assert found["platform_plugins", "example_platform"] == {
        "group": "fastdeploy_lp.platform_plugins",
        "name": "example_platform",
        "state": "loaded",
        "detail": "claims this machine as example",
        "distribution": "fastdeploy-lp-example-platform",
        "version": "0.1.0",
        "value": "example_platform:register",
        "requires": ["fastdeploy-lp>=0.1"],
    }
    assert found["general_plugins", "breaks"]["detail"].endswith("RuntimeError: out of order")
