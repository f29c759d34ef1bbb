from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.chat import encode

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness
from fastdeploy_lp.platforms import host_memory
from fastdeploy_lp.request.sampling_params import SamplingParams

NAME = "ClassProbabilitiesLogitsProcessor"
LABELS = [{"text": "yes", "tokens": [[5, 6], [7]]}, {"text": "no", "tokens": [8]}]


def classified(row: Any, labels: Any = LABELS) -> Any:
    harness = ProcessorHarness(NAME)
    harness.enter("beside", None)
    harness.enter("r", {"class_labels": labels})
    harness.step({"r": row})
    assert "beside" not in harness.actions
    return harness.actions.get("r")


def row_of(**logits: float) -> Any:
    row = np.full(1024, -np.inf, np.float32)
    for token, logit in logits.items():
        row[int(token[1:])] = logit
    return row


def test_a_label_has_the_probability_of_all_its_first_tokens() -> None:
    acts = classified(row_of(t5=0.0, t7=1.0, t8=1.2, t1=2.0))
    weights = np.exp([0.0, 1.0, 1.2, 2.0])
    ((name, value),) = acts.values
    found = json.loads(value)
    assert (name, found["label"], acts.finish) == (NAME, "yes", {"processor": NAME, "reason": "classified"})
    expected = {"yes": weights[:2].sum() / weights.sum(), "no": weights[2] / weights.sum()}
    assert found["probabilities"] == pytest.approx(expected, rel=1e-6)


def test_logits_that_the_host_cannot_reach_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(t5=0.0, t8=1.2, t1=2.0)
    expected = classified(row).values
    monkeypatch.setattr(host_memory, "in_host_memory", lambda _: False)
    assert classified(row).values == expected


def test_without_a_possible_label_there_is_none() -> None:
    (value,) = [json.loads(value) for _, value in classified(row_of(t1=2.0)).values]
    assert value == {"label": None, "probabilities": {"yes": 0.0, "no": 0.0}}


def test_a_row_that_cannot_be_sampled_from_is_left_to_the_guard() -> None:
    assert classified(row_of()) is None
    assert classified(row_of(t5=float("nan"))) is None


def test_the_first_of_equal_labels_counts() -> None:
    (value,) = [json.loads(value) for _, value in classified(row_of(t7=1.0, t8=1.0)).values]
    assert value["label"] == "yes"


@pytest.mark.parametrize(
    ("labels", "path", "words"),
    [
        ([], "class_labels", "at least 1"),
        (["A", ""], "class_labels.1.text", "at least 1 character"),
        (["A", "x" * 65], "class_labels.1.text", "at most 64"),
        (["A", 5], "class_labels.1", "dictionary"),
        (["The", "The end"], "class_labels", "'The' and 'The end' begin with the same token"),
        (["A", "A"], "class_labels", "'A' and 'A' begin with the same token"),
        ([{"text": "A", "tokens": [49152]}], "class_labels.0.tokens", "no token id"),
    ],
    ids=str,
)
def test_mistakes_are_named_by_their_path(labels: Any, path: str, words: str) -> None:
    checks = RequestArgsValidator(load_processors([NAME]), 49152, encode)
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(logits_processors_args={"class_labels": labels}))
    assert caught.value.path == f"logits_processors_args.{path}"
    assert words in caught.value.reason
