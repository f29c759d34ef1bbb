"""POST /v1/chat/completions: from a validated body to an answer or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.logprobs import chat_logprobs, prompt_logprobs
from fastdeploy_lp.entrypoints.openai.message_reader import MessageReader
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
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
from fastdeploy_lp.entrypoints.openai.tools import offered_tools
from fastdeploy_lp.outputs import CompletionDelta, RequestOutput


class ServingChat:
    """Chat completions on one engine."""

    def __init__(self, engine: EngineClient) -> None:
        self._serving = Serving(engine)

    async def start(self, request: ChatCompletionRequest) -> Generation:
        """Admit a request; raises InvalidRequestError, NotFoundError, or that the engine cannot take it."""
        params = self._serving.params(request)
        prompt = self._prompt(request)
        settled = self._serving.settle(prompt, params, request)
        admitted = EngineRequest(new_chat_id(request.request_id), prompt, settled)
        (generation,) = await self._serving.engine.generate([admitted], stream=request.stream)
        return generation

    def response(self, output: RequestOutput, request: ChatCompletionRequest) -> ChatCompletionResponse:
        """The body of a plain answer."""
        readers = [MessageReader(self._serving.engine, request, each.index) for each in output.completions]
        choices = [reader.choice(each) for reader, each in zip(readers, output.completions, strict=True)]
        reasoning_tokens = sum(reader.reasoning_tokens for reader in readers)
        reads_reasoning = self._serving.engine.message_parsers.reads_reasoning
        return ChatCompletionResponse(
            id=output.request_id,
            model=self._serving.model,
            choices=choices,
            usage=usage_of_outputs([output], reasoning_tokens if reads_reasoning else None),
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
        )

    def _prompt(self, request: ChatCompletionRequest) -> Prompt:
        engine = self._serving.engine
        tools = offered_tools(request, engine.message_parsers)
        if request.prompt_token_ids is not None:
            return engine.inputs.prompt(request.prompt_token_ids, "prompt_token_ids")
        if request.chat_template is not None and not engine.fd_config.chat_config.trust_request_chat_template:
            reason = "only allowed on a server that was started with --trust-request-chat-template"
            raise InvalidRequestError("chat_template", reason)
        options = ChatOptions(
            tools=tools,
            chat_template=request.chat_template,
            chat_template_kwargs=request.template_kwargs,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
        )
        return engine.inputs.chat_prompt([each.model_dump(exclude_none=True) for each in request.messages], options)

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
