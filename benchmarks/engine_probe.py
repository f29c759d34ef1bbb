"""Times the parts of a step in the place where they run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paddle

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat
from fastdeploy_lp.worker.guided_decoding import GuidedDecoding
from fastdeploy_lp.worker.sampler import Sampler

TIMED: tuple[tuple[type, str, str], ...] = (
    (DecoderForCausalLM, "forward", "forward"),
    (DecoderForCausalLM, "compute_logits", "logits"),
    (LogitsProcessorChain, "update_state", "chain"),
    (LogitsProcessorChain, "apply", "chain"),
    (LogitsProcessorChain, "needs_guard", "chain"),
    (Sampler, "__call__", "sampler"),
    (GuidedDecoding, "begin", "mask"),
    (GuidedDecoding, "apply", "mask"),
    (GuidedDecoding, "accept", "mask"),
)
READS = ("numpy", "item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__array__")


class StepProbe:
    """Seconds of each part since `clear`, and the last pass, which `repeat_pass` computes again."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.chunks: Sequence[SequenceChunk] = ()
        self._model: DecoderForCausalLM | None = None

    @contextmanager
    def installed(self) -> Iterator[StepProbe]:
        """Every engine of this process is timed inside."""
        kept = [(owner, name, getattr(owner, name)) for owner, name, _ in TIMED]
        for owner, name, part in TIMED:
            setattr(owner, name, self._timed(getattr(owner, name), part))
        try:
            yield self
        finally:
            for owner, name, method in kept:
                setattr(owner, name, method)

    def clear(self) -> None:
        """Forget the seconds."""
        self.seconds.clear()

    @property
    def weight_formats(self) -> list[WeightFormat]:
        """Of each product of the model that computed the last pass."""
        return [] if self._model is None else self._model.weight_formats

    @property
    def decoding(self) -> int:
        """Rows of the last pass if each was one token of a sequence that has a token before it, else 0."""
        single = all(len(chunk.token_ids) == 1 and chunk.start > 0 for chunk in self.chunks)
        return len(self.chunks) if single else 0

    @property
    def mean_context(self) -> float:
        """Tokens that a row of the last decoding pass attended to."""
        return sum(chunk.start + 1 for chunk in self.chunks) / len(self.chunks)

    def repeat_pass(self) -> None:
        """Forward and logits of the last step's rows, which write the same keys and values once more."""
        if self._model is None:
            raise RuntimeError("there was no step yet")
        with paddle.no_grad():
            self._model.compute_logits(self._model.forward(self.chunks))

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if part == "forward":
                self._model, self.chunks = owner, args[0]
            began = time.perf_counter()
            try:
                return method(owner, *args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return run


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """The names of the methods by which tensors' contents were read inside, one entry a read."""
    reads: list[str] = []
    kept = {name: getattr(paddle.Tensor, name) for name in READS if hasattr(paddle.Tensor, name)}
    for name, method in kept.items():
        setattr(paddle.Tensor, name, _counting(name, method, reads))
    try:
        yield reads
    finally:
        for name, method in kept.items():
            setattr(paddle.Tensor, name, method)


def _counting(name: str, method: Callable[..., Any], reads: list[str]) -> Callable[..., Any]:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        reads.append(name)
        return method(self, *args, **kwargs)

    return read
