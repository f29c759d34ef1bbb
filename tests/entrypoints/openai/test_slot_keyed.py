"""A slot-keyed processor for vLLM behind a server, as vLLM's online test is described."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

PROMPTS = ["the dog", "the fox", "a cat", "over the"]
TARGETS = (128, 67)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The example of vLLM's guide; fewer slots than requests."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"))
    options = ["--logits-processors", "support.slot_keyed_torch:TargetToken", "--vllm-compat", "--max-num-seqs", "2"]
    with ServerProcess(*options, model=str(model)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def tokens(client: openai.OpenAI, prompt: str, **xargs: Any) -> list[int]:
    extra: dict[str, Any] = {"return_token_ids": True, "ignore_eos": True} | ({"vllm_xargs": xargs} if xargs else {})
    model = client.models.list().data[0].id
    done = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=20, extra_body=extra)
    found: list[int] = done.choices[0].model_extra["token_ids"]  # type: ignore[index]
    return found


def test_requests_with_the_argument_repeat_its_token_and_the_others_do_not_notice(client: openai.OpenAI) -> None:
    plain = [tokens(client, prompt) for prompt in PROMPTS]
    xargs = [{"target_token": TARGETS[index % 2]} if index % 3 else {} for index in range(12)]
    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda index: tokens(client, PROMPTS[index % 4], **xargs[index]), range(12)))
    for index, each in enumerate(found):
        assert each == ([TARGETS[index % 2]] * 20 if xargs[index] else plain[index % 4])


def test_an_argument_that_it_refuses_is_a_400_with_its_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="target_token value many is not int"):
        tokens(client, PROMPTS[0], target_token="many")


def test_it_is_listed_as_a_processor_for_torch(server: ServerProcess) -> None:
    [card] = httpx.get(f"{server.url}/v1/logits_processors").json()["data"]
    assert (card["name"], card["dialect"]) == ("TargetToken", "torch")
