"""The tokenizer that programs get: the prompts are those of chats, by the names and defaults of transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.idle_engine import config_in
from support.told_engine import TEMPLATE
from transformers import AutoTokenizer

from fastdeploy_lp import AsyncLLM
from fastdeploy_lp.config.fd_config import ChatConfig, SchedulerConfig
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.entrypoints.chat_tokenizer import ChatTokenizer

TALK: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
ADD = {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": ADD}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineClient:
    chat = ChatConfig(TEMPLATE.read_text())
    folder = tmp_path_factory.mktemp("model")
    return EngineClient(config_in(folder, SchedulerConfig(1, 64), chat, "tiny-llama"), [])


@pytest.fixture(scope="module")
def tokenizer(engine: EngineClient) -> ChatTokenizer:
    return ChatTokenizer(engine)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True},
        {"tokenize": False},
        {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False},
        {"tokenize": False, "tools": TOOLS},
        {"tokenize": False, "chat_template": "{{ mood }}{{ messages|length }}{{ eos_token }}", "mood": "good"},
        {"tokenize": False, "continue_final_message": True},
        {"return_dict": True},
    ],
)
def test_prompts_are_those_of_transformers(
    tokenizer: ChatTokenizer, engine: EngineClient, options: dict[str, Any]
) -> None:
    theirs = AutoTokenizer.from_pretrained(engine.fd_config.model_config.directory)
    theirs.chat_template = TEMPLATE.read_text()
    expected = theirs.apply_chat_template(TALK, **{"return_dict": False, **options})
    assert tokenizer.apply_chat_template(TALK, **options) == expected


def test_with_the_beginning_of_an_answer_it_is_the_prompt_of_a_chat(
    tokenizer: ChatTokenizer, engine: EngineClient
) -> None:
    parts: list[dict[str, Any]] = [{"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}, *TALK[:1]]
    assert (
        tokenizer.apply_chat_template(parts, add_generation_prompt=True) == engine.inputs.chat_prompt(parts).token_ids
    )


def test_it_is_the_tokenizer_of_processors(tokenizer: ChatTokenizer, engine: EngineClient) -> None:
    ids = engine.fd_config.tokenizer.encode("It rained.")
    assert (tokenizer.encode("It rained."), tokenizer.decode(ids)) == (ids, engine.fd_config.tokenizer.decode(ids))
    assert tokenizer.chat_template == TEMPLATE.read_text()


@pytest.mark.parametrize("name", ["padding", "truncation", "max_length", "return_tensors"])
def test_options_of_several_prompts_are_refused(tokenizer: ChatTokenizer, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: is not known here"):
        tokenizer.apply_chat_template(TALK, **{name: "pt"})


def test_a_refusal_names_the_field(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(ValueError, match=r"messages\.0\.tool_calls\.0"):
        tokenizer.apply_chat_template([{"role": "assistant", "tool_calls": [1]}])


def test_without_a_tokenizer_there_is_none(light_checkpoint: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(str(light_checkpoint), skip_tokenizer_init=True, max_num_seqs=1) as llm:
            await llm.get_tokenizer()

    with pytest.raises(ValueError, match="no tokenizer"):
        asyncio.run(run())


def test_an_async_engine_returns_one_tokenizer(light_checkpoint: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(str(light_checkpoint), max_num_seqs=1) as llm:
            tokenizer = await llm.get_tokenizer()
            assert tokenizer is await llm.get_tokenizer()
            assert tokenizer.decode(tokenizer.encode("one two")) == "one two"

    asyncio.run(run())
