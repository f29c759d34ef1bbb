"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.logprobs import chat_logprobs, prompt_logprobs
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    new_chat_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
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

    def response(self, output: RequestOutput, request: ChatCompletionRequest) -> ChatCompletionResponse:
        """The body of a plain answer."""
        choices = [
            ChatChoice(
                index=completion.index,
                message=AssistantMessage(content=completion.text),
                logprobs=chat_logprobs(completion.logprobs, request.num_logprobs or 0, self._serving.engine.tokenizer),
                finish_reason=completion.finish_reason or "abort",
                stop_reason=text_reason(completion.stop_reason),
            )
            for completion in output.completions
        ]
        return ChatCompletionResponse(
            id=output.request_id,
            model=self._serving.model,
            choices=choices,
            usage=usage_of_outputs([output]),
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
        )

    async def stream(self, generation: Generation, request: ChatCompletionRequest) -> AsyncIterator[str]:
        """Server-sent events: a role chunk per choice, deltas, usage if asked for, and [DONE].

        A request that cannot go on ends with an error event; a client that leaves aborts it.
        """
        try:
            for completion in generation.completions:
                role = ChatDelta(role="assistant", content="")
                yield self._event(generation, ChatChunkChoice(index=completion.index, delta=role))
            completion_tokens = 0
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    completion_tokens += len(delta.token_ids)
                    yield self._delta_event(generation, delta, request.num_logprobs or 0)
            if request.include_usage:
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

    def _delta_event(self, generation: Generation, delta: CompletionDelta, top_logprobs: int) -> str:
        choice = ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(content=delta.text),
            logprobs=chat_logprobs(delta.logprobs, top_logprobs, self._serving.engine.tokenizer),
            finish_reason=delta.finish_reason,
            stop_reason=text_reason(delta.stop_reason),
        )
        return self._event(generation, choice)

    def _event(self, generation: Generation, choice: ChatChunkChoice) -> str:
        chunk = ChatCompletionChunk(id=generation.request_id, model=self._serving.model, choices=[choice])
        return server_sent_event(chunk, without={"usage"})
