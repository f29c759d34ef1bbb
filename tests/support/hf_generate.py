"""Greedy tokens of a model by Hugging Face's `generate`, with logits processors of any style."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LogitsProcessorList, PreTrainedTokenizerFast

Chain = Sequence[tuple[str, dict[str, Any]]]
"""SPECs with the arguments of a request for each."""


class RowWise(transformers.LogitsProcessor):
    """A callable `(prompt_ids, output_ids, row)` for `generate`, for one sequence."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._prompt: list[int] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        tokens = input_ids[0].tolist()
        if self._prompt is None:
            self._prompt = tokens
        return self._call(self._prompt, tokens[len(self._prompt) :], scores[0]).unsqueeze(0)


class Reference:
    """`generate` on the checkpoint of a Llama, which its own tokenizer belongs to."""

    def __init__(self, directory: Path) -> None:
        # The import takes seconds, in every process that collects the tests.
        from transformers import LlamaForCausalLM

        transformers.logging.set_verbosity_error()
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        self._model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None

    def tokens(self, prompt: Sequence[int], count: int, chain: Chain = ()) -> list[int]:
        """The `count` tokens that follow a prompt, greedily, behind new instances of the chain's classes."""
        made = LogitsProcessorList([self._instance(spec, args) for spec, args in chain])
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = self._model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=count,
                do_sample=False,
                logits_processor=made,
                pad_token_id=0,
            )
        finally:
            torch.set_num_threads(threads)
        tokens: list[int] = found[0, len(prompt) :].tolist()
        return tokens

    def _instance(self, spec: str, args: dict[str, Any]) -> Any:
        module, _, name = spec.partition(":")
        cls = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(cls).parameters
        known = {"tokenizer": self.tokenizer, "batch_size": 1, "device": "cpu"}
        known["vocab_size"] = self._model.config.vocab_size
        given = {name: value for name, value in known.items() if name in parameters}
        if "device" in given and cls.__name__.startswith("SynthID"):
            given["device"] = torch.device("cpu")
        instance = cls(**given, **args)
        return instance if len(inspect.signature(instance).parameters) == 2 else RowWise(instance)
