"""Answers beside hostile processors: read alike from plain bodies and streams, and judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reliability.chaos_requests import Exchange
from support.masks import BANNED_BY_PLUGIN, BANNED_BY_VLLM

ERROR_FIELDS = ["code", "message", "param", "type"]
ENDED = "ended the worker"


@dataclass
class Choice:
    """One completion: text, token ids, reason of its end, and its logprobs as JSON has them."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list)

    def add(self, part: Mapping[str, Any]) -> None:
        """Take a choice of a plain answer, or of a stream's chunk."""
        self.text += part.get("message", part.get("delta", {})).get("content") or ""
        self.token_ids += part.get("token_ids") or []
        self.finish_reason = part.get("finish_reason") or self.finish_reason
        self.logprobs += (part.get("logprobs") or {}).get("content") or []

    def begins(self, whole: Choice) -> bool:
        """Whether this is `whole`, or what came of it so far."""
        return (
            whole.text.startswith(self.text)
            and whole.token_ids[: len(self.token_ids)] == self.token_ids
            and whole.logprobs[: len(self.logprobs)] == self.logprobs
        )


@dataclass
class Answer:
    """What a request got back; `is_whole` if nothing is missing at its end."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    is_whole: bool = True

    @classmethod
    def of(cls, exchange: Exchange) -> Answer:
        """An answer of either kind, or a refusal; raises ValueError for what is no JSON."""
        if exchange.body.startswith(b"data: "):
            *payloads, last = exchange.payloads or [""]
            done = last == "[DONE]"
            events = [json.loads(payload) for payload in (payloads if done else exchange.payloads)]
            answer = cls(exchange.status, is_whole=done)
        else:
            events = [json.loads(exchange.body)]
            answer = cls(exchange.status)
        for event in events:
            answer._add(event)
        return answer

    def _add(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]
        for part in event.get("choices", []):
            self.choices.setdefault(part["index"], Choice()).add(part)

    @property
    def num_banned(self) -> int:
        """Tokens that the mandatory masks ban."""
        tokens = [token for choice in self.choices.values() for token in choice.token_ids]
        return sum(token % BANNED_BY_PLUGIN == 0 or token % BANNED_BY_VLLM == 0 for token in tokens)

    def begins(self, calm: Answer) -> bool:
        """Whether it is a part of `calm` from the start."""
        return all(choice.begins(calm.choices[index]) for index, choice in self.choices.items())


def wrong_with_error(answer: Answer, processor: str, every: Iterable[str]) -> str | None:
    """The flaw of a hostile request's error, which has to name `processor` and no other of `every`; None for none."""
    error = answer.error
    if error is None or sorted(error) != ERROR_FIELDS or not isinstance(error["message"], str):
        return f"no error of OpenAI's shape: {error}"
    allowed = {200: ("server_error",), 400: ("invalid_request_error",)}.get(answer.status, ("server_error",))
    if answer.status not in (200, 400, 500, 503) or error["type"] not in allowed or "Traceback" in error["message"]:
        return f"status {answer.status}, {error}"
    named = {name for name in every if re.search(rf"\b{name}\b", f"{error['param']} {error['message']}")}
    return None if named == {processor} else f"it names {sorted(named)}: {error}"
