"""Durations of the CUDA kernels, alone on the device, beside torch's operators if torch is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from kernel_cases import WIDE
from kernel_device import CLEARED_BYTES, REPEATS, DriverDevice
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.device import DeviceArray
from fastdeploy_lp.model_executor.ops.cuda.row_kernels import Logits, RowKernels
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws, Penalties

BATCHES = (1, 8, 256)
# Of normal logits: nearly flat, and with most of the probability on few tokens.
SCALES = {"flat": 1.0, "peaked": 5.0}
PENALIZED, BIASES, LISTED = 2_000, 2_048, 20


class Recorder:
    """A device that runs what it is given, and remembers the launches, so that they can be repeated alone."""

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        self._launches: list[tuple[tuple[Any, ...], int]] = []
        self._held: list[DeviceArray] = []

    def launch(self, *launch: Any, shared: int = 0) -> None:
        """See `Device`."""
        self._launches.append((launch, shared))
        self._device.launch(*launch, shared=shared)

    def upload(self, host: NDArray[Any]) -> DeviceArray:
        """See `Device`."""
        self._held.append(self._device.upload(host))
        return self._held[-1]

    def empty(self, size: int) -> DeviceArray:
        """See `Device`."""
        self._held.append(self._device.empty(size))
        return self._held[-1]

    def repeat(self) -> None:
        """Launches again."""
        for launch, shared in self._launches:
            self._device.launch(*launch, shared=shared)


@dataclass(frozen=True)
class Timed:
    """An operation on the kernels, and the same on a torch tensor, if torch has it."""

    name: str
    run: Callable[[RowKernels, Logits, DriverDevice], Any]
    in_torch: Callable[[Any, Any], Any] | None = None


def timed_operations(rows: int) -> Iterator[Timed]:
    """The operations of a step on so many rows."""
    random = np.random.default_rng(5)
    plain = Draws(
        temperature=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        top_k=np.zeros(rows, np.int64),
        top_p=np.ones(rows, np.float32),
        uniform=random.uniform(0.01, 1, rows).astype(np.float32),
    )
    draws = {
        "greedy": (replace(plain, temperature=np.zeros(rows, np.float32)), torch_greedy),
        "temperature": (plain, lambda torch, x: torch.multinomial(x.softmax(-1), 1)),
        "top-p 0.9": (replace(plain, top_p=np.full(rows, 0.9, np.float32)), torch_top_p),
        "top-k 50": (replace(plain, top_k=np.full(rows, 50, np.int64)), torch_top_k),
        "min-p 0.05": (replace(plain, min_p=np.full(rows, 0.05, np.float32)), torch_min_p),
    }
    for name, (given, in_torch) in draws.items():
        yield Timed(name, _draw(given), in_torch)
    yield Timed(f"logprobs, top {LISTED}", _logprobs, torch_logprobs)
    bits = random.integers(-(2**31), 2**31, (rows, WIDE // 32)).astype(np.int32)
    every = np.arange(rows)
    yield Timed(
        "mask",
        lambda kernels, logits, _: kernels.mask(logits, every, bits),
        lambda torch, x: x.masked_fill_(torch_mask(torch, x), -torch.inf),
    )
    tokens = [np.sort(random.choice(WIDE, PENALIZED, replace=False)).astype(np.int64) for _ in every]
    penalties = Penalties.of(
        every.tolist(), [(each, np.ones(PENALIZED, np.int64)) for each in tokens], [(1.1, 0.5, 0.1)] * rows
    )
    yield Timed(f"penalties, {PENALIZED} tokens a row", lambda kernels, logits, _: kernels.penalize(logits, penalties))
    places = np.sort(random.choice(rows * WIDE, BIASES, replace=False))
    biases = np.ones(BIASES, np.float32)
    yield Timed(
        f"bias, {BIASES} entries",
        lambda kernels, logits, _: kernels.add(logits, places // WIDE, places % WIDE, biases),
    )
    for cut in Cut:
        values = np.full(rows, 0.02 if cut is not Cut.TYPICAL else 0.9, np.float32)
        yield Timed(f"cut {cut.name.lower()}", _cut(cut, every, values))


def times(device: DriverDevice) -> Iterator[str]:
    """A line for each operation, batch and kind of logits."""
    torch = torch_with_cuda()
    for batch in BATCHES:
        for kind, scale in SCALES.items():
            host = np.random.default_rng(1).standard_normal((batch, WIDE), np.float32) * np.float32(scale)
            yield f"{batch} x {WIDE:,} logits, {kind}: milliseconds by our kernels, and by torch"
            for timed in timed_operations(batch):
                # A separate copy, since edits change it. The repetitions of a cut read a row that is cut already.
                memory = device.upload(host)
                logits, recorder = Logits(memory.address, batch, WIDE), Recorder(device)
                held = timed.run(RowKernels(recorder), logits, device)
                ours = device.milliseconds(recorder.repeat)
                del held
                theirs = ""
                if torch is not None and timed.in_torch is not None:
                    theirs = in_torch(torch, timed.in_torch, torch.from_numpy(host).cuda())
                yield f"  {timed.name:<32} {ours:8.3f} {theirs:>9}"


def in_torch(torch: Any, run: Callable[..., Any], *tensors: Any) -> str:
    """Returns the milliseconds of a function that takes torch and these tensors, measured as the kernels are."""
    run(torch, *tensors)
    times, cleared = [], torch.empty(CLEARED_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(REPEATS):
        cleared.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(torch, *tensors)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return f"{float(np.median(times)):9.3f}"


def torch_greedy(_torch: Any, logits: Any) -> Any:
    """The most likely tokens."""
    return logits.argmax(-1)


def torch_logprobs(_torch: Any, logits: Any) -> Any:
    """Log probabilities of the most likely tokens."""
    return logits.log_softmax(-1).topk(LISTED)


def torch_top_p(torch: Any, logits: Any) -> Any:
    """Sorts the row, as frameworks without a sampling kernel do."""
    shares, tokens = logits.softmax(-1).sort(dim=-1, descending=True)
    shares[shares.cumsum(-1) - shares > 0.9] = 0.0
    return tokens.gather(-1, torch.multinomial(shares, 1))


def torch_top_k(torch: Any, logits: Any) -> Any:
    """Draws among the 50 greatest logits."""
    values, tokens = logits.topk(50)
    return tokens.gather(-1, torch.multinomial(values.softmax(-1), 1))


def torch_min_p(torch: Any, logits: Any) -> Any:
    """Draws among the tokens at least as likely as 0.05 of the most likely one."""
    shares = logits.softmax(-1)
    return torch.multinomial(shares * (shares >= 0.05 * shares.amax(-1, keepdim=True)), 1)


def torch_mask(torch: Any, logits: Any) -> Any:
    """A mask of half of the tokens, a byte each."""
    return torch.arange(logits.numel(), device=logits.device).reshape(logits.shape) % 2 == 0


def _draw(draws: Draws) -> Callable[[RowKernels, Logits, DriverDevice], Any]:
    def run(kernels: RowKernels, logits: Logits, device: DriverDevice) -> Any:
        tokens = device.empty(8 * logits.rows)
        kernels.draw(logits, draws, tokens.address)
        return tokens

    return run


def _logprobs(kernels: RowKernels, logits: Logits, device: DriverDevice) -> Any:
    chosen = device.upload(np.zeros(logits.rows, np.int64))
    sizes = (4 * (LISTED + 1), 8 * (LISTED + 1), 8)
    held = [device.empty(logits.rows * size) for size in sizes]
    values, tokens, ranks = (each.address for each in held)
    kernels.logprobs(logits, chosen.address, LISTED, normalize=True, values=values, tokens=tokens, ranks=ranks)
    return chosen, held


def _cut(cut: Cut, rows: Any, values: Any) -> Callable[[RowKernels, Logits, DriverDevice], Any]:
    return lambda kernels, logits, _: kernels.cut(logits, cut, rows, values)


def torch_with_cuda() -> Any:
    """Returns the module, or None without it or a GPU that it can use."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None
