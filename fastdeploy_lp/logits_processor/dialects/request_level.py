"""Request-level callables, run by vLLM's `AdapterLogitsProcessor`."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.dialects.vllm import VllmV1Dialect


class RequestLevelDialect(VllmV1Dialect):
    """Runs subclasses of `AdapterLogitsProcessor`: `new_req_logits_processor` makes one callable per request."""

    name = "request"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of the adapter."""
        return isinstance(found, type) and issubclass(found, vllm_v1.AdapterLogitsProcessor)
