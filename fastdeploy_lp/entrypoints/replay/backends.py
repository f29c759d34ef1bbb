"""Backends of a replay: the engine of this process, or a running server."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

import msgspec

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.logged_request import LoggedOutput, LoggedRequest
from fastdeploy_lp.engine.errors import InvalidRequestError, RequestFailedError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.entrypoints.openai.protocol.guided import STRUCTURED, WHEN
from fastdeploy_lp.entrypoints.replay.runner import ReplayError
from fastdeploy_lp.entrypoints.server_address import ServerAddress
from fastdeploy_lp.request.sampling_params import SamplingParams


class EngineBackend:
    """Settles each request again, with the same result: a record includes the seed and the token limit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """Runs the request again and returns its outputs; raises ReplayError, or EngineDeadError without a worker."""
        try:
            prompt = self._engine.inputs.prompt(request.prompt_token_ids)
            settled = await self._engine.preparation.settle(request.params, prompt)
            admitted = EngineRequest(f"replay-{request.request_id}", prompt, settled)
            (generation,) = await self._engine.generate([admitted], bounded=False)
            result = await generation.result()
        except (InvalidRequestError, RequestFailedError) as error:
            raise ReplayError(str(error)) from None
        return [
            LoggedOutput(each.index, each.token_ids, each.finish_reason or "", each.stop_reason)
            for each in result.completions
        ]


# Fields with another name over HTTP, and fields that are not sent (they affect no token or have their own form).
OTHER_NAMES = {"extra_args": "vllm_xargs"}
NOT_SENT = ("guided_decoding", "logprobs", "prompt_logprobs", "output_kind")
# Body fields for what vLLM's object of a form does not have, and their names in GuidedDecodingParams.
BESIDE_FORM = {"guided_whitespace": "whitespace", WHEN: "when"}


class ServerReplay:
    """POSTs each request to /v1/completions.

    concurrency: maximum requests in flight. Raises ValueError if nothing listens at the address.
    """

    def __init__(self, address: ServerAddress, api_key: str | None, concurrency: int) -> None:
        address.require_listening()
        self._address = address
        self._threads = ThreadPoolExecutor(concurrency, "replay")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """Runs the request again and returns its outputs; raises ReplayError, also if the server is unreachable."""
        # Own threads: on a machine with few cores, the loop's executor has fewer threads than requests in flight.
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._post, body_of(request))
        try:
            return [
                LoggedOutput(each["index"], each["token_ids"], each["finish_reason"], each["stop_reason"])
                for each in answer["choices"]
            ]
        except (LookupError, TypeError):
            raise ReplayError(f"{self._address.host} gives no token ids: it is no server of this kind") from None

    def _post(self, body: dict[str, Any]) -> Any:
        try:
            with closing(self._address.connection()) as connection:
                connection.request("POST", self._address.path("completions"), json.dumps(body), self._headers)
                response = connection.getresponse()
                content = response.read()
            answer = json.loads(content)
        except (OSError, HTTPException, ValueError) as error:
            raise ReplayError(f"no answer from {self._address.host}: {error}") from None
        if response.status != HTTPStatus.OK:
            raise ReplayError(f"status {response.status}: {_reason(answer)}")
        return answer


def body_of(request: LoggedRequest) -> dict[str, Any]:
    """Returns the body for /v1/completions."""
    fields = {name: value for name, value in msgspec.to_builtins(request.params).items() if name not in NOT_SENT}
    body = {OTHER_NAMES.get(name, name): value for name, value in fields.items()}
    return {**body, **_form_of(request.params), "prompt": request.prompt_token_ids, "return_token_ids": True}


def _form_of(params: SamplingParams) -> dict[str, Any]:
    form = params.guided_decoding
    if form is None:
        return {}
    fields = msgspec.to_builtins(form)
    beside = {name: fields.pop(field) for name, field in BESIDE_FORM.items() if field in fields}
    return {STRUCTURED: fields, **beside}


def _reason(answer: Any) -> str:
    try:
        return str(answer["error"]["message"])
    except (LookupError, TypeError):
        return "no reason was given"
