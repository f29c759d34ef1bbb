"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ErrorResponse,
    new_chat_id,
)
from fastdeploy_lp.entrypoints.openai.serving import (
    DONE,
    Serving,
    server_sent_event,
    text_reason,
    usage_of,
    usage_of_outputs,
)
from fastdeploy_lp.outputs import CompletionDelta, RequestOutput


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: EngineClient) -> None:
        self._serving = Serving(engine)

    async def start(self, request: ChatCompletionRequest) -> Generation:
        """Admit a request; raises InvalidRequestError, NotFoundError, or that the engine cannot take it."""
        params = self._serving.params(request)
        prompt = self._serving.engine.inputs.chat_prompt(
            [message.model_dump(exclude_none=True) for message in request.messages]
        )
        settled = self._serving.settle(prompt, params, request)
        admitted = EngineRequest(new_chat_id(), prompt, settled)
        (generation,) = await self._serving.engine.generate([admitted], stream=request.stream)
        return generation

    def response(self, output: RequestOutput) -> ChatCompletionResponse:
        """The body of a plain answer."""
        choices = [
            ChatChoice(
                index=completion.index,
                message=AssistantMessage(content=completion.text),
                finish_reason=completion.finish_reason or "abort",
                stop_reason=text_reason(completion.stop_reason),
            )
            for completion in output.completions
        ]
        return ChatCompletionResponse(
            id=output.request_id, model=self._serving.model, choices=choices, usage=usage_of_outputs([output])
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
                usage = usage_of(len(generation.prompt.token_ids), completion_tokens, generation.num_cached_tokens)
                model = self._serving.model
                yield server_sent_event(
                    ChatCompletionChunk(id=generation.request_id, model=model, choices=[], usage=usage)
                )
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield server_sent_event(ErrorResponse(error=describe(error)[1]))
        finally:
            generation.close()
        yield DONE

    def _event(self, generation: Generation, index: int, delta: ChatDelta, end: CompletionDelta | None = None) -> str:
        choice = ChatChunkChoice(index=index, delta=delta)
        if end is not None:
            choice.finish_reason, choice.stop_reason = end.finish_reason, text_reason(end.stop_reason)
        chunk = ChatCompletionChunk(id=generation.request_id, model=self._serving.model, choices=[choice])
        return server_sent_event(chunk, without={"usage"})
