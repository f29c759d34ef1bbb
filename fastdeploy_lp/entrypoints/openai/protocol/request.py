"""What request bodies have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from fastdeploy_lp.sampling_params import SamplingParams


class RequestModel(BaseModel):
    """A body that is taken literally: no type coercion, and no field is ignored.

    Clients spell out fields they do not use. An unknown field that is null, and a field of OpenAI's that this server
    does not act on yet but whose value asks for nothing, are accepted.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    without_effect: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = cls.model_fields
        absent = object()
        return {
            name: value
            for name, value in body.items()
            if name in known or not (value is None or value == cls.without_effect.get(name, absent))
        }


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool = False


class GenerationRequest(RequestModel):
    """What chat and text completions share; the limits of sampling fields are those of `SamplingParams`."""

    # Fields that go to SamplingParams under their own names.
    sampling_fields: ClassVar[tuple[str, ...]] = (
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "bad_words",
        "bad_words_token_ids",
        "allowed_token_ids",
        "min_tokens",
        "prompt_logprobs",
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "logits_processors_args",
        "logits_processors",
    )

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    logits_processors_args: dict[str, Any] | None = None
    logits_processors: dict[str, Any] | list[Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed together with stream: true")
        return self

    @model_validator(mode="after")
    def _prompt_logprobs_come_whole(self) -> Self:
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs: only allowed without stream: true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are asked for at each output token; None for no logprobs at all."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sent_name(self, field: str) -> str:
        """The body's name for a field of SamplingParams, or for a path into one."""
        first, dot, rest = field.partition(".")
        return f"{self.other_names.get(first, first)}{dot}{rest}"

    @property
    def other_names(self) -> dict[str, str]:
        """Fields whose name in the body differs."""
        return {"extra_args": "vllm_xargs"}

    def sampling_params(self) -> SamplingParams:
        """Raises ValueError naming the field."""
        given = {name: value for name in self.sampling_fields if (value := getattr(self, name)) is not None}
        return SamplingParams(
            **given,
            max_tokens=self.max_tokens,
            logprobs=self.num_logprobs,
            extra_args=self.vllm_xargs,
            ignore_eos=self.ignore_eos,
        )
