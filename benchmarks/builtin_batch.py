"""Slots and one builtin, whose cost in a step is measured beside the same work in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
import torch
from paddle import Tensor

from fastdeploy_lp import config
from fastdeploy_lp.logits_processor import Selection, load_processors
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.stats import ProcessorStats
from fastdeploy_lp.worker.sequence import Sequence as Running

PROMPT, MAX_MODEL_LEN = 512, 4096

Edit = Callable[[torch.Tensor], torch.Tensor]
"""Logits [rows, vocab_size] to what the other side makes of them, in place or not."""


class Batch:
    """A builtin as a chain holds it and real slots, whose requests all use it.

    sure: 20 tokens of a row are far more likely than the others, as a model has it; else none stands out.
    output: tokens that every request has generated. prompt_end: the last token of every prompt.
    """

    def __init__(
        self,
        rows: int,
        vocab_size: int,
        name: str,
        args: Mapping[str, Any],
        *,
        eos: tuple[int, ...],
        sure: bool = True,
        output: int = 128,
        prompt_end: int | None = None,
    ) -> None:
        self.rows, self.args, self._eos, self._random = rows, args, eos, np.random.default_rng(0)
        self._pristine = 2 * self._random.standard_normal((rows, vocab_size), np.float32)
        if sure:
            likely = self._random.integers(0, vocab_size, (rows, 20))
            peaks = self._random.uniform(12, 18, (rows, 20)).astype(np.float32)
            np.put_along_axis(self._pristine, likely, peaks, axis=1)
        self.logits = paddle.to_tensor(self._pristine)
        # Both sides work on the same memory: a tensor allocated by torch could be in smaller pages.
        self.torch_logits = torch.from_dlpack(self.logits)
        self.share_inputs = ShareInputs(rows, MAX_MODEL_LEN)
        declared = load_processors([name])[0]
        self._entry = ChainEntry(declared, _fd_config(rows, vocab_size, name, eos), ProcessorStats(declared.name))
        # Of few different tokens, as texts are; none of them ends the output.
        self.tokens = self._random.integers(10, 400, (rows, PROMPT + output))
        if prompt_end is not None:
            self.tokens[:, PROMPT - 1] = prompt_end
        self.running = [self._enter(slot) for slot in range(rows)]
        self._rest = 0
        self.share_inputs.set_active(np.arange(rows))

    @property
    def input_ids(self) -> torch.Tensor:
        """Prompt and output of every request, int64 [rows, tokens]."""
        return torch.from_numpy(self.tokens)

    def restore(self) -> None:
        """The logits as the model gave them."""
        np.copyto(np.from_dlpack(self.logits), self._pristine)

    def go_on(self) -> None:
        """Every request has generated one more token."""
        generated = self._random.integers(10, 400, self.rows)
        self.share_inputs.append_tokens(np.arange(self.rows), generated)
        for running, token in zip(self.running, generated.tolist(), strict=True):
            list.append(running.output_token_ids, token)

    def step(self) -> Tensor:
        """Runs the processor's work of one step, without the chain: torch's sides have none either.

        As a chain does while the rows stay, it leaves out the updates of a processor at rest.
        """
        processor, view = self._entry.processor, self._entry.view
        if self._rest > 0:
            self._rest -= 1
        else:
            view.bind(self.share_inputs, self.share_inputs["stop_flags"])
            processor.update_state(view)
            self._rest = processor.steps_at_rest
        return processor.apply(self.logits)

    def _enter(self, slot: int) -> Running:
        selection = Selection(flat=dict(self.args))
        tokens = self.tokens[slot].tolist()
        request = AddRequest(str(slot), tokens[:PROMPT], SettledParams(seed=slot), selection)
        running = Running.from_request(request, eos_token_ids=self._eos, max_model_len=MAX_MODEL_LEN)
        running.slot, running.output_token_ids = slot, tokens[PROMPT:]
        self.share_inputs.assign(running)
        self._entry.enter(slot, selection)
        return running


def _fd_config(rows: int, vocab_size: int, name: str, eos: tuple[int, ...]) -> config.FDConfig:
    return config.FDConfig(
        config.ModelConfig("none", "", "none", vocab_size, max_model_len=MAX_MODEL_LEN, eos_token_ids=eos),
        config.SchedulerConfig(rows),
        config.CacheConfig(block_size=16, num_blocks=1 + rows),
        config.ParallelConfig(),
        config.StructuredOutputsConfig((name,)),
    )
