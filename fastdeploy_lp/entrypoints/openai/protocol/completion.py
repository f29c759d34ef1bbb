"""Bodies of POST /v1/completions."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.logprobs import CompletionLogprobs, PromptLogprobs
from fastdeploy_lp.entrypoints.openai.protocol.guided import GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.request import EachOf, Omitted, Texts, TokenIds, now
from fastdeploy_lp.entrypoints.openai.protocol.trace import ShadowCounts, TokenTraceBody
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.request.outputs import ProcessorOutputs, StopCause
from fastdeploy_lp.request.sampling_params import SamplingParams


class CompletionRequest(GuidedRequest):
    """Body of POST /v1/completions; each prompt of a list yields `n` choices, in order.

    `prompt_token_ids` replace the prompt if both are set. `echo` puts the prompt before each choice; with `max_tokens`
    0, the prompt is the whole choice. Of `best_of` candidates, the answer has the `n` with the highest log probability
    per token.
    """

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {**GuidedRequest.without_effect, "suffix": ("",)}
    unsupported: ClassVar[dict[str, str]] = {
        **GuidedRequest.unsupported,
        "suffix": "text can not be inserted; this server only goes on with prompts",
    }

    prompt_token_ids: TokenIds | EachOf[TokenIds] | None = None
    prompt: str | TokenIds | Texts | EachOf[TokenIds] = Field(min_length=1)
    # OpenAI's default for completions; a chat runs to its end by default. 0 only echoes.
    max_tokens: int | None = Field(16, json_schema_extra={"minimum": 0})
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _token_ids_stand_in(cls, body: Any) -> Any:
        if isinstance(body, dict) and body.get("prompt_token_ids") is not None:
            return {**body, "prompt": body["prompt_token_ids"]}
        return body

    @model_validator(mode="after")
    def _best_of_at_least_n(self) -> Self:
        if self.best_of is None:
            return self
        if self.best_of < (self.n or 1):
            raise ValueError(f"best_of: must be at least n, which is {self.n or 1}, not {self.best_of}")
        if self.stream and self.chooses:
            raise ValueError("best_of: more than n is only allowed without stream: true")
        return self

    @property
    def chooses(self) -> bool:
        """True if more candidates are generated than returned."""
        return self.best_of is not None and self.best_of > (self.n or 1)

    @property
    def only_echoes(self) -> bool:
        """True if only the prompt is requested."""
        return self.echo and self.max_tokens == 0

    @property
    def prompt_logprobs_field(self) -> str:
        """The field that requests the prompt's logprobs."""
        return "prompt_logprobs" if self.prompt_logprobs is not None else "logprobs"

    @property
    def tokens_to_sample(self) -> int | None:
        """`max_tokens`; 1 for an echo-only request, whose prompt logprobs need one step."""
        return 1 if self.only_echoes else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """The body's `logprobs`."""
        return self.logprobs

    def sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters, with prompt logprobs for `echo` and logprobs to rank candidates."""
        if self.only_echoes and self.min_tokens:
            raise ValueError("min_tokens: must be at most max_tokens, which is 0")
        params = super().sampling_params()
        if self.echo and self.logprobs is not None:
            params.prompt_logprobs = max(self.logprobs, self.prompt_logprobs or 0)
        return self._with_candidates(params) if self.chooses else params

    def _with_candidates(self, params: SamplingParams) -> SamplingParams:
        try:
            return msgspec.structs.replace(params, n=self.best_of or 1, logprobs=self.logprobs or 0)
        except ValueError as error:
            raise ValueError(f"best_of{str(error).removeprefix('n')}") from None


def new_completion_id(request_id: str | None = None) -> str:
    """Returns an id for a text completion, derived from the request's id if it has one."""
    return f"cmpl-{(request_id or uuid.uuid4().hex).removeprefix('cmpl-')}"


class TextChoice(BaseModel):
    """One text completion, or one piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopCause | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: Omitted[list[int]] = None
    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_shadow: Omitted[dict[str, ShadowCounts]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None


class CompletionResponse(BaseModel):
    """Body of a text completion, and of each event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=now)
    model: str
    choices: list[TextChoice]
    usage: Omitted[Usage] = None
