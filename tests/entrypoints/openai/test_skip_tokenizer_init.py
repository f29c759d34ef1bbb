"""A server without a tokenizer: token ids in, token ids out, and a 400 that says so for whatever needs text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.golden import cases
from support.server import ServerProcess
from support.tiny import GOLDEN

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.startup.engine_args import EngineArgs

NAME = "tiny-llama"
CASE = cases(NAME)[2]
BODY = {"prompt_token_ids": CASE.prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
PROCESSORS = ["LogitBiasLogitsProcessor", "ForcedSequenceLogitsProcessor"]


def without_tokenizer(folder: Path) -> str:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / NAME / name, folder / name)
    return str(folder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = without_tokenizer(tmp_path_factory.mktemp("bare"))
    options = ["--skip-tokenizer-init", "--max-num-seqs", "4", "--max-model-len", "128"]
    with ServerProcess(*options, "--logits-processors", *PROCESSORS, model=model) as server:
        yield server


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("prompt", [{}, {"prompt": CASE.prompt, "prompt_token_ids": None}])
def test_a_completion_answers_with_token_ids(bare: ServerProcess, prompt: dict[str, Any]) -> None:
    answer = post(bare, "/v1/completions", **{**BODY, **prompt})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["token_ids"] == CASE.greedy[:12]
    assert choice["prompt_token_ids"] == CASE.prompt
    assert choice["text"] == ""
    assert answer.json()["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_gives_each_token_as_it_comes(bare: ServerProcess, path: str) -> None:
    more = {"messages": [{"role": "user", "content": "-"}]} if "chat" in path else {}
    answer = post(bare, path, **{**BODY, "max_tokens": 90}, stream=True, **more)
    assert answer.status_code == 200, answer.text
    choices = [choice for event in events(answer.text) for choice in event["choices"] if choice.get("token_ids")]
    tokens = [token for choice in choices for token in choice["token_ids"]]
    assert (len(tokens), tokens[: len(CASE.greedy)]) == (90, CASE.greedy)
    # A busy server sends the tokens of a few steps together.
    assert len(choices) > 1


def test_token_ids_can_be_left_out(bare: ServerProcess) -> None:
    (choice,) = post(bare, "/v1/completions", **BODY, return_token_ids=False).json()["choices"]
    assert "token_ids" not in choice


def test_stop_token_ids_logprobs_and_processors_work_on_ids(bare: ServerProcess) -> None:
    stopped = post(bare, "/v1/completions", **BODY, stop_token_ids=[CASE.greedy[3]], logprobs=2)
    (choice,) = stopped.json()["choices"]
    assert choice["token_ids"] == CASE.greedy[: CASE.greedy.index(CASE.greedy[3]) + 1]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    forced = post(bare, "/v1/completions", **BODY, logits_processors_args={"forced_sequence": [7, 8, 9]})
    assert forced.status_code == 200, forced.text
    assert forced.json()["choices"][0]["token_ids"][:3] == [7, 8, 9]


def test_embeddings_take_token_ids(bare: ServerProcess) -> None:
    answer = post(bare, "/v1/embeddings", input=CASE.prompt)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"][0]["embedding"]) == 64


CONVERSATION = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "Hello", "prompt_token_ids": None}, "prompt"),
        ("/v1/completions", {"prompt": ["Hello"], "prompt_token_ids": None}, "prompt.0"),
        ("/v1/completions", {"stop": ["."]}, "stop"),
        ("/v1/completions", {"bad_words": ["no"]}, "bad_words.0"),
        ("/v1/completions", {"echo": True}, "echo"),
        ("/v1/completions", {"response_format": {"type": "json_object"}}, "response_format.type"),
        ("/v1/completions", {"guided_choice": ["a", "b"]}, "guided_choice"),
        (
            "/v1/completions",
            {"logits_processors_args": {"forced_sequence": "Hello"}},
            "logits_processors_args.forced_sequence",
        ),
        ("/v1/chat/completions", {"messages": CONVERSATION, "prompt_token_ids": None}, "messages"),
        ("/v1/embeddings", {"input": "Hello"}, "input"),
        ("/tokenize", {"prompt": "Hello"}, "prompt"),
        ("/tokenize", {"messages": CONVERSATION}, "messages"),
        ("/detokenize", {"tokens": [5]}, "tokens"),
    ],
)
def test_what_needs_text_is_refused_by_the_name_of_its_field(
    bare: ServerProcess, path: str, body: dict[str, Any], param: str
) -> None:
    base = BODY if "completions" in path else {}
    answer = post(bare, path, **{key: value for key, value in {**base, **body}.items() if value is not None})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert "no tokenizer" in error["message"]


def test_offline_token_ids_come_as_they_would_over_http(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(without_tokenizer(tmp_path), skip_tokenizer_init=True, max_num_seqs=2, max_model_len=128) as llm:
        (output,) = llm.generate({"prompt_token_ids": CASE.prompt}, params, use_tqdm=False)
        assert output.outputs.token_ids == CASE.greedy[:12]
        assert output.outputs.text == ""
        with pytest.raises(InvalidRequestError, match=r"prompts?.*no tokenizer"):
            llm.generate("Hello", params, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match=r"messages.*no tokenizer"):
            llm.chat(CONVERSATION, params, use_tqdm=False)


@pytest.mark.parametrize("option", ["chat_template", "tool_call_parser", "reasoning_parser"])
def test_options_about_text_do_not_go_with_it(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: has no text to work on with skip_tokenizer_init"):
        EngineArgs(model=NAME, skip_tokenizer_init=True, **{option: "qwen3"})  # type: ignore[arg-type]
