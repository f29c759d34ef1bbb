"""Requests run again on this process's engine."""

from __future__ import annotations

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError, RequestFailedError
from fastdeploy_lp.engine.input_processor import EngineRequest
from fastdeploy_lp.engine.logged_request import LoggedOutput, LoggedRequest
from fastdeploy_lp.entrypoints.replay.backend import ReplayError


class EngineBackend:
    """Settles each request again, with the same result: a record includes the seed and the token limit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """Runs the request again and returns its outputs; raises ReplayError, or EngineDeadError without a worker."""
        try:
            prompt = self._engine.inputs.prompt(request.prompt_token_ids)
            settled = await self._engine.settle(request.params, prompt)
            admitted = EngineRequest(f"replay-{request.request_id}", prompt, settled)
            (generation,) = await self._engine.generate([admitted], bounded=False)
            result = await generation.result()
        except (InvalidRequestError, RequestFailedError) as error:
            raise ReplayError(str(error)) from None
        return [
            LoggedOutput(each.index, each.token_ids, each.finish_reason or "", each.stop_reason)
            for each in result.completions
        ]
