"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from fastdeploy_lp.engine.chat_messages import for_template
from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.body_shape import BoundedRoute
from fastdeploy_lp.entrypoints.openai.protocol.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from fastdeploy_lp.entrypoints.openai.routes.failures import failures
from fastdeploy_lp.entrypoints.openai.serving import Serving


def tokenization_routes(engine: Engine) -> APIRouter:
    """The model's tokenizer and chat template, without the model; texts may be longer than its context."""
    router = APIRouter(responses=failures(400, 404, 413, 503), route_class=BoundedRoute)
    serving, tokenizer, config = Serving(engine), engine.tokenizer, engine.fd_config.model_config

    def encode(body: TokenizeRequest) -> list[int]:
        text = _text(engine, body)
        if not _is_unicode(text):
            raise InvalidRequestError("messages" if body.prompt is None else "prompt", "no valid Unicode")
        special = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens
        return tokenizer.encode(text, add_special_tokens=special)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """Token ids of a text or a conversation."""
        serving.require_model(body.model)
        engine.inputs.require_text("messages" if body.prompt is None else "prompt")
        # A long text takes a while, in which others want their tokens.
        tokens = await asyncio.to_thread(encode, body)
        return TokenizeResponse(
            count=len(tokens),
            max_model_len=config.max_model_len,
            tokens=tokens,
            token_strs=[tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None,
        )

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids, special tokens written out."""
        serving.require_model(body.model)
        engine.inputs.require_text("tokens")
        for index, token in enumerate(body.tokens):
            if not 0 <= token < config.vocab_size:
                raise InvalidRequestError(
                    f"tokens.{index}", f"{token} is no token id; allowed are 0 to {config.vocab_size - 1}"
                )
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return DetokenizeResponse(prompt=text)

    return router


def _text(engine: Engine, body: TokenizeRequest) -> str:
    if body.prompt is not None:
        return body.prompt
    messages = for_template([message.model_dump(exclude_none=True) for message in body.messages or ()])
    options = ChatOptions(
        tools=None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools],
        chat_template_kwargs=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return engine.tokenizer.render_chat(messages, options)


def _is_unicode(text: str) -> bool:
    """Half a surrogate pair can stand in a JSON string, but it is no text."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
