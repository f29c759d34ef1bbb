"""The import path of `SequenceChunk` for attention backends of plugins."""

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk

__all__ = ["SequenceChunk"]
