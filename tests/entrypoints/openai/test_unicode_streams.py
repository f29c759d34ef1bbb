"""Streamed pieces joined are the plain answer, whatever characters a model writes and wherever a stop string falls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from support.chat import chunks, opened_stream, post, text_of
from support.forced import says
from support.server import ServerProcess

ALPHABET = "ab \n,é🙂👩\u200d🚀🇫🇷한국어漢字かなñ\u0301\u0308\ufe0fनमस्ते"
SCRIPTED, SAMPLED = 12, 8


def answers(server: ServerProcess, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    plain = post(server, body)
    assert plain.status_code == 200, plain.text
    with opened_stream(server, body) as payloads:
        return plain.json()["choices"][0], chunks(payloads)


def check_alike(server: ServerProcess, body: dict[str, Any]) -> str:
    """Gives the text."""
    choice, parts = answers(server, body)
    text: str = choice["message"]["content"]
    assert text_of(parts) == text
    assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    so_far = ""
    for part in parts:
        so_far += part["choices"][0]["delta"].get("content", "")
        assert text.startswith(so_far), "no piece ends within a character or shows a part of the stop string"
    return text


def test_texts_that_a_model_is_made_to_write(scripted_server: ServerProcess) -> None:
    def one(seed: int) -> None:
        random = Random(seed)
        text = "".join(random.choices(ALPHABET, k=random.randint(5, 40)))
        begin = random.randrange(len(text) - 2)
        stop = text[begin : begin + random.randint(1, 8)]
        body = {"messages": [{"role": "user", "content": text}], **says(text)}
        assert stop not in check_alike(scripted_server, {**body, "stop": stop})
        check_alike(scripted_server, body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(SCRIPTED)))


def test_what_a_model_writes_when_it_is_hot(light_server: ServerProcess) -> None:
    def one(seed: int) -> None:
        message = {"role": "user", "content": "".join(Random(seed).choices(ALPHABET, k=20))}
        body = {"messages": [message], "seed": seed, "temperature": 1.5, "max_tokens": 24}
        text = check_alike(light_server, body)
        middle = len(text) // 2
        if stop := text[middle : middle + 5]:
            assert stop not in check_alike(light_server, {**body, "stop": stop})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(SAMPLED)))
