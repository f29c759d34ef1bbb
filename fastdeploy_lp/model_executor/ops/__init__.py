"""Operators in C++ for the CPU, compiled on the machine that runs them; each has a Paddle path beside it."""

from fastdeploy_lp.model_executor.ops.decoder import CompiledDecoder
from fastdeploy_lp.model_executor.ops.library import compiled_ops

__all__ = ["CompiledDecoder", "compiled_ops"]
