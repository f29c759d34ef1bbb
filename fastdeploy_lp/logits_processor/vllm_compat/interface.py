"""The base classes under vLLM's names: their subclasses work on torch tensors."""

from __future__ import annotations

from fastdeploy_lp.logits_processor import vllm_v1


class LogitsProcessor(vllm_v1.LogitsProcessor):
    """The batch-level interface."""


class AdapterLogitsProcessor(vllm_v1.AdapterLogitsProcessor, LogitsProcessor):
    """The adapter for request-level callables."""
