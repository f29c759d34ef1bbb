"""Requests that fail, and the classes of which clients raise an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.clients.case import BASE, CHAT, COMPLETIONS

MAX_BODY_SIZE = 100_000
CLIENT_KEY = "key-of-a-client"


@dataclass(frozen=True)
class Failure:
    """A POST that fails; `raises` is the class of both languages, the plain APIStatusError where it is None."""

    raises: str | None
    status: int
    code: str | None
    param: str | None = None
    path: str = CHAT
    body: dict[str, Any] = field(default_factory=dict, repr=False)
    api_key: str = CLIENT_KEY


FAILURES = [
    Failure("BadRequestError", 400, "invalid_value", "temperature", CHAT, BASE[CHAT] | {"temperature": -1}),
    Failure("BadRequestError", 400, "missing_required_parameter", "messages", CHAT, {"model": "default"}),
    Failure("BadRequestError", 400, "context_length_exceeded", "prompt", COMPLETIONS, {"prompt": [70] * 2000}),
    Failure("BadRequestError", 400, "unknown_parameter", "top_a", "/v1/embeddings", {"input": "a", "top_a": 1}),
    Failure("BadRequestError", 400, "invalid_value", "data", "/pooling", {"data": {"texts": ["a"]}}),
    Failure("BadRequestError", 400, "invalid_value", "tokens.0", "/detokenize", {"tokens": [-1]}),
    Failure("AuthenticationError", 401, "invalid_api_key", body=BASE[CHAT], api_key="another"),
    Failure("NotFoundError", 404, "model_not_found", "model", CHAT, BASE[CHAT] | {"model": "gpt"}),
    Failure("NotFoundError", 404, "unknown_url", path="/v1/threads"),
    Failure(None, 405, "method_not_allowed", path="/v1/models"),
    Failure(None, 413, "request_too_large", path=COMPLETIONS, body={"prompt": "a" * MAX_BODY_SIZE}),
    Failure("InternalServerError", 500, "request_failed", body=BASE[CHAT] | {"logits_processors_args": {"boom": 2}}),
]
