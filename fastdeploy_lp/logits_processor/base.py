"""The native contract of a logits processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.sampling_params import SamplingParams


class LogitsProcessor(ABC):
    """Changes the logits of the whole batch between the model and the sampler.

    One instance serves all requests of a worker. In every step that samples, the chain calls `update_state` once and
    then `apply` once. `update_state` always runs before the first `apply`. When another processor of the chain fails,
    `apply` runs once more in the same step, on the same logits.
    """

    Params: ClassVar[type[BaseModel] | None] = None
    """A pydantic model of the arguments a request may pass. Requests are checked against it when they arrive; with
    None, arguments whose names the class's code mentions reach it unchecked."""

    accepts_any_args: ClassVar[bool] = False
    """Whether a processor without `Params` reads arguments whose names its code does not mention. Otherwise a request
    that passes an argument nobody knows is refused."""

    only_with_args: ClassVar[bool] = False
    """Whether the processor leaves a request alone that passes none of its `Params`. The chain then does not call it at
    all in a step without such requests, and shows it the rows of those that do alone: it cannot change other rows."""

    keeps_rows_valid: ClassVar[bool] = False
    """Whether a row that has a finite logit, and no NaN, always still does so afterwards. The guard checks the rows
    that other processors worked on."""

    @abstractmethod
    def __init__(self, fd_config: FDConfig) -> None:
        """Set up state from the server's configuration."""

    @abstractmethod
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Read what this step needs from the slot arrays; row r of the logits is the r-th slot whose stop flag is
        False.

        Every output token is seen exactly once. `share_inputs` is read-only: a write raises, or changes a copy.
        """

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Return the changed logits [rows, vocab_size]; changing them in place is cheapest."""

    def is_argmax_invariant(self) -> bool:
        """Whether no row's most likely token can ever change; such a processor is skipped when all rows are greedy."""
        return False

    @classmethod  # noqa: B027 - most refuse nothing
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for a request that this processor cannot serve; runs in a process of its own.

        `sampling_params.extra_args` holds the arguments that this processor will see, None if there are none.
        """
