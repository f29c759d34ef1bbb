"""Calls of torch processors on one request's row, in the known call styles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from fastdeploy_lp.logits_processor.actions import ACTIONS, RequestActions, takes_actions
from fastdeploy_lp.logits_processor.dialects.torch_bridge import token_row
from fastdeploy_lp.logits_processor.vllm_v1 import require_same_kind

TorchRow = Callable[[Sequence[int], Sequence[int], Any, RequestActions], Any]
"""(prompt ids, output ids, row [vocab_size], a torch tensor, the request's verbs) → row."""

DRY_PROMPT = 16
"""Prompt tokens of a dry call: enough for processors that read a few tokens back."""

_LOGITS = re.compile(r"(.*_)?(scores?|logits?|row)")
_OUTPUT = re.compile(r"(past|output|generated|previous)_.*")


class CallStyle(Enum):
    """Arguments of a call, recognized by the names of its required parameters."""

    INPUT_SCORES = "(input_ids, scores)"
    """transformers: prompt and output together [1, tokens], scores [1, vocab_size]."""
    OUTPUT_ROW = "(output_ids, logits)"
    """vLLM V0: a list, and the row [vocab_size]."""
    PROMPT_OUTPUT_ROW = "(prompt_ids, output_ids, logits)"
    """vLLM V0: two lists, and the row [vocab_size]."""

    @property
    def arguments(self) -> int:
        """Number of arguments."""
        return self.value.count(",") + 1


def call_style(names: Sequence[str]) -> CallStyle | None:
    """Returns the style of a callable whose first parameters have these names, None if it has no known style."""
    if len(names) > 1 and names[0] == "input_ids" and _LOGITS.fullmatch(names[1]):
        return CallStyle.INPUT_SCORES
    if len(names) > 2 and names[0].startswith("prompt") and _OUTPUT.fullmatch(names[1]) and _LOGITS.fullmatch(names[2]):
        return CallStyle.PROMPT_OUTPUT_ROW
    if len(names) > 1 and _OUTPUT.fullmatch(names[0]) and _LOGITS.fullmatch(names[1]):
        return CallStyle.OUTPUT_ROW
    return None


def positional_names(function: Callable[..., Any], skip: int = 0) -> list[str]:
    """Returns the names of the positional parameters after the first `skip`; empty without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional][skip:]


def on_row(style: CallStyle, call: Callable[..., Any]) -> TorchRow:
    """Returns `call` as a function of a request's tokens and its row; tokens are copies, which `call` may change.

    A `call` with a parameter `actions` gets the request's verbs by this name.
    """
    takes = takes_actions(call)

    def process(prompt_ids: Sequence[int], output_ids: Sequence[int], row: Any, actions: RequestActions) -> Any:
        verbs = {ACTIONS: actions} if takes else {}
        if style is CallStyle.OUTPUT_ROW:
            return require_same_kind(call(list(output_ids), row, **verbs), row)
        if style is CallStyle.PROMPT_OUTPUT_ROW:
            return require_same_kind(call(list(prompt_ids), list(output_ids), row, **verbs), row)
        scores = row.unsqueeze(0)
        input_ids = token_row([*prompt_ids, *output_ids], row)
        return require_same_kind(call(input_ids, scores, **verbs), scores).squeeze(0)

    return process


def dry_run(process: TorchRow, vocab_size: int) -> None:
    """Calls a new instance as in the first two steps of a request, on rows of zeros; its errors propagate."""
    import torch

    with one_thread(), torch.no_grad():
        for output_ids in ([], [0]):
            with RequestActions() as dropped:
                process([0] * DRY_PROMPT, output_ids, torch.zeros(vocab_size), dropped)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to the calling thread: a row is too short to share.

    On a machine whose cores are busy, waiting for other threads made top-k of 49,152 logits take 94 ms instead of 1.6
    ms.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
