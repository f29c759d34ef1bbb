"""Operators in C++ and CUDA, compiled on the machine that runs them; each has a Paddle path beside it."""

from fastdeploy_lp.model_executor.ops.library import compiled_ops

__all__ = ["compiled_ops"]
