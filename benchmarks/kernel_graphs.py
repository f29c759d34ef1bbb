"""The kernels in CUDA graphs: memory, stream and recording by torch, as a framework that serves has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from attention_cases import as_stored, pass_of
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.attention_kernels import AttentionKernels, AttentionLayerData
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape, TilePlan
from fastdeploy_lp.model_executor.ops.cuda.cubins import cubin_for
from fastdeploy_lp.model_executor.ops.cuda.driver import Context, LoadedKernels
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

ELEMENT, BLOCK_SIZE, CONTEXT = "bfloat16", 64, 1_000
SHAPE = HeadShape(14, 2, 64)
REPLAYS = 20


class TorchArray:
    """Memory of torch's allocator."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.address: int = tensor.data_ptr()


class TorchDevice(LoadedKernels):
    """Kernels on torch's current stream."""

    def __init__(self, torch: Any, sources: KernelSources) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self._torch = torch
        context = Context.of_thread()
        cubin = cubin_for(context.architecture, sources)
        super().__init__(context, cubin, sources.kernels, lambda: int(torch.cuda.current_stream().cuda_stream))

    def upload(self, host: NDArray[Any]) -> TorchArray:
        """See `Device`."""
        return TorchArray(self._torch.from_numpy(np.ascontiguousarray(host)).cuda())

    def empty(self, size: int) -> TorchArray:
        """See `Device`."""
        return TorchArray(self._torch.empty(max(size, 1), dtype=self._torch.uint8, device="cuda"))


class Generation:
    """One layer's attention of sequences that generate, whose inputs change at fixed addresses."""

    def __init__(self, torch: Any, device: TorchDevice, seqs: int) -> None:
        blocks, random = -(-CONTEXT // BLOCK_SIZE), np.random.default_rng(seqs)
        self._random, self._seqs = random, seqs
        self._plan = TilePlan.of_generation(seqs, CONTEXT, SHAPE)
        cache = (seqs * blocks, SHAPE.kv_heads, BLOCK_SIZE, SHAPE.head_dim)
        qkv = (seqs, SHAPE.heads + 2 * SHAPE.kv_heads, SHAPE.head_dim)
        self._keys, self._values, self._qkv = (device.upload(self._numbers(*shape)) for shape in (cache, cache, qkv))
        self.out = device.empty(2 * seqs * SHAPE.heads * SHAPE.head_dim)
        self._angles = [
            device.upload(random.standard_normal((CONTEXT, SHAPE.head_dim)).astype(np.float32)) for _ in range(2)
        ]
        self._tables = device.upload(np.zeros((seqs, blocks), np.int32))
        self._contexts = device.upload(np.zeros(seqs, np.int32))
        self._others = [device.upload(each) for each in (np.arange(seqs + 1, dtype=np.int32), self._plan.tiles)]
        self._width, self._torch = blocks, torch
        cos, sin = (each.address for each in self._angles)
        self._kernels = AttentionKernels(device, SHAPE, ELEMENT, BLOCK_SIZE, cos, sin)

    def _numbers(self, *shape: int) -> NDArray[Any]:
        return as_stored(self._random.standard_normal(shape), ELEMENT).view(np.int16)

    def change(self) -> None:
        """Other tokens, contexts and blocks; about one sequence in four is absent."""
        contexts = self._random.integers(1, CONTEXT + 1, self._seqs) * (self._random.random(self._seqs) < 0.75)
        contexts[0] = self._random.integers(1, CONTEXT + 1)
        tables = self._random.permutation(self._seqs * self._width).reshape(self._seqs, self._width)
        qkv = self._numbers(*self._qkv.tensor.shape)
        given = ((self._contexts, contexts.astype(np.int32)), (self._tables, tables.astype(np.int32)), (self._qkv, qkv))
        for target, host in given:
            target.tensor.copy_(self._torch.from_numpy(host))

    def run(self) -> None:
        """Queues one pass."""
        integers = [self._tables, self._contexts, *self._others]
        self._kernels(
            AttentionLayerData(self._qkv.address, self._keys.address, self._values.address, self.out.address),
            pass_of([each.address for each in integers], self._seqs, self._seqs, self._width, self._plan),
        )

    def state(self) -> list[Any]:
        """Everything that a pass changes."""
        return [each.tensor.clone() for each in (self.out, self._keys, self._values, self._qkv)]

    def restore(self, state: list[Any]) -> None:
        """Undoes passes."""
        for each, before in zip((self.out, self._keys, self._values, self._qkv), state, strict=True):
            each.tensor.copy_(before)


def recorded_passes(torch: Any) -> list[bool]:
    """Records passes of several batches; returns for each replay whether it has the bits of the launches."""
    device, found = TorchDevice(torch, KernelSources.attention((ELEMENT, SHAPE.head_dim))), []
    for seqs in (1, 2, 8, 32):
        generation = Generation(torch, device, seqs)
        generation.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            generation.run()
        for _ in range(REPLAYS):
            generation.change()
            before = generation.state()
            generation.run()
            launched = generation.state()
            if torch.equal(launched[0], before[0]):
                raise RuntimeError("a pass has changed nothing, so a comparison says nothing")
            generation.restore(before)
            graph.replay()
            replayed = generation.state()
            found.append(all(torch.equal(*pair) for pair in zip(launched, replayed, strict=True)))
    return found
