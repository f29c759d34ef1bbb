"""One processor in every dialect: it adds a value at a place that depends on the tokens it is shown.

`hash_bias` is [token, value]. A processor that sees wrong prompt or output tokens, or another request's, biases another
token than `reference` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_mrv2, vllm_v1
from fastdeploy_lp.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from paddle import Tensor

VOCAB_SIZE = 512


def place(token: int, ids: Sequence[int]) -> int:
    """Which token gets the value."""
    return (token + sum((index + 1) * each for index, each in enumerate(ids))) % VOCAB_SIZE


def reference(
    row: NDArray[np.float32], name: str, hash_bias: Sequence[Any], prompt: Sequence[int], output: Sequence[int]
) -> None:
    """What the processor of that name does, in place."""
    token, value = hash_bias
    seen = output if name in SEES_OUTPUT_ALONE else [*prompt, *output]
    row[place(token, seen)] += np.float32(value)


class Native(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None:
        self._edits: list[tuple[int, int, float]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._edits = []
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0])):
            bias = share_inputs["logits_processors_args"][slot].hash_bias
            if bias:
                count = share_inputs["prompt_lens"][slot, 0] + share_inputs["step_idx"][slot, 0]
                ids = share_inputs["token_ids_all_cpu"][slot, :count].tolist()
                assert ids == share_inputs["prompt_token_ids"][slot] + share_inputs["output_token_ids"][slot]
                self._edits.append((row, place(bias[0], ids), bias[1]))

    def apply(self, logits: Tensor) -> Tensor:
        for row, token, value in self._edits:
            logits[row, token] = logits[row, token] + value
        return logits


def bias_of(params: SamplingParams) -> Any:
    return (params.extra_args or {}).get("hash_bias")


class VllmState:
    """Follows BatchUpdates as vLLM's document says."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Any, list[int], list[int]]] = {}

    def update(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            self.rows.pop(row, None)
            if bias_of(params):
                self.rows[row] = (bias_of(params), prompt, output)
        for source, target, direction in batch_update.moved:
            moved, other = self.rows.pop(source, None), self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if direction is vllm_v1.MoveDirectionality.SWAP and other is not None:
                self.rows[source] = other

    def edits(self) -> list[tuple[int, int, float]]:
        return [(row, place(bias[0], [*prompt, *output]), bias[1]) for row, (bias, prompt, output) in self.rows.items()]


class Vllm(vllm_v1.LogitsProcessor):
    def __init__(self, vllm_config: vllm_v1.VllmConfig, device: Any, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.get_vocab_size() == VOCAB_SIZE
        self._state = VllmState()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        self._state.update(batch_update)

    def apply(self, logits: Tensor) -> Tensor:
        for row, token, value in self._state.edits():
            logits[row, token] = logits[row, token] + value
        return logits


class SlotStates:
    """Staged state by slot as vLLM's document says, on the host; `-1` is a slot whose request needs nothing."""

    def __init__(self, num_slots: int) -> None:
        self.token = np.full(num_slots, -1, np.int64)
        self.value = np.zeros(num_slots, np.float32)

    def add(self, slot: int, params: SamplingParams) -> bool:
        self.token[slot], self.value[slot] = bias_of(params) or (-1, 0.0)
        return bool(self.token[slot] >= 0)

    def rows(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Rows of the requests that need something."""
        return np.flatnonzero(self.token[slots] >= 0)


class Mrv2(vllm_mrv2.LogitsProcessor):
    """Reads the tokens on the device, from a tensor that it was given once."""

    def __init__(self, vllm_config: vllm_mrv2.VllmConfig, req_states: vllm_mrv2.LogitsProcRequestState) -> None:
        # An API process that loads this module does without Paddle.
        import paddle

        assert vllm_config.model_config.get_vocab_size() == req_states.vocab_size == VOCAB_SIZE
        self._states = SlotStates(req_states.max_num_reqs)
        self._ids = req_states.all_token_ids.gpu
        self._weights = paddle.arange(1, self._ids.shape[1] + 1)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return self._states.add(req_idx, sampling_params)

    def apply(self, logits: Tensor, ctx: vllm_mrv2.LogitsContext) -> Tensor:
        import paddle

        mine = self._states.rows(ctx.idx_mapping_np)
        if not mine.size:
            return logits
        rows, slots = paddle.to_tensor(mine), ctx.idx_mapping_np[mine]
        ids = paddle.gather(self._ids, ctx.expanded_idx_mapping[rows]).astype("int64")
        seen = (self._weights <= ctx.pos[rows].unsqueeze(1) + 1).astype("int64")
        hashed = (ids * self._weights * seen).sum(1) + paddle.to_tensor(self._states.token[slots])
        values = paddle.to_tensor(self._states.value[slots])
        return logits.index_put_((rows, hashed % VOCAB_SIZE), values, accumulate=True)


class RequestTwo(vllm_v1.AdapterLogitsProcessor):
    """Out of place."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[[list[int], Tensor], Tensor] | None:
        bias = bias_of(params)
        if not bias:
            return None

        def process(output_ids: list[int], row: Tensor) -> Tensor:
            changed = row.clone()
            where = place(bias[0], output_ids)
            changed[where] = changed[where] + bias[1]
            return changed

        return process


class RequestThree(vllm_v1.AdapterLogitsProcessor):
    """In place."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], list[int], Tensor], Tensor] | None:
        bias = bias_of(params)
        if not bias:
            return None

        def process(prompt_ids: list[int], output_ids: list[int], row: Tensor) -> Tensor:
            where = place(bias[0], [*prompt_ids, *output_ids])
            row[where] = row[where] + bias[1]
            return row

        return process


class PluginParameters(BaseModel):
    hash_bias: tuple[int, float]


class Plugin:
    def __init__(self, tokenizer: Any, parameters: PluginParameters) -> None:
        self._token, self._value = parameters.hash_bias

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        changed = logits.clone()
        changed[place(self._token, token_ids)] += self._value
        return changed


PLUGIN = {"logits_processor_class": Plugin, "parameters_model": PluginParameters}
SEES_OUTPUT_ALONE = ("RequestTwo", "Plugin")
