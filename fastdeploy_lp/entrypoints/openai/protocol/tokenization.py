"""Bodies of /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.chat import FewMessages
from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel, TokenIds
from fastdeploy_lp.entrypoints.openai.protocol.tool import FewTools


class TokenizeRequest(RequestModel):
    """Body of POST /tokenize: a text, or a conversation to render with the model's chat template.

    `add_special_tokens` defaults to true for a text, and to false for a conversation, whose template adds special
    tokens itself. The template's fields are the same as in a chat completion.
    """

    model: str | None = None
    prompt: str | None = None
    messages: FewMessages | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None
    tools: FewTools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: either prompt or messages must be given, and not both")
        for name in ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"):
            if self.prompt is not None and getattr(self, name):
                raise ValueError(f"{name}: only allowed together with messages")
        return self


class TokenizeResponse(BaseModel):
    """Body of the answer: `count` token ids in `tokens`, and the text of each in `token_strs` if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


class DetokenizeResponse(BaseModel):
    """The text of the tokens, including special tokens."""

    prompt: str
