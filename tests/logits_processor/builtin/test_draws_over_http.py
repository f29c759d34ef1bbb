"""Processors that draw, over HTTP and offline: the same tokens everywhere, and marks are found."""

from __future__ import annotations

import json
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import opened_stream, post
from support.server import ServerProcess

from benchmarks.draws import area, prompts
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.cli.detect_watermark import main
from fastdeploy_lp.logits_processor.builtin.keyed_scores import gumbel_score, synthid_score

KEY = 77
GUMBEL: dict[str, Any] = {"gumbel_key": KEY}
SYNTHID: dict[str, Any] = {"synthid_key": KEY}
MIROSTAT: dict[str, Any] = {"mirostat_tau": 3.0}
DRAWING = [f"{name}LogitsProcessor" for name in ("GumbelWatermark", "SynthIDWatermark", "Mirostat")]


# No merge of a tiny tokenizer has one of these: a text of them reads as the tokens that wrote it.
LETTERS = string.ascii_uppercase + string.digits


def body_of(args: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": fields.pop("question", "Tell me a story about a fox.")}]
    sampled = {"temperature": 2.0, "seed": 5, "max_tokens": 40, "return_token_ids": True}
    return {"messages": messages, **sampled, "logits_processors_args": args, **fields}


def ask(server: ServerProcess, args: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    answer = post(server, body_of(args, **fields))
    assert answer.status_code == httpx.codes.OK, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


EACH = (GUMBEL, SYNTHID, MIROSTAT, {"draws": True}, {"without": [42]})


@pytest.mark.parametrize("args", EACH, ids=lambda args: next(iter(args)))
def test_streams_choices_and_neighbours_make_no_difference(server: ServerProcess, args: dict[str, Any]) -> None:
    (whole,) = ask(server, args)
    with opened_stream(server, body_of(args)) as events:
        parts = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    assert [token for choices in parts for each in choices for token in each.get("token_ids") or ()] == whole[
        "token_ids"
    ]
    several = ask(server, args, n=3)
    # Each choice has its own seed; the first one has the request's.
    assert [each["token_ids"] == whole["token_ids"] for each in several] == [True, False, False]
    others = [{}, GUMBEL, SYNTHID | {"synthid_layers": 5}, MIROSTAT]
    with ThreadPoolExecutor(5) as together:
        again = together.submit(ask, server, args)
        list(together.map(lambda other: ask(server, other, seed=9, max_tokens=20), others))
    assert again.result()[0]["token_ids"] == whole["token_ids"]
    assert ask(server, args, seed=6)[0]["token_ids"] != whole["token_ids"]


def test_draws_keep_to_the_grammar_and_the_filters(server: ServerProcess) -> None:
    age = {"type": "integer", "maximum": 99}
    schema = {"type": "object", "properties": {"age": age}, "required": ["age"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    narrow = (GUMBEL | {"gumbel_context_width": 1}, SYNTHID | {"synthid_context_width": 1}, *EACH[2:])
    for args in narrow:
        (choice,) = ask(server, args, response_format=form)
        assert json.loads(choice["message"]["content"])["age"] <= 99
        (choice,) = ask(server, args, top_k=2, logprobs=True, top_logprobs=5, max_tokens=12)
        for place in choice["logprobs"]["content"]:
            likely = [each for each in place["top_logprobs"] if each["logprob"] > -9000]
            assert 1 <= len(likely) <= 2
            assert place["token"] in [each["token"] for each in likely]


def test_what_cannot_be_drawn_is_refused(server: ServerProcess) -> None:
    refused = [
        (body_of(GUMBEL | MIROSTAT), "MirostatLogitsProcessor cannot be used together: only one processor can draw"),
        (body_of(GUMBEL, temperature=0), "gumbel_key needs a temperature above 0"),
    ]
    named = {"GumbelWatermarkLogitsProcessor": GUMBEL, "SynthIDWatermarkLogitsProcessor": SYNTHID}
    body = body_of({}) | {"logits_processors": named}
    del body["logits_processors_args"]
    refused.append((body, "cannot be used together"))
    for sent, reason in refused:
        answer = post(server, sent)
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert reason in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "logits_processors.SynthIDWatermarkLogitsProcessor"
    answer = post(server, body_of({"draws": True, "chooses": 512}))
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    assert "Draws1 failed" in answer.json()["error"]["message"]


def test_the_stage_is_listed(server: ServerProcess) -> None:
    cards = httpx.get(f"{server.url}/v1/logits_processors").json()["data"]
    staged = {*DRAWING, "Leaves", "Draws1"}
    stages = {card["name"]: card["stage"] for card in cards if card["name"] in staged}
    assert stages == dict.fromkeys(staged, "draw") | {"Leaves": "filtered"}


def test_marks_are_found(
    server: ServerProcess, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reduced run of `benchmarks/draws.py`."""
    letters = [Tokenizer(checkpoint).encode_phrase(letter)[0] for letter in LETTERS]
    long = {"max_tokens": 90, "allowed_token_ids": letters}

    def written(args: dict[str, Any]) -> list[dict[str, Any]]:
        asked = enumerate(prompts(10))
        with ThreadPoolExecutor(10) as together:
            each = together.map(lambda one: ask(server, args, question=one[1], seed=one[0], **long)[0], asked)
            return list(each)

    plain = written({})
    for scheme, args, score in (("gumbel", GUMBEL, gumbel_score), ("synthid", SYNTHID, synthid_score)):
        marked = written(args)
        found, others = ([score(each["token_ids"], KEY).z for each in texts] for texts in (marked, plain))
        assert area(found, others) >= 0.99
        assert abs(np.mean(others)) < 1.2
        strongest = marked[int(np.argmax(found))]["message"]["content"]
        (tmp_path / scheme).write_text(strongest)
        options = ["-i", str(tmp_path / scheme), "--model", str(checkpoint), "--scheme", scheme, "--key"]
        assert main([*options, str(KEY)]) == 0
        assert "mean score" in capsys.readouterr().out
        assert main([*options, str(KEY + 1)]) == 1


def test_mirostat_holds_the_surprise(server: ServerProcess) -> None:
    def surprise(tau: float) -> float:
        # At this temperature the model's own surprise is 3.7 bits.
        told = {"temperature": 1.2, "logprobs": True, "top_logprobs": 0}
        (choice,) = ask(server, {"mirostat_tau": tau}, max_tokens=100, ignore_eos=True, **told)
        values = [-place["logprob"] / np.log(2) for place in choice["logprobs"]["content"][20:]]
        return float(np.mean(values))

    assert surprise(1.0) < surprise(3.0)
    assert abs(surprise(2.0) - 2.0) < 0.6


def test_offline_the_tokens_are_the_same(server: ServerProcess, checkpoint: Path) -> None:
    from fastdeploy_lp import LLM, SamplingParams

    with LLM(model=str(checkpoint), max_num_seqs=4, logits_processors=DRAWING) as llm:
        for args in (GUMBEL, SYNTHID, MIROSTAT):
            params = SamplingParams(temperature=2.0, seed=5, max_tokens=40, logits_processors_args=args)
            question = [{"role": "user", "content": "Tell me a story about a fox."}]
            outputs = llm.chat(question, params, use_tqdm=False)[0].outputs
            assert list(outputs.token_ids) == ask(server, args)[0]["token_ids"]
