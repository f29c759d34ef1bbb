"""POST /tokenize and /detokenize."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from fastdeploy_lp.engine.chat_template import ChatOptions, for_template
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import PromptText, UnencodableTextError
from fastdeploy_lp.entrypoints.openai.body.shape import bounded_route
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from fastdeploy_lp.entrypoints.openai.serving import Caller, Serving, admitted
from fastdeploy_lp.request.limits import MAX_DETOKENIZED_TOKENS

PIECE = 4096


def tokenization_routes(engine: Engine) -> APIRouter:
    """Returns the routes of the model's tokenizer and chat template; texts may be longer than the context."""
    router = APIRouter(responses=failures(400, 404, 413, 429, 503), route_class=bounded_route(engine))
    serving, tokenization = Serving(engine), Tokenization(engine)

    @router.post("/tokenize", response_model=TokenizeResponse)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        serving.require_model(body.model)
        engine.inputs.require_text("messages" if body.prompt is None else "prompt")

        async def answer(caller: Caller) -> bytes:
            return await serving.inside(caller)(partial(tokenization.tokens, body))

        return Response(await admitted(answer, request, None), media_type="application/json")

    @router.post("/detokenize", response_model=DetokenizeResponse)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids, including special tokens."""
        serving.require_model(body.model)
        engine.inputs.require_text("tokens")

        async def answer(caller: Caller) -> bytes:
            return await serving.inside(caller)(partial(tokenization.text, body))

        return Response(await admitted(answer, request, None), media_type="application/json")

    return router


class Tokenization:
    """Builder of answers of up to megabytes, without FastAPI's encoder, which would run on the event loop."""

    def __init__(self, engine: Engine) -> None:
        context = engine.fd_config.model_config.max_model_len
        self._engine = engine
        self._context = context
        self._texts = PromptText(engine.tokenizer, context)
        self._most_tokens = max(MAX_DETOKENIZED_TOKENS, context)

    def tokens(self, body: TokenizeRequest) -> bytes:
        """Returns the answer to /tokenize; raises InvalidRequestError."""
        param = "messages" if body.prompt is None else "prompt"
        special = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens
        tokens = self.encoded(_text(self._engine, body), param, add_special_tokens=special)
        strings = map(self._engine.tokenizer.token_text, tokens) if body.return_token_strs else None
        answer = TokenizeResponse(count=len(tokens), max_model_len=self._context, tokens=[])
        head = answer.model_dump_json(exclude={"tokens", "token_strs"})[:-1]
        listed = "null" if strings is None else _in_pieces(strings)
        return f'{head},"tokens":{_in_pieces(tokens)},"token_strs":{listed}}}'.encode()

    def encoded(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text; raises InvalidRequestError naming `param`."""
        try:
            return self._texts.whole(text, param, add_special_tokens=add_special_tokens)
        except UnencodableTextError as error:
            raise InvalidRequestError(param, str(error)) from None

    def text(self, body: DetokenizeRequest) -> bytes:
        """Returns the answer to /detokenize; raises InvalidRequestError."""
        if len(body.tokens) > self._most_tokens:
            reason = f"{len(body.tokens)} tokens are too many; this server reads {self._most_tokens} of a request"
            raise InvalidRequestError("tokens", reason)
        self._engine.inputs.require_tokens("tokens", body.tokens)
        text = self._engine.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return DetokenizeResponse(prompt=text).model_dump_json().encode()


def _in_pieces(values: Iterable[Any]) -> str:
    """Returns a JSON list, encoded piece by piece: one long call would block all other threads."""
    values, pieces = iter(values), []
    while piece := list(itertools.islice(values, PIECE)):
        pieces.append(json.dumps(piece, ensure_ascii=False, separators=(",", ":"))[1:-1])
    return f"[{','.join(pieces)}]"


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
