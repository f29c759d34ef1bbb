"""What `block_multihead_attention` computes, in numpy: the index arithmetic of its kernels in Paddle 3.3, step by step.

It reads what the kernels read and nothing else, writes where they write, and refuses what they refuse; what they leave
undefined is NaN. Only that the softmax adds 1e-6 to its sum is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

Floats = NDArray[np.float32]
INT32_ARGUMENTS = (
    "seq_lens_encoder",
    "seq_lens_decoder",
    "seq_lens_this_time",
    "padding_offsets",
    "cum_offsets",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_tables",
)


class KernelError(AssertionError):
    """The kernels would refuse this, or read what nobody has written."""


def require(condition: object, what: str) -> None:
    """Raise KernelError unless the condition holds."""
    if not condition:
        raise KernelError(what)


def block_multihead_attention(
    qkv: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
    seq_lens_this_time: Tensor,
    padding_offsets: Tensor,
    cum_offsets: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    block_tables: Tensor,
    *,
    max_enc_len_this_time: Tensor,
    max_dec_len_this_time: Tensor,
    rope_emb: Tensor,
    max_seq_len: int,
    block_size: int,
    use_neox_style: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator, of whose further arguments each has its default."""
    given = locals()
    for name in INT32_ARGUMENTS:
        require(given[name].dtype == paddle.int32, f"{name} is {given[name].dtype}")
    for name in ("max_enc_len_this_time", "max_dec_len_this_time"):
        require(given[name].place.is_cpu_place(), f"{name} is not in host memory")
    require(use_neox_style, "the other style takes no tables when it decodes")
    call = _Call(
        *(np.from_dlpack(x) for x in (qkv, key_cache, value_cache)),
        *(given[name].numpy() for name in INT32_ARGUMENTS),
        rope_emb.numpy(),
        max_seq_len,
        block_size,
    )
    out = call.run(int(max_enc_len_this_time.numpy()[0]), int(max_dec_len_this_time.numpy()[0]))
    return paddle.to_tensor(out), qkv, key_cache, value_cache


class _Call:
    def __init__(
        self,
        qkv: Floats,
        keys: Floats,
        values: Floats,
        encoder: Any,
        decoder: Any,
        this_time: Any,
        padding_offsets: Any,
        cum_offsets: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        tables: Any,
        rope: Floats,
        max_seq_len: int,
        block_size: int,
    ) -> None:
        head_dim = keys.shape[3]
        self.qkv = qkv.reshape(len(qkv), -1, head_dim)
        self.keys, self.values = keys, values
        self.kv_heads = keys.shape[1]
        self.heads = self.qkv.shape[1] - 2 * self.kv_heads
        self.seqs = len(cum_offsets)
        self.encoder, self.decoder, self.this_time = (x.reshape(-1) for x in (encoder, decoder, this_time))
        self.padding_offsets, self.cum_offsets = padding_offsets, cum_offsets
        self.cu_seqlens_q, self.cu_seqlens_k = cu_seqlens_q, cu_seqlens_k
        self.tables, self.max_seq_len, self.block_size = tables, max_seq_len, block_size
        require(rope.ndim == 5, "rope_emb has five dimensions")
        # In the half style a row of the tables has a number for each element of a head.
        self.cos, self.sin = rope.reshape(2, -1)[:, : rope.shape[2] * head_dim].reshape(2, -1, head_dim)
        require(keys.shape[2] == block_size, "the cache's blocks are of another size")
        require(qkv.shape[0] == len(padding_offsets), "an offset for every token")
        require(len(cu_seqlens_q) == len(cu_seqlens_k) == self.seqs + 1, "a boundary more than sequences")
        require(len(self.encoder) == len(self.decoder) == len(self.this_time) == len(tables) == self.seqs, "lengths")

    def run(self, max_encoder_len: int, max_decoder_len: int) -> Floats:
        out = np.full((len(self.qkv), self.heads * self.keys.shape[3]), np.nan, np.float32)
        if max_encoder_len > 0:
            self._encode(out, max_encoder_len)
        if max_decoder_len > 0:
            self._decode(out, max_decoder_len)
        return out

    def _encode(self, out: Floats, longest: int) -> None:
        places = [(t, *divmod(t + int(self.padding_offsets[t]), self.max_seq_len)) for t in range(len(self.qkv))]
        places = [(t, seq, position) for t, seq, position in places if self.encoder[seq]]
        for t, _, position in places:
            rotating = self.qkv[t, : self.heads + self.kv_heads]
            rotating[:] = self._rotated(rotating, position)
        for seq in np.flatnonzero(self.encoder):
            queries = slice(self.cu_seqlens_q[seq], self.cu_seqlens_q[seq + 1])
            keys = slice(self.cu_seqlens_k[seq], self.cu_seqlens_k[seq + 1])
            length = queries.stop - queries.start
            require(length <= longest, "a prompt is longer than max_enc_len_this_time")
            for row, t in enumerate(range(queries.start, queries.stop)):
                past = self.qkv[keys.start : keys.start + row + 1]
                k, v = past[:, self.heads : self.heads + self.kv_heads], past[:, self.heads + self.kv_heads :]
                out[t] = self._attended(self.qkv[t, : self.heads], k, v)
        for t, seq, position in places:
            self._store(t, seq, position)

    def _decode(self, out: Floats, longest: int) -> None:
        gathered = np.zeros((self.seqs, *self.qkv.shape[1:]), np.float32)
        tokens = np.arange(self.seqs) * self.max_seq_len - self.cum_offsets
        for seq, t in enumerate(tokens):
            if t < len(self.qkv):
                gathered[seq] = self.qkv[t]
        for seq, t in enumerate(tokens):
            position = int(self.decoder[seq])
            if position == 0:
                continue
            require(position <= longest, "a past is longer than max_dec_len_this_time")
            row = gathered[seq]
            rotating = self._rotated(row[: self.heads + self.kv_heads], position)
            block = self.tables[seq, position // self.block_size]
            self._write(block, position % self.block_size, rotating[self.heads :], row[self.heads + self.kv_heads :])
            blocks = self.tables[seq, : position // self.block_size + 1]
            context = [
                cache[blocks].transpose(0, 2, 1, 3).reshape(-1, self.kv_heads, cache.shape[3])[: position + 1]
                for cache in (self.keys, self.values)
            ]
            out[t] = self._attended(rotating[: self.heads], *context)

    def _rotated(self, x: Floats, position: int) -> Floats:
        half = x.shape[1] // 2
        left, right = x[:, :half], x[:, half:]
        cos, sin = self.cos[position, :half], self.sin[position, :half]
        require((self.cos[position, half:] == cos).all(), "both halves turn alike when it decodes")
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1)

    def _attended(self, queries: Floats, keys: Floats, values: Floats) -> Floats:
        head = np.arange(self.heads) // (self.heads // self.kv_heads)
        scores = np.einsum("hd,khd->hk", queries, keys[:, head]) / np.sqrt(queries.shape[1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        attended: Floats = np.einsum("hk,khd->hd", weights, values[:, head]).reshape(-1)
        return attended

    def _store(self, t: int, seq: int, position: int) -> None:
        block = self.tables[seq, position // self.block_size]
        new = self.qkv[t, self.heads :]
        self._write(block, position % self.block_size, new[: self.kv_heads], new[self.kv_heads :])

    def _write(self, block: int, offset: int, keys: Floats, values: Floats) -> None:
        require(block > 0, "the null block is written")
        self.keys[block, :, offset], self.values[block, :, offset] = keys, values
