"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.event_stream import DONE, TextEvent, server_sent_event
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
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import (
    Serving,
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

    async def stream(self, generation: Generation, request: ChatCompletionRequest) -> AsyncGenerator[bytes, None]:
        """Server-sent events: a role chunk per choice, deltas, usage if asked for, and [DONE].

        A request that cannot go on ends with an error event; a client that leaves aborts it.
        """
        try:
            events = _ChatEvents(self._serving, generation, request)
            yield events.opening()
            completion_tokens = 0
            async with aclosing(generation.deltas()) as batches:
                async for deltas in batches:
                    completion_tokens += sum(len(delta.token_ids) for delta in deltas)
                    yield b"".join([events.of(delta) for delta in deltas])
            if request.include_usage:
                yield events.usage(completion_tokens)
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield server_sent_event(ErrorResponse(error=describe(error)[1]))
        finally:
            generation.close()
        yield DONE


class _ChatEvents:
    """Encodes the events of one stream."""

    def __init__(self, serving: Serving, generation: Generation, request: ChatCompletionRequest) -> None:
        self._serving = serving
        self._generation = generation
        self._top_logprobs = request.num_logprobs or 0
        self._created = now()
        indices = [completion.index for completion in generation.completions]
        self._text_events = {index: TextEvent(partial(self._plain, index)) for index in indices}

    def opening(self) -> bytes:
        """The role of every choice."""
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._event(ChatChunkChoice(index=index, delta=role)) for index in self._text_events)

    def of(self, delta: CompletionDelta) -> bytes:
        """What a choice gained."""
        if delta.finish_reason is None and delta.logprobs is None:
            return self._text_events[delta.index](delta.text)
        choice = ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(content=delta.text),
            logprobs=chat_logprobs(delta.logprobs, self._top_logprobs, self._serving.engine.tokenizer),
            finish_reason=delta.finish_reason,
            stop_reason=text_reason(delta.stop_reason),
        )
        return self._event(choice)

    def usage(self, completion_tokens: int) -> bytes:
        """The chunk that has no choices."""
        generation = self._generation
        usage = usage_of(len(generation.prompt.token_ids), completion_tokens, generation.num_cached_tokens)
        return server_sent_event(self._chunk(choices=[], usage=usage))

    def _plain(self, index: int, text: str) -> bytes:
        return self._event(ChatChunkChoice(index=index, delta=ChatDelta(content=text)))

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return server_sent_event(self._chunk(choices=[choice]), without={"usage"})

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._generation.request_id,
            created=self._created,
            model=self._serving.model,
            choices=choices,
            usage=usage,
        )
