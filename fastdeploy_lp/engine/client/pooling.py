"""A pooling request in flight, and its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.engine.client.work import Work
from fastdeploy_lp.engine.errors import EngineDeadError, RequestAbortedError, RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.request.outputs import PoolingOutput, PoolingRequestOutput
from fastdeploy_lp.request.pooling_params import TOKEN_EMBED, PoolingParams

# Up to this many bytes are cut and normalized on the event loop, more in a thread.
SHORT_BYTES = 1 << 17


@dataclass(slots=True)
class PooledPrompt:
    """The result of a pooled prompt; no tokens are generated.

    pooled: the worker's vector [hidden_size], or one per token [tokens, hidden_size]; little-endian float32.
    """

    pooled: bytes | None = None
    finish_reason: str | None = None
    num_cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Always 0."""
        return 0


class Pooling(Work):
    """The single result of a pooling request, awaited by one caller."""

    def __init__(self, request: EngineRequest, on_close: Callable[[Work], None]) -> None:
        """Raises ValueError for a request that is not to be pooled."""
        super().__init__(request.request_id, request.prompt, 1, on_close)
        if request.settled.pooling is None:
            raise ValueError("pooling: the request has no pooling parameters")
        self.params = request.settled.pooling
        self._prompt = PooledPrompt()
        self._ended = asyncio.Event()

    @property
    def sequences(self) -> Sequence[PooledPrompt]:
        """The only sequence."""
        return [self._prompt]

    @property
    def finished(self) -> bool:
        """True once there is a vector or an error."""
        return self._ended.is_set()

    def take(self, index: int, step: SequenceStep) -> None:  # noqa: ARG002 - there is only one
        """Stores the vector of the only step; raises ValueError for a step without one."""
        if step.pooled is None:
            raise ValueError("the worker gave no vector")
        self._prompt.pooled, self._prompt.finish_reason = step.pooled, step.finish_reason or "stop"

    def notify(self) -> None:
        """Wakes the caller."""
        self._ended.set()

    def fail(self, error: EngineDeadError | RequestFailedError) -> None:
        """Ends the request with an error."""
        self._error = error
        self._ended.set()

    def abort(self) -> None:
        """Ends the request; its caller gets a RequestAbortedError."""
        if not self._ended.is_set():
            self.fail(RequestAbortedError("the request was aborted"))
        self._on_close(self)

    def begin_again(self) -> None:
        """Resets the times: another worker computes the prompt again."""
        self.times[0].begin()

    async def result(self) -> PoolingRequestOutput:
        """Returns the output; cancelling aborts the request. Raises the error passed to `fail`."""
        try:
            await self._ended.wait()
        finally:
            self.close()
        pooled = self._prompt.pooled
        if pooled is None:
            raise self._error or RequestFailedError("the request ended without an answer")
        if len(pooled) <= SHORT_BYTES:
            return self._output(pooled)
        return await asyncio.to_thread(self._output, pooled)

    def _output(self, pooled: bytes) -> PoolingRequestOutput:
        token_ids = self.prompt.token_ids
        numbers = np.frombuffer(pooled, "<f4").astype(np.float32)
        if self.params.task == TOKEN_EMBED:
            data = cut_and_normalized_rows(numbers.reshape(len(token_ids), -1), self.params)
        else:
            data = cut_and_normalized(numbers, self.params)
        return PoolingRequestOutput(self.request_id, PoolingOutput(data), token_ids, self.num_cached_tokens)


def cut_and_normalized(vector: NDArray[np.float32], params: PoolingParams) -> NDArray[np.float32]:
    """Returns the first `dimensions` numbers of a vector [hidden_size], at length 1 if `normalize`; zeros stay."""
    cut = vector[: params.dimensions]
    if not params.normalize:
        return cut
    exact = cut.astype(np.float64)
    # An exact sum, so that the result does not depend on a machine's order of addition.
    length = math.sqrt(math.fsum((exact * exact).tolist()))
    return (exact / length).astype(np.float32) if length else cut


def cut_and_normalized_rows(vectors: NDArray[np.float32], params: PoolingParams) -> NDArray[np.float32]:
    """The same for each row of vectors [tokens, hidden_size]."""
    cut = vectors[:, : params.dimensions]
    if not params.normalize:
        return cut
    exact = cut.astype(np.float64)
    # Squares of float32 are exact in float64; there are too many of them for an exact sum.
    lengths = np.sqrt(np.square(exact).sum(axis=1, keepdims=True))
    return (exact / np.where(lengths, lengths, 1.0)).astype(np.float32)
