"""Watermarks at the draw: the key chooses among the likely tokens, and on average over keys nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.drawing import DrawingProcessor
from fastdeploy_lp.logits_processor.builtin.keyed_hash import MAX_CONTEXT_WIDTH, MAX_KEY, context_mixers
from fastdeploy_lp.logits_processor.builtin.keyed_scores import DEFAULT_LAYERS, DEFAULT_WIDTH, MAX_LAYERS
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.choices import KeyedRows

Key = Annotated[int, Field(ge=0, le=MAX_KEY)]
Width = Annotated[int, Field(ge=1, le=MAX_CONTEXT_WIDTH)]

PLAIN = (0, 0)
"""Mixers of a row that is drawn without the key."""


class _Contexts:
    """The contexts of one request's tokens: each marks a token once.

    A context is the last `width` output tokens. Repeated ones are drawn without the key, which would repeat its choice;
    so are the first `width` tokens, which therefore depend on the seed.
    """

    def __init__(self, key: int, width: int, layers: int, output: list[int]) -> None:
        self.layers = layers
        self._key, self._width, self._output = key, width, output
        self._seen: set[tuple[int, ...]] = set()
        self._next = width

    def mixers(self) -> tuple[int, int]:
        """Returns the numbers that determine the next token's words, `PLAIN` for a token without the key."""
        output, width = self._output, self._width
        for end in range(self._next, len(output)):
            self._seen.add(tuple(output[end - width : end]))
        self._next = max(len(output), width)
        context = tuple(output[-width:])
        return PLAIN if len(output) < width or context in self._seen else context_mixers(self._key, context)


class KeyedDrawProcessor(DrawingProcessor[_Contexts]):
    """Draws by pseudo-random words of a key and the last tokens.

    prefix: of the names of its arguments.
    """

    prefix: ClassVar[str]

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._keyed: KeyedRows | None = None

    def _build(self, request: SlotRequest) -> _Contexts | None:
        key = request.args.get(self.argument)
        if key is None:
            return None
        width = request.args.get(f"{self.prefix}_context_width", DEFAULT_WIDTH)
        return _Contexts(key, width, self._layers_of(request.args), request.output)

    def _layers_of(self, args: Mapping[str, Any]) -> int:
        """Returns the number of rounds of the tournament, 0 for the exponential minimum."""
        raise NotImplementedError

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        if changed or self._keyed is None:
            self._keyed = self._plain_rows(int(np.count_nonzero(~share_inputs["stop_flags"])))
        for row, state in self._slots:
            self._keyed.flips[row], self._keyed.factors[row] = state.mixers()

    def _plain_rows(self, count: int) -> KeyedRows:
        """Returns rows that are drawn without the key, with the rounds of the requests in them."""
        from fastdeploy_lp.model_executor.ops.choices import KeyedRows

        layers = np.zeros(count, np.int64)
        for row, state in self._slots:
            layers[row] = state.layers
        return KeyedRows(np.zeros(count, np.uint32), np.zeros(count, np.uint32), layers)

    def _choose(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        if self._keyed is None:
            raise RuntimeError("draw: update_state has not run")
        return self._choices.keyed(logits, self._keyed, uniforms)


class GumbelWatermarkParams(BaseModel):
    """`gumbel_key`: a secret number; only its holder can detect the mark.

    gumbel_context_width: number of preceding output tokens that, with the key, determine the choice. More of them
    change the text less; fewer survive more edits.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    gumbel_key: Key | None
    gumbel_context_width: Width = DEFAULT_WIDTH


class GumbelWatermarkLogitsProcessor(KeyedDrawProcessor):
    """`{"gumbel_key": n}` lets the key, in place of chance, choose each token; the probabilities stay as they are.

    `fastdeploy-lp detect-watermark --scheme gumbel` detects it. Aaronson 2022, Watermarking of Large Language Models;
    Kuditipudi et al. 2023, Robust Distortion-free Watermarks for Language Models (exponential minimum sampling).
    """

    Params = GumbelWatermarkParams
    argument = "gumbel_key"
    prefix = "gumbel"

    def _layers_of(self, args: Mapping[str, Any]) -> int:  # noqa: ARG002 - no tournament
        return 0


class SynthIDWatermarkParams(BaseModel):
    """`synthid_key`: a secret number; only its holder can detect the mark.

    synthid_context_width: number of preceding output tokens that, with the key, determine the tournament.
    synthid_layers: rounds of the tournament; more are easier to detect.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    synthid_key: Key | None
    synthid_context_width: Width = DEFAULT_WIDTH
    synthid_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)] = DEFAULT_LAYERS


class SynthIDWatermarkLogitsProcessor(KeyedDrawProcessor):
    """`{"synthid_key": n}` draws each token by a tournament of likely tokens, which the key decides.

    `fastdeploy-lp detect-watermark --scheme synthid` detects it. Dathathri et al. 2024, Scalable watermarking for
    identifying large language model outputs, Nature 634: two-way tournaments without distortion, computed as a
    reweighting of the distribution in each round, with masking of repeated contexts.
    """

    Params = SynthIDWatermarkParams
    argument = "synthid_key"
    prefix = "synthid"

    def _layers_of(self, args: Mapping[str, Any]) -> int:
        layers: int = args.get("synthid_layers", DEFAULT_LAYERS)
        return layers
