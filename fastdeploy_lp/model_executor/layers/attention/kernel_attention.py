"""Attention by our own CUDA kernels where Paddle's operator is slow or has none. With Paddle not yet run on a GPU."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.layers.attention.block_arguments import BlockArguments
from fastdeploy_lp.model_executor.layers.attention.block_attention import BlockAttentionBackend, RestOfPass
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.ops.cuda.attention_kernels import (
    AttentionKernels,
    AttentionLayerData,
    AttentionPass,
    why_unsupported,
)
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape
from fastdeploy_lp.model_executor.ops.cuda.device import Device
from fastdeploy_lp.model_executor.ops.cuda.paddle_device import open_device
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.platforms import current_platform

logger = logging.getLogger(__name__)

OTHERWISE = "no attention kernels, Paddle's operator generates and plain products continue prompts"


@dataclass(frozen=True)
class KernelBatch:
    """A pass for the kernels, with the tensors at whose addresses its integers are."""

    addresses: AttentionPass
    held: tuple[Tensor, ...]


class KernelAttention:
    """The kernels on Paddle's tensors; `cos` and `sin` as `AttentionKernels` takes them."""

    def __init__(self, device: Device, heads: HeadShape, block_size: int, cos: Tensor, sin: Tensor) -> None:
        self.heads = heads
        self._tables = (cos, sin)
        element = current_platform().model_dtype
        self._kernels = AttentionKernels(device, heads, element, block_size, cos.data_ptr(), sin.data_ptr())

    def prepare(self, made: BlockArguments, arguments: dict[str, Tensor]) -> KernelBatch | None:
        """See `RestOfPass`."""
        if made.plan is None:
            return None
        layout = made.layout
        tables = arguments["block_tables"][layout.operator_seqs :]
        contexts, first_rows, tiles = (arguments[name] for name in ("contexts", "first_rows", "tiles"))
        addresses = AttentionPass(
            tables=tables.data_ptr(),
            contexts=contexts.data_ptr(),
            first_rows=first_rows.data_ptr(),
            tiles=tiles.data_ptr(),
            rows=layout.tokens - layout.operator_tokens,
            seqs=layout.seqs - layout.operator_seqs,
            width=layout.width,
            plan=made.plan,
        )
        return KernelBatch(addresses, (tables, contexts, first_rows, tiles))

    def __call__(self, qkv: Tensor, keys: Tensor, values: Tensor, batch: KernelBatch) -> Tensor:
        """See `RestOfPass`."""
        out = paddle.empty([qkv.shape[0], self.heads.heads * self.heads.head_dim], qkv.dtype)
        self._kernels(AttentionLayerData(*(each.data_ptr() for each in (qkv, keys, values, out))), batch.addresses)
        return out


class KernelAttentionBackend(BlockAttentionBackend):
    """Paddle's operator for new prompts, our kernels for all other tokens.

    Without the kernels it logs the reason and computes as `BlockAttentionBackend` does; then it raises ValueError for a
    context that Paddle's operator does not have.
    """

    def _rest_of_pass(self, rotary: RotaryTables) -> RestOfPass:
        heads = head_shape(self._dims)
        refusal = why_unsupported(heads, current_platform().model_dtype, self._block_size)
        if refusal is not None:
            logger.warning("%s: the model has %s", OTHERWISE, refusal)
        device = None if refusal else self._open_device(heads)
        if device is None:
            current_platform().require_operator_context(self._fd_config)
            return super()._rest_of_pass(rotary)
        cos, sin = self._rope_emb.reshape([2, -1, heads.head_dim]).unbind(0)
        return KernelAttention(device, heads, self._block_size, cos, sin)

    def _open_device(self, heads: HeadShape) -> Device | None:
        return open_device(KernelSources.attention((current_platform().model_dtype, heads.head_dim)), OTHERWISE)


def head_shape(dims: Dimensions) -> HeadShape:
    """Returns the sizes of a rank's heads."""
    return HeadShape(dims.num_heads, dims.num_kv_heads, dims.head_dim)
