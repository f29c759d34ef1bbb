"""A pooling request in flight, and its result."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.engine.errors import EngineDeadError, RequestAbortedError, RequestFailedError
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.sequence_times import SequenceTimes
from fastdeploy_lp.outputs import PoolingOutput, PoolingRequestOutput
from fastdeploy_lp.pooling_params import TOKEN_EMBED, PoolingParams

# Up to this many bytes are cut and normalized on the event loop, more in a thread.
SHORT_BYTES = 1 << 17


@dataclass(frozen=True)
class PoolingRequest:
    """A prompt to be pooled, with parameters settled by `InputProcessor.settle_pooling`.

    client: the client's name, for fair scheduling. deadline: on the monotonic clock, None for none.
    """

    request_id: str
    prompt: Prompt
    params: PoolingParams
    client: str = ""
    deadline: float | None = None

    @property
    def num_sequences(self) -> int:
        """Always one."""
        return 1


class Pooling:
    """The single result of a pooling request, awaited by one caller.

    `serial` is unique among requests of one engine. `times` has one entry and `processors` none: nothing is sampled.
    `lost_workers` counts workers that ended while the request may have run.
    """

    def __init__(self, request: PoolingRequest, on_close: Callable[[Pooling], None]) -> None:
        self.request_id = request.request_id
        self.serial = 0
        self.prompt = request.prompt
        self.params = request.params
        self.times = [SequenceTimes(time.monotonic())]
        self.processors: list[str] = []
        self.num_cached_tokens = 0
        self._on_close = on_close
        self._ended = asyncio.Event()
        self._pooled: bytes | None = None
        self._error: EngineDeadError | RequestFailedError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.lost_workers = 0

    @property
    def finished(self) -> bool:
        """True once there is a vector or an error."""
        return self._ended.is_set()

    @property
    def num_output_tokens(self) -> int:
        """Always 0: nothing is generated."""
        return 0

    @property
    def finish_reasons(self) -> list[str | None]:
        """One entry: "stop" once there is a vector, None before."""
        return [None if self._pooled is None else "stop"]

    def finish(self, pooled: bytes, num_cached_tokens: int) -> None:
        """Stores the worker's vector [hidden_size], or one per token [tokens, hidden_size]; little-endian float32."""
        self.num_cached_tokens = num_cached_tokens
        self._pooled = pooled
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

    def close(self) -> None:
        """Aborts the request if it still runs: its caller has left."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_close(self)

    def ends_at(self, deadline: asyncio.TimerHandle) -> None:
        """Stores the timer that ends the request at its deadline; `close` cancels it."""
        self._deadline = deadline

    def begin_again(self) -> None:
        """Resets the times: another worker computes the prompt again."""
        self.times[0].begin()

    async def result(self) -> PoolingRequestOutput:
        """Returns the output; cancelling aborts the request. Raises the error passed to `fail`."""
        try:
            await self._ended.wait()
        finally:
            self.close()
        if self._pooled is None:
            raise self._error or RequestFailedError("the request ended without an answer")
        if len(self._pooled) <= SHORT_BYTES:
            return self._output(self._pooled)
        return await asyncio.to_thread(self._output, self._pooled)

    def _output(self, pooled: bytes) -> PoolingRequestOutput:
        token_ids = self.prompt.token_ids
        numbers = np.frombuffer(pooled, "<f4").astype(np.float32)
        if self.params.task == TOKEN_EMBED:
            data = cut_and_normalized_rows(numbers.reshape(len(token_ids), -1), self.params)
        else:
            data = cut_and_normalized(numbers, self.params)
        return PoolingRequestOutput(self.request_id, PoolingOutput(data), token_ids, self.num_cached_tokens)


class PoolingsOfOneRequest(list[Pooling]):
    """The pooling prompts of one request, which end together."""

    def abort(self) -> None:
        """Ends all of them; their caller gets a RequestAbortedError."""
        for each in self:
            each.abort()

    def close(self) -> None:
        """Closes all of them: their caller has left."""
        for each in self:
            each.close()


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
