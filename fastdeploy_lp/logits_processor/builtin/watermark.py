"""Watermarks a text, so that the key's holder can detect that a model wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.green_list import (
    DEFAULT_CONTEXT_WIDTH,
    DEFAULT_DELTA,
    DEFAULT_GAMMA,
    GreenList,
    token_hashes,
)
from fastdeploy_lp.logits_processor.builtin.keyed_hash import MAX_CONTEXT_WIDTH, MAX_KEY
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.platforms import to_device, writable_view, write_rows

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class WatermarkParams(BaseModel):
    """`watermark_key`: a secret number; only the key's holder can detect the mark.

    watermark_gamma: share of the vocabulary that is green. watermark_delta: bias added to green tokens' logits; more is
    easier to detect and changes the text more. watermark_context_width: number of preceding tokens that determine the
    green ones.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    watermark_key: Annotated[int, Field(ge=0, le=MAX_KEY)] | None
    watermark_gamma: Annotated[float, Field(ge=0.01, le=0.99)] = DEFAULT_GAMMA
    watermark_delta: Annotated[float, Field(ge=0, le=100)] = DEFAULT_DELTA
    watermark_context_width: Annotated[int, Field(ge=1, le=MAX_CONTEXT_WIDTH)] = DEFAULT_CONTEXT_WIDTH


class WatermarkLogitsProcessor(SlotProcessor["_Marking"]):
    """`{"watermark_key": n}` makes a share of the tokens, drawn anew after every token, more likely.

    `fastdeploy-lp detect-watermark` detects it. Kirchenbauer et al. 2023, A Watermark for Large Language Models; a hash
    selects green tokens instead of a permutation of the vocabulary.
    """

    Params = WatermarkParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._marked: list[tuple[int, _Marking, tuple[int, int]]] = []
        # Created for the first request that needs them.
        self._hashes: NDArray[np.uint32] | None = None
        self._tensor: Tensor | None = None

    def _build(self, request: SlotRequest) -> _Marking | None:
        key = request.args.get("watermark_key")
        return None if key is None else _Marking(request, key)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        self._marked = [(row, state, state.greens.mixers(state.context())) for row, state in self._slots]

    def _edit(self, logits: Tensor) -> None:
        if self._hashes is None:
            self._hashes = token_hashes(logits.shape[1])
        host = writable_view(logits)
        if host is None:
            self._mark_on_device(logits, self._hashes)
        else:
            self._mark(host, self._hashes)

    def _mark(self, host: NDArray[Any], hashes: NDArray[np.uint32]) -> None:
        # Row by row in the same buffers, which stay in the CPU cache.
        mixed, bias = np.empty_like(hashes), np.empty(len(hashes), host.dtype)
        for row, state, mixers in self._marked:
            np.multiply(state.greens.green(mixers, hashes, mixed), host.dtype.type(state.delta), out=bias)
            host[row] += bias

    def _mark_on_device(self, logits: Tensor, hashes: NDArray[np.uint32]) -> None:
        # Imported here: the API process reads Params from this module and does not need Paddle.
        import paddle

        rows = to_device(np.array([row for row, _, _ in self._marked], np.int64))
        numbers = [(*mixers, state.greens.bound) for _, state, mixers in self._marked]
        flip, factor, bound = to_device(np.array(numbers, np.int64)).unsqueeze(-1).unbind(1)
        mixed = paddle.bitwise_xor(self._hashes_on_device(hashes), flip) * factor
        green = paddle.bitwise_and(mixed, paddle.full_like(mixed, 0xFFFFFFFF)) < bound
        deltas = to_device(np.array([[state.delta] for _, state, _ in self._marked], np.float32))
        # In float32: Paddle's CPU operators cannot add bfloat16.
        bias = green.astype("float32") * deltas.astype(logits.dtype).astype("float32")
        marked = paddle.gather(logits, rows).astype("float32") + bias
        write_rows(logits, rows, marked.astype(logits.dtype))

    def _hashes_on_device(self, hashes: NDArray[np.uint32]) -> Tensor:
        if self._tensor is None:
            self._tensor = to_device(hashes.astype(np.int64)).unsqueeze(0)
        return self._tensor


class _Marking:
    """Watermark settings and context of one request."""

    def __init__(self, request: SlotRequest, key: int) -> None:
        args = request.args
        self._width: int = args.get("watermark_context_width", DEFAULT_CONTEXT_WIDTH)
        self.greens = GreenList(key, args.get("watermark_gamma", DEFAULT_GAMMA), self._width)
        self.delta: float = args.get("watermark_delta", DEFAULT_DELTA)
        self._prompt, self._output = request.prompt[-self._width :], request.output

    def context(self) -> list[int]:
        """Returns the last tokens of prompt and output."""
        recent = self._output[-self._width :]
        return recent if len(recent) == self._width else (self._prompt + recent)[-self._width :]
