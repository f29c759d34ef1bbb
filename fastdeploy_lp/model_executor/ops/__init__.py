"""Operators in C++ and CUDA, compiled on the machine that runs them; each has a Paddle path beside it."""

from typing import TYPE_CHECKING, Any

from fastdeploy_lp.model_executor.ops.library import compiled_ops

if TYPE_CHECKING:
    from fastdeploy_lp.model_executor.ops.decoder import CompiledDecoder

__all__ = ["CompiledDecoder", "compiled_ops"]


def __getattr__(name: str) -> Any:
    # Looking for a library does not load Paddle.
    if name == "CompiledDecoder":
        from fastdeploy_lp.model_executor.ops.decoder import CompiledDecoder

        return CompiledDecoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
