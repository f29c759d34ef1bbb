"""Turns what a caller asks for into what the worker runs: tokens, and parameters with every default settled."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fastdeploy_lp.config import ModelConfig
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator
from fastdeploy_lp.sampling_params import MAX_SEED, SamplingParams


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt; `text` is None if it came as token ids."""

    token_ids: list[int]
    text: str | None


class InputProcessor:
    """Tokenizes and validates; every refusal is an InvalidRequestError that names the field."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, args_validator: RequestArgsValidator) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._args_validator = args_validator

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """The conversation after the model's chat template."""
        if not messages:
            raise InvalidRequestError("messages", "at least one message is needed")
        text = _require_unicode(self._tokenizer.render_chat(messages), "messages")
        # The template writes the special tokens itself.
        return self._checked(self._tokenizer.encode(text, add_special_tokens=False), text, "messages")

    def prompt(self, prompt: str | Sequence[int]) -> Prompt:
        """A text or token-id prompt."""
        if isinstance(prompt, str):
            text = _require_unicode(prompt, "prompt")
            return self._checked(self._tokenizer.encode(text), text, "prompt")
        for index, token in enumerate(prompt):
            self._check_token_id(f"prompt.{index}", token)
        return self._checked(list(prompt), None, "prompt")

    def settle(self, params: SamplingParams, prompt: Prompt) -> SamplingParams:
        """A copy of the parameters that leaves nothing open: token limit, seed and processor arguments."""
        room = self._config.max_model_len - len(prompt.token_ids)
        if params.max_tokens is not None and params.max_tokens > room:
            raise InvalidRequestError(
                "max_tokens",
                f"{params.max_tokens} is too many: the context holds {self._config.max_model_len} tokens, "
                f"the prompt has {len(prompt.token_ids)}, which leaves {room}",
                "context_length_exceeded",
            )
        for index, token in enumerate(params.stop_token_ids or []):
            self._check_token_id(f"stop_token_ids.{index}", token)
        try:
            args = self._args_validator.validate(params.logits_processors_args)
        except RequestArgsError as error:
            raise InvalidRequestError(error.path, error.reason) from None
        return msgspec.structs.replace(
            params,
            max_tokens=params.max_tokens or room,
            seed=params.seed if params.seed is not None else secrets.randbits(64),
            logits_processors_args=args,
        )

    def sequence_params(self, settled: SamplingParams, index: int) -> SamplingParams:
        """The parameters of the `index`-th of `n` completions: one sequence, a seed of its own."""
        seed = ((settled.seed or 0) + index) & MAX_SEED
        return msgspec.structs.replace(settled, n=1, stop=None, seed=seed)

    def _checked(self, token_ids: list[int], text: str | None, param: str) -> Prompt:
        limit = self._config.max_model_len
        if not token_ids:
            raise InvalidRequestError(param, "the prompt is empty")
        if len(token_ids) >= limit:
            raise InvalidRequestError(
                param,
                f"the prompt has {len(token_ids)} tokens; the context holds {limit}, at least one of them for output",
                "context_length_exceeded",
            )
        return Prompt(token_ids, text)

    def _check_token_id(self, param: str, token: object) -> None:
        size = self._config.vocab_size
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise InvalidRequestError(param, f"{token!r} is no token id; allowed are 0 to {size - 1}")


def _require_unicode(text: str, param: str) -> str:
    """Half a surrogate pair can stand in a JSON string, but it is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(param, f"no valid Unicode: {error.reason}") from None
    return text
