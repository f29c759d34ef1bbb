"""Filters: builtins that remove tokens by the row's own distribution."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Deviations = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1000)]
# Much smaller values round to 0 in float32, which would keep nothing.
SMALLEST_SHARE = 1e-30
TypicalShare = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=SMALLEST_SHARE, le=1)]
Cutoff = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, lt=1)]
Probability = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Threshold = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1)]
# Separates these random numbers from the ones that sample tokens with the same seed.
SALT = np.uint64(0x5854435854435854)


class RowCutProcessor(SlotProcessor[float]):
    """Sets the tokens that a cut removes to -inf; a request's state is its number.

    argument: name of the number. cut: name of a `Cut`. off: number that removes nothing.
    """

    keeps_rows_valid = True
    steps_at_rest = sys.maxsize
    argument: ClassVar[str]
    cut: ClassVar[Literal["MIN_P", "EPSILON", "ETA", "TOP_N_SIGMA", "TYPICAL", "EXCLUDE_TOP"]]
    off: ClassVar[float | None] = None

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Imported here, since it imports Paddle.
        from fastdeploy_lp.model_executor.ops.row_ops import Cut

        self._cut = Cut[self.cut]
        self._values: NDArray[np.float32] = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> float | None:
        value = request.args.get(self.argument)
        return None if value is None or value == self.off else float(value)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - built per batch
        if changed:
            self._values = np.array(self._slots.states, np.float32)

    def _edit(self, logits: Tensor) -> None:
        self._edits.cut(logits, self._cut, self._slots.rows, self._values)


class MinPParams(BaseModel):
    """`min_p`: minimum probability of a token relative to the most likely one, 0 to 1; 0 keeps all."""

    model_config = ConfigDict(extra="forbid")

    min_p: Share | None = None


class MinPLogitsProcessor(RowCutProcessor):
    """`{"min_p": share}` removes tokens less likely than this share of the most likely one.

    Probabilities are taken before the temperature; the request field of this name takes them after it. From Nguyen et
    al., 2024, "Turning Up the Heat: Min-p Sampling" (arXiv:2407.01082).
    """

    Params = MinPParams
    argument, cut, off = "min_p", "MIN_P", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True


class TopNSigmaParams(BaseModel):
    """`top_n_sigma`: number of standard deviations, above 0 and at most 1000."""

    model_config = ConfigDict(extra="forbid")

    top_n_sigma: Deviations | None = None


class TopNSigmaLogitsProcessor(RowCutProcessor):
    """`{"top_n_sigma": n}` removes tokens with logits more than n standard deviations below the greatest one.

    The standard deviation is that of the row's finite logits; the kept tokens do not depend on the temperature. The
    usual value is 1. From Tang et al., 2024, "Top-nσ: Not All Logits Are You Need" (arXiv:2411.07641).
    """

    Params = TopNSigmaParams
    argument, cut, off = "top_n_sigma", "TOP_N_SIGMA", None

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True


class TypicalPParams(BaseModel):
    """`typical_p`: total probability that the kept tokens reach, 1e-30 to 1; 1 keeps all."""

    model_config = ConfigDict(extra="forbid")

    typical_p: TypicalShare | None = None


class TypicalPLogitsProcessor(RowCutProcessor):
    """`{"typical_p": p}` keeps the tokens whose surprise is nearest to the entropy, until their total reaches p.

    The surprise is -log(probability). Equally near tokens all stay. The most likely token can be removed. From Meister
    et al., 2022, "Locally Typical Sampling" (arXiv:2202.00666); probabilities are taken before the temperature.
    """

    Params = TypicalPParams
    argument, cut, off = "typical_p", "TYPICAL", 1.0


class EpsilonCutoffParams(BaseModel):
    """`epsilon_cutoff`: minimum probability of a token, at least 0 and below 1; 0 keeps all."""

    model_config = ConfigDict(extra="forbid")

    epsilon_cutoff: Cutoff | None = None


class EpsilonCutoffLogitsProcessor(RowCutProcessor):
    """`{"epsilon_cutoff": p}` removes tokens less likely than p; the most likely tokens stay.

    Usual values are 3e-4 to 9e-4. From Hewitt et al., 2022, "Truncation Sampling as Language Model Desmoothing"
    (arXiv:2210.15191); probabilities are taken before the temperature.
    """

    Params = EpsilonCutoffParams
    argument, cut, off = "epsilon_cutoff", "EPSILON", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True


class EtaCutoffParams(BaseModel):
    """`eta_cutoff`: epsilon, at least 0 and below 1; 0 keeps all tokens."""

    model_config = ConfigDict(extra="forbid")

    eta_cutoff: Cutoff | None = None


class EtaCutoffLogitsProcessor(RowCutProcessor):
    """`{"eta_cutoff": epsilon}` removes tokens less likely than min(epsilon, sqrt(epsilon) * exp(-entropy)).

    The most likely tokens stay. Usual values are 3e-4 to 4e-3. From Hewitt et al., 2022, "Truncation Sampling as
    Language Model Desmoothing" (arXiv:2210.15191); probabilities are taken before the temperature.
    """

    Params = EtaCutoffParams
    argument, cut, off = "eta_cutoff", "ETA", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True


class XTCParams(BaseModel):
    """`xtc_probability`: share of steps, 0 to 1. `xtc_threshold`: minimum probability of a top choice, above 0, to
    1."""

    model_config = ConfigDict(extra="forbid")

    xtc_probability: Probability
    xtc_threshold: Threshold = 0.1


@dataclass(frozen=True)
class _Choice:
    probability: float
    threshold: float


class XTCLogitsProcessor(SlotProcessor[_Choice]):
    """`{"xtc_probability": p, "xtc_threshold": t}` removes all tokens of probability t or more but the least likely.

    A step does this with probability p, and only if there are two such tokens or more; a threshold above 0.5 never
    finds two. The request's seed and the position determine the steps. "Exclude Top Choices" by p-e-w, 2024, as in
    text-generation-webui and llama.cpp; probabilities are taken before the temperature.
    """

    Params = XTCParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Imported here, since it imports Paddle.
        from fastdeploy_lp.model_executor.ops.row_ops import Cut

        self._exclude_top = Cut.EXCLUDE_TOP
        self._rows = np.empty(0, np.int64)
        self._probabilities = self._thresholds = self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Choice | None:
        if not request.args.get("xtc_probability"):
            return None
        params = XTCParams.model_construct(**{name: request.args[name] for name in NAMES if name in request.args})
        return _Choice(params.xtc_probability, params.xtc_threshold)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        if changed:
            self._probabilities = np.array([state.probability for state in self._slots.states], np.float32)
            self._thresholds = np.array([state.threshold for state in self._slots.states], np.float32)
        slots = self._slots.slots
        positions = share_inputs["prompt_lens"][slots, 0] + share_inputs["step_idx"][slots, 0]
        drawn = seeded_uniform(share_inputs["seed"][slots, 0] ^ SALT, positions.astype(np.uint64))
        happens = drawn <= self._probabilities
        self._rows, self._values = self._slots.rows[happens], self._thresholds[happens]

    def _edit(self, logits: Tensor) -> None:
        if self._rows.size:
            self._edits.cut(logits, self._exclude_top, self._rows, self._values)


NAMES = tuple(XTCParams.model_fields)
