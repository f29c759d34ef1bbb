"""Draft tokens through the API: same answers, counts in usage and metrics, predicted outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.chat import MODEL, metric
from support.forced import says
from support.server import ServerProcess

CONFIG = {"method": "auto", "adaptive": False, "num_speculative_tokens": 4}
FILE = "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4), 'square metres')\n"
LETTERS = "one two three four five six seven eight nine ten "
SCHEMA = {
    "type": "object",
    "properties": {"temperature_in_celsius": {"type": "integer"}, "name_of_the_city": {"enum": ["Paris", "London"]}},
    "required": ["temperature_in_celsius", "name_of_the_city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def drafting(light_checkpoint: Path) -> Iterator[ServerProcess]:
    options = ["--speculative-config", json.dumps(CONFIG), "--logits-processors", "support.forced:ForcesTokens"]
    with ServerProcess(*options, "--served-model-name", MODEL, model=str(light_checkpoint)) as server:
        yield server


@pytest.fixture
def client(drafting: ServerProcess) -> Iterator[openai.Client]:
    with openai.Client(base_url=f"{drafting.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answered(
    client: openai.Client, content: str, *, plain: bool = False, said: str | None = None, **fields: Any
) -> Any:
    """An answer, to this content or with this text; `plain` without draft tokens."""
    extra: dict[str, Any] = {**({"speculative": False} if plain else {}), **(says(said) if said is not None else {})}
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40, **fields}
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra, **asked)


def test_answers_are_the_same_and_drafts_are_counted(drafting: ServerProcess, client: openai.Client) -> None:
    fields = {"n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["zzz"], "said": LETTERS * 3}
    drafted, plain = (answered(client, LETTERS, plain=plain, **fields) for plain in (False, True))
    assert drafted.choices == plain.choices
    assert plain.usage.completion_tokens_details is None
    counts = drafted.usage.completion_tokens_details
    assert counts.accepted_prediction_tokens > 0
    assert counts.rejected_prediction_tokens >= 0
    *_, last = answered(client, LETTERS, stream=True, stream_options={"include_usage": True}, **fields)
    assert last.usage.completion_tokens == drafted.usage.completion_tokens
    assert last.usage.completion_tokens_details.accepted_prediction_tokens > 0
    names = ("drafts", "draft_tokens", "accepted_tokens")
    values = [
        sum(
            metric(drafting, f"spec_decode_num_{name}_total", method=kind)
            for kind in ("ngram_one", "ngram", "ngram_long")
        )
        for name in names
    ]
    assert 0 < values[0] <= values[1]
    assert counts.accepted_prediction_tokens <= values[2] <= values[1]
    assert metric(drafting, "spec_decode_num_accepted_tokens_per_pos_total", method="ngram_long", position="0") > 0


@pytest.mark.parametrize("parts", [False, True])
def test_a_predicted_output_is_a_source_of_drafts(client: openai.Client, parts: bool) -> None:
    content: Any = [{"type": "text", "text": FILE}] if parts else FILE
    plain, alone = (answered(client, "Go", plain=plain, said=FILE) for plain in (True, False))
    predicted = answered(client, "Go", said=FILE, prediction={"type": "content", "content": content})
    assert predicted.choices == plain.choices
    assert plain.choices[0].message.content == FILE
    without = alone.usage.completion_tokens_details
    accepted = predicted.usage.completion_tokens_details.accepted_prediction_tokens
    assert accepted > 10 + (without.accepted_prediction_tokens if without else 0)


def test_keys_that_a_schema_forces_and_marks_between_values_are_drafted(
    drafting: ServerProcess, client: openai.Client
) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    plain, first, second = (
        answered(client, "Paris", plain=plain, response_format=form, max_tokens=100) for plain in (True, False, False)
    )
    assert first.choices == second.choices == plain.choices
    accepted = [each.usage.completion_tokens_details.accepted_prediction_tokens for each in (first, second)]
    # The second answer knows how the first one was laid out.
    assert 0 < accepted[0] < accepted[1]
    assert metric(drafting, "spec_decode_num_accepted_tokens_total", method="grammar") > 0


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": "a " * 200_000}, "prediction"),
        ({"type": "text", "content": "a"}, "prediction.type"),
    ],
    ids=["type", "length", "kind"],
)
def test_a_prediction_that_is_none_is_refused(client: openai.Client, prediction: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        answered(client, "Tell me", prediction=prediction)
    assert caught.value.param == param
