"""Backends of a chat: a model loaded for this chat, or a running server with an OpenAI-compatible API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

import msgspec

from fastdeploy_lp.engine.errors import EngineDeadError, RequestFailedError
from fastdeploy_lp.entrypoints.bench.load import SSEDecoder
from fastdeploy_lp.entrypoints.chat.session import BackendError, Message
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.entrypoints.server_address import ServerAddress
from fastdeploy_lp.request.sampling_params import RequestOutputKind, SamplingParams


class LLMBackend:
    """Answers with an `LLM`, which the caller shuts down."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yields pieces of the answer as they arrive."""
        fields = [name for name in SamplingParams.__struct_fields__ if name != "output_kind"]
        unknown = sorted(settings.keys() - set(fields))
        if unknown:
            raise BackendError(f"{unknown[0]}: is no sampling field; fields are {', '.join(fields)}")
        try:
            fixed = {"n": 1, "output_kind": RequestOutputKind.DELTA}
            params = msgspec.structs.replace(self._llm.get_default_sampling_params(), **settings, **fixed)
            for output in self._llm.chat(messages, params, stream=True):
                yield output.outputs.text
        except (ValueError, RequestFailedError, EngineDeadError) as error:
            raise BackendError(str(error)) from None


PIECE_BYTES = 1 << 16


class ServerBackend:
    """Answers over HTTP; uses one connection per answer, so that closing it aborts the request.

    url: the API's root, such as `http://127.0.0.1:8180/v1`. model: None selects the first one that the server lists.
    Raises BackendError for an invalid URL, without a server, or when no model can be read from it.
    """

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        try:
            self._address = ServerAddress(url)
            self._address.require_listening()
        except ValueError as error:
            raise BackendError(str(error)) from None
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.model = model or self._first_model()

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yields pieces of the answer as they arrive."""
        body = {"model": self.model, **settings, "messages": list(messages), "stream": True}
        done = False
        for payload in self._payloads("POST", "chat/completions", body):
            if payload == "[DONE]":
                done = True
            else:
                yield _text_of(json.loads(payload))
        if not done:
            raise BackendError("the server broke its answer off")

    def _first_model(self) -> str:
        try:
            with closing(self._address.connection()) as connection:
                models = json.loads(self._ask(connection, "GET", "models", None).read())
                return str(models["data"][0]["id"])
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            raise BackendError(f"url: no model from {self._address.url}: {error!r}") from None

    def _payloads(self, method: str, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        decoder = SSEDecoder()
        try:
            with closing(self._address.connection()) as connection:
                response = self._ask(connection, method, path, body)
                while block := response.read1(PIECE_BYTES):
                    yield from decoder.feed(block)
        except (OSError, HTTPException, ValueError) as error:
            raise BackendError(f"the connection to {self._address.host} failed: {error}") from None

    def _ask(self, connection: HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, self._address.path(path), content, self._headers)
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise BackendError(f"HTTP {response.status}: {_reason(response.read())}")
        return response


def _text_of(chunk: Mapping[str, Any]) -> str:
    """Returns the text of a chunk, including the reasoning text; raises BackendError for an error."""
    if chunk.get("error"):
        raise BackendError(str(chunk["error"].get("message", chunk["error"])))
    deltas = [choice["delta"] for choice in chunk["choices"]]
    return "".join((delta.get("reasoning_content") or "") + (delta.get("content") or "") for delta in deltas)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.decode(errors="replace")
