"""Classes without a base and functions, recognized by the names of the parameters of a call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Optional, Union  # noqa: UP035 - as third parties write

import pytest
import torch
from support.declared import refusal
from support.server import server_environment
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
from fastdeploy_lp.logits_processor.dialects.parameters import request_parameters
from fastdeploy_lp.logits_processor.testing import ProcessorHarness, check_processor

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizer

VOCAB_SIZE = 1024


class InputScores:
    """Adds to a token by the length of prompt and output."""

    def __init__(self, token_id: int, *, value: float = 1.0) -> None:
        self._token, self._value = token_id, value

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:
        scores[:, self._token] += self._value * input_ids.shape[1]
        return scores


class PromptOutputRow(InputScores):
    """The same out of place."""

    def __call__(self, prompt_token_ids: List[int], past_token_ids: List[int], logits: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # noqa: UP006
        changed = logits.clone()
        changed[self._token] += self._value * (len(prompt_token_ids) + len(past_token_ids))
        prompt_token_ids.clear()
        return changed


class OutputRow(InputScores):
    def __call__(self, output_ids: List[int], logits: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # noqa: UP006
        logits[self._token] += self._value * (len(output_ids) + 3)
        return logits


def input_scores(input_ids: torch.Tensor, scores: torch.Tensor, token_id: int, *, value: float = 1.0) -> torch.Tensor:
    """A function; what follows the two is the request's."""
    scores[:, token_id] += value * input_ids.shape[1]
    return scores


def prompt_output_row(prompt_ids: Any, output_ids: Any, row: torch.Tensor, value: float, token_id: int) -> torch.Tensor:
    row[token_id] += value * (len(prompt_ids) + len(output_ids))
    return row


class Uncalled:
    def __init__(self, token_id: int) -> None: ...
    def process(self, input_ids: Any, scores: Any) -> Any: ...


class CalledWithPieces:
    def __call__(self, pieces: Any, scores: Any) -> Any: ...


class PluginWithoutDict:
    def __init__(self, tokenizer: Any, parameters: Any) -> None: ...
    def __call__(self, token_ids: Any, logits: Any) -> Any: ...


class WantsThree(InputScores):
    def __call__(self, input_ids: Any, scores: Any, step: int) -> Any: ...  # type: ignore[override]


class WantsModel(InputScores):
    def __init__(self, model, threshold): ...  # type: ignore[no-untyped-def]


class WantsCallables(InputScores):
    def __init__(self, allowed: Callable[[int], bool], config: GenerationConfig, size: int) -> None: ...


class EveryKind(InputScores):
    def __init__(
        self,
        plain,  # type: ignore[no-untyped-def]
        tokenizer: Union[PreTrainedTokenizer, str],  # noqa: UP007
        count: int,
        choices: List[str] = None,  # type: ignore[assignment]  # noqa: UP006, RUF013
        bias: Optional[dict[str, float]] = None,  # noqa: UP045
        hook: Callable[[], None] | None = None,
        size: int | torch.Tensor = 3,
        schema: str = "",
        eos_token_id: int | list[int] = 2,
    ) -> None: ...


def harness(spec: str) -> ProcessorHarness:
    return ProcessorHarness(f"{__name__}:{spec}")


@pytest.mark.parametrize("name", ["InputScores", "PromptOutputRow", "OutputRow", "input_scores", "prompt_output_row"])
def test_every_style_changes_its_own_row(name: str) -> None:
    slots = harness(name)
    plain = slots.random_row("a", 0)
    slots.enter("other")
    slots.enter("a", {"token_id": 7, "value": 10.0}, prompt=(1, 2, 3))
    for output in range(3):
        rows = slots.step()
        plain, untouched = slots.random_row("a", output), slots.random_row("other", output)
        assert rows["a"][7] == pytest.approx(plain[7] + 10.0 * (3 + output))
        assert rows["a"][:7].tolist() == plain[:7].tolist()
        assert rows["other"].tolist() == untouched.tolist()


def test_they_are_declared_under_their_own_names_with_what_they_take() -> None:
    declared = load_processors([f"{__name__}:{name}" for name in ("InputScores", "prompt_output_row")])
    assert [(each.name, each.dialect.name) for each in declared] == [
        ("InputScores", "callable"),
        ("prompt_output_row", "callable"),
    ]
    assert declared[0].description == "Adds to a token by the length of prompt and output."
    assert [each.argument_names for each in declared] == [{"token_id", "value"}] * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Uncalled", "(input_ids, scores) or (prompt_ids, output_ids, logits), by these names"),
        ("CalledWithPieces", "(input_ids, scores) or (prompt_ids, output_ids, logits), by these names"),
        ("PluginWithoutDict", "must be a subclass of LogitsProcessor"),
        ("WantsThree", "its __call__ also needs step"),
        ("WantsModel", "needs model, which no request can give"),
        ("WantsCallables", "needs allowed (Callable[[int], bool]) and config (GenerationConfig), which no request can"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(name: str, expected: str) -> None:
    assert expected in refusal(f"{__name__}:{name}")


def test_annotations_tell_what_a_request_may_give() -> None:
    parameters = request_parameters(EveryKind)
    assert parameters.missing == []
    assert parameters.model is not None
    schema = parameters.model.model_json_schema()
    assert schema["required"] == ["plain", "count"]
    # Neither the tokenizer, which the server supplies, nor a function.
    assert list(schema["properties"]) == ["plain", "count", "choices", "bias", "size", "schema", "eos_token_id"]
    given = {"plain": {"a": [1]}, "count": 1, "choices": None, "bias": {"x": 2}, "schema": "y", "eos_token_id": [2]}
    checked = parameters.model.model_validate(given).model_dump(by_alias=True, exclude_unset=True)
    assert checked == given


def test_the_tokenizer_is_never_a_requests_to_choose() -> None:
    tokenizer = tiny_fd_config().tokenizer
    parameters = request_parameters(EveryKind)
    facts = ModelFacts(VOCAB_SIZE, tokenizer)
    assert parameters.arguments({"count": 1}, facts) == {"count": 1, "tokenizer": tokenizer}
    with pytest.raises(ValueError, match="the server supplies it"):
        parameters.arguments({"tokenizer": "somebody/elses"}, facts)


def test_the_author_kit_checks_them(tmp_path: Path) -> None:
    report = check_processor(f"{__name__}:InputScores", [{"token_id": 5, "value": 3.0}], skip=["speed"])
    assert [str(each) for each in report.findings if each.outcome.name == "FAIL"] == []
    assert report.dialect == "callable"


READY = """
import sys
from fastdeploy_lp.logits_processor import load_processors

(declared,) = load_processors(["support.tried:Adds"])
before = "torch" in sys.modules
declared.dialect.ready_validation()
print(before, "torch" in sys.modules)
"""


def test_torch_is_imported_before_the_time_of_a_check_counts() -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, env=server_environment())
    assert done.stdout == "False True\n", done.stderr
