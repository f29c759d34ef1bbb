"""An engine for embeddings that tests of several modules share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastdeploy_lp import AsyncLLM

IO_PROCESSORS = {"lengths": "support.io_processors:lengths", "hasty": "support.io_processors:Hasty"}
POOLED_CONTEXT = 256
# Room for a prompt that keeps a worker busy for as long as a test needs to see that it is.
WHOLE_CONTEXT = 4096
WAITING = 7

Result = TypeVar("Result")


class PoolingEngine:
    """A started `AsyncLLM` and the event loop it lives on."""

    def __init__(self, model: str) -> None:
        self._loop = asyncio.new_event_loop()
        options: dict[str, Any] = {"max_num_seqs": 1, "max_waiting_requests": WAITING, "max_model_len": WHOLE_CONTEXT}
        self.llm = AsyncLLM(model, pooling_type="mean", io_processor_plugin="hasty", **options)
        self.run(self.llm.start())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`; the engine's own tasks run meanwhile."""
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    def close(self) -> None:
        """Ends the worker."""
        self.run(self.llm.shutdown())
        self._loop.close()
