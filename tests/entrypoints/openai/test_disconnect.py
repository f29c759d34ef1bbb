"""Waiting for several answers of which one fails."""

from __future__ import annotations

import asyncio

import pytest

from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.errors import RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt, Settled
from fastdeploy_lp.entrypoints.openai.serving import _all_results
from fastdeploy_lp.request.pooling_params import PoolingParams


def test_a_failure_leaves_nobody_waiting_for_the_others() -> None:
    async def run() -> None:
        closed: list[str] = []
        requests = [EngineRequest(name, Prompt([5], "a"), Settled(pooling=PoolingParams())) for name in "abc"]
        poolings = [Pooling(each, on_close=lambda pooling: closed.append(pooling.request_id)) for each in requests]
        asked = asyncio.ensure_future(_all_results(poolings))
        await asyncio.sleep(0)
        poolings[1].fail(RequestFailedError("no"))
        with pytest.raises(RequestFailedError, match="no"):
            await asked
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert sorted(closed) == ["a", "b", "c"]

    asyncio.run(run())
