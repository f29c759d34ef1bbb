"""The builtins that write, choose and mark words, on the real model: each does what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import MODEL, REQUEST_SECONDS, encode
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.cli.detect_watermark import main as detect_watermark

NAMES = [
    "ForcedSequence",
    "GenLength",
    "CiteFromPrompt",
    "MultipleChoice",
    "TriggerPhrase",
    "LowConfidenceFallback",
    "ForceLastPhrase",
    "MaxTime",
    "ThinkingBudget",
    "Watermark",
]
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def phrases() -> Iterator[ServerProcess]:
    """All of them in one chain."""
    specs = (f"{name}LogitsProcessor" for name in NAMES)
    # Which is faster, and gives the same tokens for what is asked here.
    with ServerProcess("--logits-processors", *specs, "--quantization", "w8a16") as running:
        yield running


def send(server: ServerProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    asked = {"temperature": 0, "max_tokens": 40, **body}
    return httpx.post(f"{server.url}/v1/{path}", json=asked, timeout=REQUEST_SECONDS)


def answer(server: ServerProcess, question: str = FRANCE, **fields: Any) -> tuple[str, str, int]:
    """Text, finish reason and number of tokens; `fields` that are no sampling parameters are processors' arguments."""
    own = {name: fields.pop(name) for name in ("max_tokens", "temperature", "seed", "ignore_eos") if name in fields}
    body = {"messages": [{"role": "user", "content": question}], "logits_processors_args": fields, **own}
    got = send(server, "chat/completions", body)
    assert got.status_code == 200, got.text
    (choice,) = got.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"], got.json()["usage"]["completion_tokens"]


def completion(server: ServerProcess, prompt: str, **args: Any) -> str:
    """The text that goes on behind the prompt."""
    got = send(server, "completions", {"prompt": prompt, "logits_processors_args": args})
    assert got.status_code == 200, got.text
    text: str = got.json()["choices"][0]["text"]
    return text


def test_an_answer_begins_with_the_forced_words(phrases: ServerProcess) -> None:
    text, _, _ = answer(phrases, forced_sequence="Bonjour! The answer, my friend,", max_tokens=16)
    assert text.startswith("Bonjour! The answer, my friend,")
    assert len(text) > len("Bonjour! The answer, my friend,")


def test_reasoning_ends_within_its_budget_with_the_stop_sentence(phrases: ServerProcess) -> None:
    prompt = "Question: how many legs have three spiders?\n<think>\n"
    assert "</think>" not in completion(phrases, prompt)
    text = completion(phrases, prompt, thinking_budget=16, think_stop_sentence=" I have thought enough.\n")
    thought, _, rest = text.partition("</think>")
    assert thought.endswith(" I have thought enough.\n")
    assert len(encode(thought)) == 16
    assert rest
    assert "</think>" not in rest


def test_reasoning_that_begins_in_the_output_is_ended_as_well(phrases: ServerProcess) -> None:
    text, _, _ = answer(phrases, forced_sequence="Well! (<think>.", thinking_budget=5)
    assert "</think>" in text
    # The marker's last token is one with the full stop.
    assert len(encode(text[: text.index("</think>")])) == len(encode("Well! (<think>.")) + 5


def test_answers_get_shorter_or_longer(phrases: ServerProcess) -> None:
    story = "Tell me a short story about a fox."
    _, reason, plain = answer(phrases, story)
    # Which is enough to end in the middle of a sentence.
    text, shorter_reason, shorter = answer(phrases, story, gen_length_boost=8.0)
    assert (shorter_reason, shorter < plain) == ("stop", True), reason
    assert text.rstrip()[-1] not in '.!?"'
    text, reason, _ = answer(phrases, story, gen_length_boost=8.0, gen_length_complete_sentences=True)
    assert reason == "stop"
    assert text.rstrip()[-1] in '.!?"'
    _, reason, plain = answer(phrases)
    _, _, longer = answer(phrases, gen_length_boost=-500.0, gen_length_power=1, max_tokens=20)
    assert reason == "stop"
    assert longer > plain


def test_the_prompts_words_are_cited_more_or_less(phrases: ServerProcess) -> None:
    prompt = "The quick brown fox jumps over the lazy dog near the old river bank. In other words:"

    def share(boost: float) -> float:
        tokens = encode(completion(phrases, prompt, cite_boost=boost))
        return sum(token in encode(prompt) for token in tokens) / len(tokens)

    assert share(-6.0) < share(0.0) < share(6.0)


