"""What a client read, in one form for chats and completions, plain and streamed, whatever language the client is in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """One choice; `calls` are names and arguments, `logprobs` the lists of OpenAI's object by name."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)

    def gain(self, body: dict[str, Any]) -> None:
        """Take a plain choice, or what one more chunk says of it."""
        message = body.get("message") or body.get("delta") or {}
        self.text += message.get("content") or body.get("text") or ""
        self.reasoning += message.get("reasoning_content") or ""
        for place, call in enumerate(message.get("tool_calls") or []):
            self._gain_call(call.get("index", place), call["function"])
        self.finish_reason = body.get("finish_reason") or self.finish_reason
        self.stop_reason = body.get("stop_reason") or self.stop_reason
        self.token_ids += body.get("token_ids") or []
        for name, values in (body.get("logprobs") or {}).items():
            if values is not None:
                self.logprobs[name] = self.logprobs.get(name, []) + values

    def _gain_call(self, index: int, function: dict[str, Any]) -> None:
        if index == len(self.calls):
            self.calls.append(("", ""))
        name, arguments = self.calls[index]
        self.calls[index] = (name + (function.get("name") or ""), arguments + (function.get("arguments") or ""))


@dataclass
class Answer:
    """What does not depend on the way it was asked for is compared; `bodies` are all that came."""

    choices: list[Choice]
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[Any] | None
    id: str = field(compare=False)
    model: str = field(compare=False)
    bodies: list[dict[str, Any]] = field(compare=False, repr=False)

    @property
    def choice(self) -> Choice:
        """The only one."""
        (only,) = self.choices
        return only

    @property
    def texts(self) -> list[str]:
        """Of all choices."""
        return [choice.text for choice in self.choices]


def answer_of(bodies: list[dict[str, Any]]) -> Answer:
    """Of one plain answer, or of all chunks of a stream in their order."""
    choices: dict[int, Choice] = {}
    prompt: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for body in bodies:
        usage = body.get("usage") or usage
        for each in [body, *body["choices"]]:
            prompt |= {name: each[name] for name in ("prompt_token_ids", "prompt_logprobs") if each.get(name)}
        for choice in body["choices"]:
            choices.setdefault(choice["index"], Choice()).gain(choice)
    return Answer(
        choices=[choices[index] for index in sorted(choices)],
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_output_tokens=usage.get("completion_tokens"),
        prompt_token_ids=prompt.get("prompt_token_ids"),
        prompt_logprobs=prompt.get("prompt_logprobs"),
        id=bodies[0]["id"],
        model=bodies[0]["model"],
        bodies=bodies,
    )
