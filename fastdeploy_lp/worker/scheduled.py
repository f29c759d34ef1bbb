"""The import path of `ScheduledChunk` for workers and model runners of plugins."""

from fastdeploy_lp.worker.sequence import ScheduledChunk

__all__ = ["ScheduledChunk"]
