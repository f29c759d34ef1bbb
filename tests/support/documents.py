"""The processors of the documents on vLLM's logits processors, with new imports and Paddle instead of torch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastdeploy_lp import SamplingParams
from fastdeploy_lp.logits_processor.vllm_v1 import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    RequestLogitsProcessor,
    VllmConfig,
)

# An API process and those that check requests import the classes as well, and need no Paddle for it.
if TYPE_CHECKING:
    import paddle

logger = logging.getLogger(__name__)


class DummyLogitsProcessor(LogitsProcessor):
    """Fake logit processor to support unit testing and examples"""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        target_token = (sampling_params.extra_args or {}).get("target_token")
        if target_token is not None and not isinstance(target_token, int):
            raise ValueError(f"target_token value {target_token} is not int")

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        self.req_info: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        """Never impacts greedy sampling"""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if not batch_update:
            return

        # Process added requests.
        for index, params, _, _ in batch_update.added:
            assert params is not None
            if params.extra_args and (target_token := params.extra_args.get("target_token")):
                self.req_info[index] = target_token
            else:
                self.req_info.pop(index, None)

        if self.req_info:
            # Process removed requests.
            for index in batch_update.removed:
                self.req_info.pop(index, None)

            # Process moved requests, unidirectional move (a->b) and swap
            # (a<->b)
            for adx, bdx, direct in batch_update.moved:
                a_val = self.req_info.pop(adx, None)
                b_val = self.req_info.pop(bdx, None)
                if a_val is not None:
                    self.req_info[bdx] = a_val
                if direct == MoveDirectionality.SWAP and b_val is not None:
                    self.req_info[adx] = b_val

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        import paddle

        if not self.req_info:
            return logits

        # Save target values before modification
        cols = paddle.to_tensor(list(self.req_info.values()), dtype="int64")
        rows = paddle.to_tensor(list(self.req_info.keys()), dtype="int64")
        values_to_keep = logits[rows, cols].clone()

        # Mask all but target tokens
        logits[rows] = float("-inf")
        logits[rows, cols] = values_to_keep

        return logits


class DummyPerReqLogitsProcessor:
    """The request-level logits processor masks out all logits except the
    token id identified by `target_token`"""

    def __init__(self, target_token: int) -> None:
        """Specify `target_token`"""
        self.target_token = target_token

    def __call__(self, output_ids: list[int], logits: paddle.Tensor) -> paddle.Tensor:
        val_to_keep = logits[self.target_token].item()
        logits[:] = float("-inf")
        logits[self.target_token] = val_to_keep
        return logits


class WrappedPerReqLogitsProcessor(AdapterLogitsProcessor):
    """Example of wrapping a fake request-level logit processor to create a
    batch-level logits processor"""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        target_token: Any | None = params.extra_args and params.extra_args.get("target_token")
        if target_token is None:
            return None
        if not isinstance(target_token, int):
            logger.warning("target_token value %s is not int; not applying logits processor to request.", target_token)
            return None
        return DummyPerReqLogitsProcessor(target_token)


class ThresholdLogitsProcessor(LogitsProcessor):
    """The plugin guide's per-request state, put to use: drops tokens whose probability is below `my_threshold` times
    that of the most likely one."""

    def __init__(self, vllm_config: VllmConfig, device: Any, is_pin_memory: bool) -> None:
        self.req_state: dict[int, dict[str, float]] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if not batch_update:
            return

        # Removed and moved requests come in the order that the interface demands; the guide leaves the moves out.
        for index in batch_update.removed:
            self.req_state.pop(index, None)

        # Track per-request state
        for index, params, _, _ in batch_update.added:
            # params.extra_args contains custom per-request parameters
            threshold = params.extra_args.get("my_threshold", 0.5) if params.extra_args else 0.5
            self.req_state[index] = {"threshold": threshold}

        for source, target, direction in batch_update.moved:
            moved, other = self.req_state.pop(source, None), self.req_state.pop(target, None)
            if moved is not None:
                self.req_state[target] = moved
            if direction is MoveDirectionality.SWAP and other is not None:
                self.req_state[source] = other

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        import paddle
        import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling

        for row, state in self.req_state.items():
            probabilities = F.softmax(logits[row])
            kept = probabilities >= state["threshold"] * probabilities.max()
            logits[row] = paddle.where(kept, logits[row], paddle.full_like(logits[row], float("-inf")))
        return logits
