"""A pooled prompt in flight, and what becomes of its vector."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastdeploy_lp.engine.client.pooling import Pooling, cut_and_normalized
from fastdeploy_lp.engine.errors import EngineDeadError, RequestAbortedError, RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt, Settled
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.request.pooling_params import PoolingParams

VECTOR = np.array([3.0, -4.0, 12.0], np.float32)
vectors = hnp.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
)


class Waiting:
    """A request in flight; `closed` lists what its engine was told to forget."""

    def __init__(self, **params: Any) -> None:
        self.closed: list[str] = []
        request = EngineRequest("r", Prompt([5, 6], "ab"), Settled(pooling=PoolingParams(**params)))
        self.pooling = Pooling(request, on_close=lambda pooling: self.closed.append(pooling.request_id))

    def answered(self, num_cached_tokens: int) -> None:
        """The worker's step has arrived."""
        self.pooling.take(0, SequenceStep("r", [], "stop", pooled=VECTOR.astype("<f4").tobytes()))
        self.pooling.sequences[0].num_cached_tokens = num_cached_tokens
        self.pooling.notify()


@given(vectors, st.data())
def test_a_vector_is_cut_and_then_has_length_one(vector: np.ndarray, data: st.DataObject) -> None:
    dimensions = data.draw(st.none() | st.integers(1, len(vector)))
    raw = cut_and_normalized(vector, PoolingParams(dimensions=dimensions, normalize=False))
    np.testing.assert_array_equal(raw, vector[:dimensions])
    found = cut_and_normalized(vector, PoolingParams(dimensions=dimensions))
    assert (found.dtype, found.shape) == (np.float32, raw.shape)
    length = np.linalg.norm(raw.astype(np.longdouble))
    if length:
        np.testing.assert_allclose(found, raw / length, rtol=1e-6, atol=1e-45)
    else:
        np.testing.assert_array_equal(found, raw)


def test_who_waits_gets_the_workers_vector() -> None:
    async def run() -> None:
        waiting = Waiting(normalize=False, dimensions=2)
        asked = asyncio.ensure_future(waiting.pooling.result())
        await asyncio.sleep(0)
        assert not asked.done()
        assert (waiting.pooling.finished, waiting.pooling.finish_reasons) == (False, [None])
        waiting.answered(7)
        output = await asked
        assert output.outputs.data.tolist() == [3.0, -4.0]
        assert (output.request_id, output.prompt_token_ids) == ("r", [5, 6])
        assert (output.num_cached_tokens, output.finished) == (7, True)
        assert (waiting.pooling.finished, waiting.pooling.finish_reasons) == (True, ["stop"])
        assert waiting.closed == ["r"]

    asyncio.run(run())


@pytest.mark.parametrize("error", [EngineDeadError("gone"), RequestFailedError("no")])
def test_who_waits_is_told_of_a_failure(error: EngineDeadError | RequestFailedError) -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.pooling.fail(error)
        with pytest.raises(type(error), match=str(error)):
            await waiting.pooling.result()

    asyncio.run(run())


def test_leaving_early_closes_the_request() -> None:
    async def run() -> None:
        waiting = Waiting()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting.pooling.result(), 0.001)
        assert waiting.closed == ["r"]

    asyncio.run(run())


def test_abort_ends_the_waiting_and_an_answer_that_is_there_stays() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.pooling.abort()
        assert (waiting.pooling.finished, waiting.pooling.finish_reasons) == (True, [None])
        with pytest.raises(RequestAbortedError, match="aborted"):
            await waiting.pooling.result()
        answered = Waiting()
        answered.answered(0)
        answered.pooling.abort()
        assert len((await answered.pooling.result()).outputs.data) == 3

    asyncio.run(run())
