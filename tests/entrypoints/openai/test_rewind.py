"""Tokens that are taken back, over every API and offline: the exact text, and nothing of what was taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.server import ServerProcess
from tokenizers import Tokenizer

from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.model_tokenizer import TokenBytes

MESSAGES: list[Any] = [{"role": "user", "content": "the quick brown fox"}]
BAN = "PhraseBanLogitsProcessor"
DECLARED = [BAN, "support.rewinding:Rewinds", "support.acting:Acts", "support.rewinding:BanAt"]
TOKENS = 40
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS}
Spelled = Callable[[int], bytes]
Decode = Callable[[dict[int, list[int]]], list[int]]


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    options = ("--speculative-config", '{"method": "ngram"}')
    with ServerProcess(*options, "--logits-processors", *DECLARED, model=str(tiny_checkpoint)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def spelled(tiny_checkpoint: Path) -> Spelled:
    found = TokenBytes(Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json")))
    return lambda token: b"" if token in found.special else found(token)


def chat(client: openai.OpenAI, processors: Any = None, *, body: dict[str, Any] | None = None, **fields: Any) -> Any:
    model = client.models.list().data[0].id
    extra = {"ignore_eos": True, "return_token_ids": True, "logits_processors": processors or {}, **(body or {})}
    return client.chat.completions.create(model=model, messages=MESSAGES, **{**GREEDY, **fields}, extra_body=extra)


def back_from(phrases: list[str], spelled: Spelled, tokens: list[int]) -> tuple[int, int] | None:
    """The number of tokens that complete a phrase first, and the token in which it begins."""
    wanted = [each.lower().encode() for each in phrases]
    pieces = [spelled(token) for token in tokens]
    for length in range(1, len(tokens) + 1):
        text = b"".join(pieces[:length]).lower()
        starts = [text.find(each) for each in wanted if each in text]
        if starts:
            ends = [len(b"".join(pieces[: place + 1])) for place in range(length)]
            return length, next(place for place, end in enumerate(ends) if end > min(starts))
    return None


def without(phrases: list[str], spelled: Spelled, decode: Decode) -> list[int]:
    """The output that has none of the phrases, by whole runs in which tokens are banned at places."""
    bans: dict[int, list[int]] = {}
    while True:
        tokens = decode(bans)
        found = back_from(phrases, spelled, tokens)
        if found is None:
            return tokens
        _, place = found
        bans = {at: banned for at, banned in bans.items() if at <= place}
        bans[place] = [*bans.get(place, []), tokens[place]]


def some_phrases(spelled: Spelled, decode: Decode) -> tuple[list[str], list[int]]:
    """ASCII texts that the output meets one after the other, in another casing, and the output without them."""
    phrases: list[str] = []
    tokens = decode({})
    for begin in (0, 6, 14, 21, 30, TOKENS - 2):
        pairs = [b"".join(map(spelled, tokens[at : at + 2])) for at in range(begin, TOKENS - 1)]
        text = next((pair for pair in pairs if pair.isascii() and len(pair) > 1), None)
        if text is not None:
            phrases.append(text.decode().swapcase())
            tokens = without(phrases, spelled, decode)
    assert len(phrases) >= 3
    return phrases, tokens


@pytest.fixture(scope="module")
def banned(client: openai.OpenAI, spelled: Spelled) -> tuple[list[str], list[int]]:
    def decode(bans: dict[int, list[int]]) -> list[int]:
        return list(chat(client, {"BanAt": {"ban_at": bans}} if bans else None).choices[0].token_ids)

    return some_phrases(spelled, decode)


def test_the_text_is_the_models_own_other_way(client: openai.OpenAI, banned: Any, spelled: Spelled) -> None:
    phrases, tokens = banned
    plain = chat(client).choices[0]
    answered = chat(client, {BAN: {"banned_phrases": phrases}}, logprobs=True, top_logprobs=1)
    (choice,) = answered.choices
    assert choice.token_ids == tokens != plain.token_ids
    assert choice.finish_reason == "length"
    assert back_from(phrases, spelled, plain.token_ids) is not None
    assert not any(each.lower() in choice.message.content.lower() for each in phrases)
    assert answered.usage.completion_tokens == len(choice.logprobs.content) == TOKENS
    assert b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode(errors="replace") == (
        b"".join(map(spelled, tokens)).decode(errors="replace")
    )


def test_a_stream_has_the_same_and_never_more(client: openai.OpenAI, banned: Any) -> None:
    phrases, tokens = banned
    asked = {BAN: {"banned_phrases": phrases}, "Acts": {"emit_at": list(range(TOKENS))}}
    whole = chat(client, asked, logprobs=True).choices[0]
    assert whole.logits_processors_outputs == {"Acts": list(range(TOKENS))}
    chunks = [chunk.choices[0] for chunk in chat(client, asked, stream=True, logprobs=True)]
    text, seen, values = "", list[int](), list[int]()
    for chunk in chunks:
        new = list(getattr(chunk, "token_ids", None) or [])
        emitted = (getattr(chunk, "logits_processors_outputs", None) or {}).get("Acts", [])
        assert emitted == list(range(len(seen), len(seen) + len(new)))
        text, seen, values = text + (chunk.delta.content or ""), seen + new, values + emitted
        assert tokens[: len(seen)] == seen
    assert (text, seen, values) == (whole.message.content, tokens, list(range(TOKENS)))
    assert sum(len(each.logprobs.content) for each in chunks if each.logprobs) == TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_keeps_to_it(client: openai.OpenAI, banned: Any, spelled: Spelled, stream: bool) -> None:
    phrases, _ = banned
    fields: dict[str, Any] = {"n": 3, "temperature": 1.2, "seed": 5}
    letters = [chr(each) for each in range(ord("a"), ord("e"))]
    asked = {BAN: {"banned_phrases": [*phrases, *letters]}}
    alone = [chat(client, asked, **fields).choices for _ in range(2)]
    texts = [[each.message.content for each in choices] for choices in alone]
    assert texts[0] == texts[1]
    assert not any(letter in text.lower() for text in texts[0] for letter in letters)
    assert len(set(texts[0])) == 3
    if stream:
        told = ["", "", ""]
        for chunk in chat(client, asked, stream=True, **fields):
            told[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert told == texts[0]


def test_a_guided_answer_keeps_to_both(client: openai.OpenAI, spelled: Spelled) -> None:
    guided = {"guided_regex": "[a-z ]{12}"}

    def decode(bans: dict[int, list[int]]) -> list[int]:
        bound = {"BanAt": {"ban_at": bans}} if bans else None
        return list(chat(client, bound, body=guided).choices[0].token_ids)

    plain = b"".join(map(spelled, decode({}))).decode()
    phrases = [plain[1:3], plain[-2:], plain[6:8], plain[-1]]
    choice = chat(client, {BAN: {"banned_phrases": phrases}}, body=guided).choices[0]
    assert choice.token_ids == without(phrases, spelled, decode)
    assert (len(choice.message.content), choice.finish_reason) == (12, "stop")


def test_a_grammar_that_allows_nothing_else_is_an_error(client: openai.OpenAI) -> None:
    body = {"guided_choice": ["the fox"]}
    with pytest.raises(openai.BadRequestError, match="guided decoding and the ban of a rewind"):
        chat(client, {BAN: {"banned_phrases": ["FOX"]}}, body=body)


def test_stop_strings_see_the_tokens_that_stay(client: openai.OpenAI, banned: Any, spelled: Spelled) -> None:
    phrases, _ = banned
    whole = chat(client, {BAN: {"banned_phrases": phrases}}).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    for body in ({}, {"include_stop_str_in_output": True}):
        choice = chat(client, {BAN: {"banned_phrases": phrases}}, stop=stop, body=body).choices[0]
        end = whole.index(stop) + (len(stop) if body else 0)
        assert (choice.message.content, choice.finish_reason) == (whole[:end], "stop")


def test_a_trace_has_the_tokens_that_stay_and_what_was_taken_back(client: openai.OpenAI, banned: Any) -> None:
    phrases, tokens = banned
    choice = chat(client, {BAN: {"banned_phrases": phrases}}, body={"logits_processors_trace": True}).choices[0]
    assert [each["token_id"] for each in choice.logits_processors_trace] == tokens
    stages = [stage for each in choice.logits_processors_trace for stage in each["stages"] if "taken_back" in stage]
    assert {(stage["name"], stage["status"]) for stage in stages} == {(BAN, "took_back")}
    texts = [bytes(byte for token in stage["taken_back"] for byte in token["bytes"]).lower() for stage in stages]
    assert all(any(phrase.lower().encode() in text for phrase in phrases) for text in texts)


@pytest.mark.parametrize(
    ("phrases", "words"),
    [([""], "at least 1 character"), (["x" * 129], "at most 128"), (["x"] * 1001, "at most 1000"), ("x", "list")],
)
def test_wrong_phrases_are_refused(client: openai.OpenAI, phrases: Any, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        chat(client, {BAN: {"banned_phrases": phrases}})


def test_rewinds_are_counted(server: ServerProcess, client: openai.OpenAI, banned: Any) -> None:
    def counted() -> int:
        cards = httpx.get(f"{server.url}/v1/logits_processors").json()["data"]
        return int(next(card for card in cards if card["name"] == BAN)["counters"]["rewinds"])

    before = counted()
    chat(client, {BAN: {"banned_phrases": banned[0]}})
    assert counted() >= before + 3


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages"])
def test_other_apis_stream_what_they_answer(server: ServerProcess, banned: Any, path: str) -> None:
    asked: dict[str, Any] = {
        "temperature": 0,
        "ignore_eos": True,
        "logits_processors": {BAN: {"banned_phrases": ["a", "e"]}},
    }
    asked |= {"/v1/completions": {"prompt": "the dog"}, "/v1/responses": {"input": MESSAGES}}.get(
        path, {"messages": MESSAGES}
    )
    asked["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = TOKENS
    whole = httpx.post(f"{server.url}{path}", json=asked).json()
    if path == "/v1/completions":
        text = whole["choices"][0]["text"]
    else:
        text = (whole["output"][0] if path == "/v1/responses" else whole)["content"][0]["text"]
    told = ""
    with httpx.stream("POST", f"{server.url}{path}", json={**asked, "stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                told += new_text(json.loads(line.removeprefix("data: ")))
    assert told == text
    assert len(text) > 5
    assert not set("aeAE") & set(text)


def new_text(event: dict[str, Any]) -> str:
    if "choices" in event:
        return str(event["choices"][0]["text"])
    delta = event.get("delta", "")
    if isinstance(delta, str):
        return delta if event["type"] == "response.output_text.delta" else ""
    return str(delta.get("text", ""))


def test_offline_answers_are_the_same(authors_llm: LLM, client: openai.OpenAI, banned: Any) -> None:
    phrases, tokens = banned
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    both = {BAN: {"banned_phrases": phrases}, "Rewinds": {"forbids": [tokens[3:5]]}}
    asked = [SamplingParams(logits_processors=each, **params) for each in ({BAN: both[BAN]}, both, {})]
    found = [each.outputs for each in authors_llm.chat([MESSAGES] * 3, asked, use_tqdm=False)]
    assert found[0].token_ids == tokens
    assert found[1].token_ids == list(chat(client, both).choices[0].token_ids) != tokens
    assert found[2].token_ids == list(chat(client).choices[0].token_ids)
