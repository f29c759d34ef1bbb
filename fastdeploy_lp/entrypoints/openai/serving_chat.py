"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.errors import ModelNotFoundError, describe
from fastdeploy_lp.entrypoints.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ErrorResponse,
    Usage,
    new_completion_id,
)
from fastdeploy_lp.outputs import CompletionDelta, RequestOutput

DEFAULT_MODEL_NAME = "default"


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._model = engine.fd_config.model_config.served_model_name

    async def start(self, request: ChatCompletionRequest) -> Generation:
        """Admit a request; raises InvalidRequestError, ModelNotFoundError or EngineDeadError."""
        if request.model not in (None, "", DEFAULT_MODEL_NAME, self._model):
            raise ModelNotFoundError(str(request.model), self._model)
        try:
            params = request.sampling_params()
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            raise InvalidRequestError(field, reason) from None
        prompt = self._engine.inputs.chat_prompt([message.for_template() for message in request.messages])
        return await self._engine.generate(new_completion_id(), prompt, params, stream=request.stream)

    def response(self, output: RequestOutput) -> ChatCompletionResponse:
        """The body of a plain answer."""
        choices = [
            ChatChoice(
                index=completion.index,
                message=AssistantMessage(content=completion.text),
                finish_reason=completion.finish_reason or "abort",
                stop_reason=completion.stop_reason if isinstance(completion.stop_reason, str) else None,
            )
            for completion in output.completions
        ]
        completion_tokens = sum(len(completion.token_ids) for completion in output.completions)
        return ChatCompletionResponse(
            id=output.request_id,
            model=self._model,
            choices=choices,
            usage=_usage(len(output.prompt_token_ids), completion_tokens),
        )

    async def stream(self, generation: Generation, *, include_usage: bool) -> AsyncIterator[str]:
        """Server-sent events: a role chunk per choice, deltas, usage if asked for, and [DONE].

        A request that cannot go on ends with an error event; a client that leaves aborts it.
        """
        try:
            for completion in generation.completions:
                yield self._event(generation, completion.index, ChatDelta(role="assistant", content=""))
            completion_tokens = 0
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    completion_tokens += len(delta.token_ids)
                    yield self._event(generation, delta.index, ChatDelta(content=delta.text), delta)
            if include_usage:
                usage = _usage(len(generation.prompt.token_ids), completion_tokens)
                yield _sse(ChatCompletionChunk(id=generation.request_id, model=self._model, choices=[], usage=usage))
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield _sse(ErrorResponse(error=describe(error)[1]))
        yield "data: [DONE]\n\n"

    def _event(self, generation: Generation, index: int, delta: ChatDelta, end: CompletionDelta | None = None) -> str:
        choice = ChatChunkChoice(index=index, delta=delta)
        if end is not None and end.finish_reason is not None:
            choice.finish_reason = end.finish_reason
            choice.stop_reason = end.stop_reason if isinstance(end.stop_reason, str) else None
        chunk = ChatCompletionChunk(id=generation.request_id, model=self._model, choices=[choice])
        return _sse(chunk)


def _usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )


def _sse(body: ChatCompletionChunk | ErrorResponse) -> str:
    without_usage = isinstance(body, ChatCompletionChunk) and body.usage is None
    return f"data: {body.model_dump_json(exclude={'usage'} if without_usage else None)}\n\n"
