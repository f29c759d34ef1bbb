"""A processor written for vLLM and torch, as a package of somebody else's would have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    import torch


class TorchBoost(AdapterLogitsProcessor):
    """Adds `boost` to the logit of `token_id`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        if not params.extra_args:
            return None
        token, boost = params.extra_args["token_id"], params.extra_args["boost"]

        def process(output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
            row[token] += boost
            return row

        return process