def test_the_last_phrase_stands_where_the_answer_would_have_ended(phrases: ServerProcess) -> None:
    plain, reason, _ = answer(phrases)
    assert reason == "stop"
    text, _, _ = answer(phrases, last_phrase="\n\nSources, all of them:")
    assert text.startswith(f"{plain}\n\nSources, all of them:")
    # Nor can the end be drawn before.
    text, reason, _ = answer(phrases, last_phrase=" That is all.", temperature=1.5, seed=1, max_tokens=20)
    assert " That is all." in text or reason == "length"


@pytest.mark.parametrize("temperature", [0, 2.0])
def test_only_a_choice_is_answered(phrases: ServerProcess, temperature: float) -> None:
    choices = ["Berlin", "Paris", "Rome, in Italy", "Rome"]
    for seed in range(3):
        text, reason, _ = answer(phrases, choices=choices, temperature=temperature, seed=seed)
        assert (text.strip() in choices, reason) == (True, "stop")
        assert temperature or text == "Paris"


def test_first_words_speak_for_their_choices(phrases: ServerProcess) -> None:
    question = f"{FRANCE}\nA. Oslo\nB. Madrid\nC. Paris\nD. Lima\nAnswer with one letter."
    text, _, _ = answer(phrases, question, choices=["A", "B", "C", "D"], choice_first_word_boost=20.0)
    assert text in "ABCD"


def test_a_phrase_stands_in_place_of_or_behind_its_trigger(phrases: ServerProcess) -> None:
    plain, _, _ = answer(phrases)
    assert "Paris." in plain
    text, _, _ = answer(phrases, trigger_phrase=", believe me or not", trigger_on=".")
    assert text.startswith(plain.partition(".")[0] + ", believe me or not")
    text, _, _ = answer(phrases, trigger_phrase=", the republic,", trigger_on=" of France", trigger_after=True)
    assert text.startswith("The capital of France, the republic,")


def test_an_answer_ends_when_its_time_is_up(phrases: ServerProcess) -> None:
    plain = answer(phrases)
    assert answer(phrases, max_time=0.0) == ("", "stop", 1)
    assert answer(phrases, max_time=3600.0) == plain
    text, reason, _ = answer(phrases, "Tell me a story.", max_time=0, max_time_complete_sentences=True, max_tokens=80)
    assert reason == "stop"
    assert text == "" or text.rstrip()[-1] in '.!?"'


def test_an_unsure_model_falls_back_to_a_phrase(phrases: ServerProcess) -> None:
    plain, _, _ = answer(phrases)
    unsure = {"fallback_phrase": " I do not know that.", "fallback_tolerate": 3}
    text, _, _ = answer(phrases, **unsure, fallback_min_p=1.0)
    first, found, _ = text.partition(" I do not know that.")
    assert found
    assert plain.startswith(first)
    assert answer(phrases, **unsure, fallback_min_p=0.0)[0] == plain


def test_a_watermark_is_found_by_the_command_and_only_with_its_key(
    phrases: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"max_tokens": 60, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    question = "Write a long story about a sailor who finds an island."
    marked, _, tokens = answer(phrases, question, watermark_key=2023, **long)
    unmarked, _, _ = answer(phrases, question, **long)
    assert tokens == 60
    options = ["--model", MODEL, "--key"]
    (tmp_path / "marked").write_text(marked)
    assert detect_watermark(["-i", str(tmp_path / "marked"), *options, "2023"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert float(first.removeprefix("z ")) > 4
    assert last == "watermarked"
    assert detect_watermark(["-i", str(tmp_path / "marked"), *options, "2024"]) == 1
    monkeypatch.setattr(sys, "stdin", StringIO(unmarked))
    assert detect_watermark([*options, "2023"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "not watermarked"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logits_processors_args": {"last_phrase": ""}}, "logits_processors_args.last_phrase"),
        ({"vllm_xargs": {"choices": ["A", [99999999]]}}, "vllm_xargs.choices.1"),
        (
            {"logits_processors": [{"name": "TriggerPhraseLogitsProcessor", "params": {"trigger_phrase": [-1]}}]},
            "logits_processors.0.params.trigger_phrase",
        ),
        ({"logits_processors_args": {"think_stop_sentence": "x"}}, "logits_processors_args.thinking_budget"),
    ],
    ids=str,
)
def test_mistakes_are_named_by_their_path(phrases: ServerProcess, fields: dict[str, Any], param: str) -> None:
    got = send(phrases, "completions", {"prompt": "Hi", **fields})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param


def test_the_published_schema_takes_texts(phrases: ServerProcess) -> None:
    cards = {card["name"]: card for card in httpx.get(f"{phrases.url}/v1/logits_processors").json()["data"]}
    assert [f"{name}LogitsProcessor" for name in NAMES] == list(cards)
    told = cards["ForceLastPhraseLogitsProcessor"]["parameters"]["properties"]["last_phrase"]["anyOf"]
    assert {"type": "string"} in told
    assert all(card["description"] for card in cards.values())
