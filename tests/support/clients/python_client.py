"""The `openai` package, as it comes: bodies become its own arguments where it has them, and `extra_body` elsewhere."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import openai

from support.clients.answer import Answer, answer_of
from support.clients.case import BASE, CHAT, STREAMED, Route


def native(create: Callable[..., Any]) -> set[str]:
    """The fields of bodies that a method has arguments for."""
    return set(inspect.signature(create).parameters) - {"extra_headers", "extra_query", "extra_body", "timeout"}


def arguments(create: Callable[..., Any], body: dict[str, Any]) -> dict[str, Any]:
    """The arguments that make the method send this body."""
    known = native(create)
    extra = {name: value for name, value in body.items() if name not in known}
    return {name: value for name, value in body.items() if name in known} | ({"extra_body": extra} if extra else {})


def create_of(client: openai.Client | openai.AsyncClient, route: Route) -> Callable[..., Any]:
    """The method that posts there."""
    return client.chat.completions.create if route == CHAT else client.completions.create


def dumped(model: Any) -> dict[str, Any]:
    """What the client read, what it has no fields for included, and values that its types do not foresee."""
    body: dict[str, Any] = model.model_dump(mode="json", warnings=False)
    return body


def plain(client: openai.Client, route: Route, body: dict[str, Any]) -> Answer:
    """The answer to a body without `stream`."""
    create = create_of(client, route)
    return answer_of([dumped(create(**arguments(create, body)))])


def streamed(client: openai.Client, route: Route, body: dict[str, Any]) -> Answer:
    """All chunks of the answer."""
    create = create_of(client, route)
    with create(**arguments(create, STREAMED | body)) as chunks:
        return answer_of([dumped(chunk) for chunk in chunks])


async def async_plain(client: openai.AsyncClient, route: Route, body: dict[str, Any]) -> Answer:
    """As `plain`."""
    create = create_of(client, route)
    return answer_of([dumped(await create(**arguments(create, body)))])


async def async_streamed(client: openai.AsyncClient, route: Route, body: dict[str, Any]) -> Answer:
    """As `streamed`."""
    create = create_of(client, route)
    async with await create(**arguments(create, STREAMED | body)) as chunks:
        return answer_of([dumped(chunk) async for chunk in chunks])


def content_of(text: str) -> Any:
    """What its JSON holds, if it is some."""
    return json.loads(text) if text.startswith("{") else text


class PythonAsker:
    """Asks what checks want to compare with; `root` has the server's root for its base URL."""

    def __init__(self, client: openai.Client, root: openai.Client, route: Route) -> None:
        self._client = client
        self._root = root
        self._route = route
        self._answers: dict[str, Answer] = {}

    def answer(self, **fields: Any) -> Answer:
        """A plain answer to the route's base body with these fields; asked for once."""
        key = json.dumps(fields)
        if key not in self._answers:
            self._answers[key] = plain(self._client, self._route, BASE[self._route] | fields)
        return self._answers[key]

    def encode(self, text: str) -> list[int]:
        """The served model's tokens."""
        return _encoded(self._root, text)


@cache
def _encoded(root: openai.Client, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    tokens: list[int] = json.loads(root.post("/tokenize", body=body, cast_to=str))["tokens"]
    return tokens
