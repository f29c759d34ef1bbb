"""Base of builtins that choose the token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import State
from fastdeploy_lp.logits_processor.stages import DRAW

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.request.sampling_params import SamplingParams


class DrawingProcessor(SlotProcessor[State]):
    """Chooses the tokens of its requests.

    argument: the one that a request uses it by. A request that passes it at temperature 0 is refused, since there is
    nothing to choose.
    """

    stage = DRAW
    keeps_rows_valid = True
    argument: ClassVar[str]

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Imported here: the API process reads Params from these modules and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.choices import choices

        self._choices = choices()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for temperature 0, if the request passes the argument."""
        given = (sampling_params.extra_args or {}).get(cls.argument)
        if given is not None and sampling_params.temperature == 0:
            raise ValueError(f"{cls.argument} needs a temperature above 0: at 0 there is no token to choose")

    def draw(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        """See `LogitsProcessor.draw`."""
        return self._choose(logits, np.ascontiguousarray(uniforms))

    def _choose(self, logits: Tensor, uniforms: NDArray[np.float32]) -> Tensor | NDArray[np.int64]:
        """Returns a token for each row, int64 [rows]; -1 for a row without a usable logit."""
        raise NotImplementedError

    def _edit(self, logits: Tensor) -> None:
        """Does nothing: a processor that draws edits no logits."""

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        """Prepares this step's draw."""
