"""Common parts of bodies: strict models, omitted fields, time stamps, and the fields of all generating requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from fastdeploy_lp.request.limits import (
    MAX_LOGIT_BIAS,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_OBJECT_FIELDS,
)
from fastdeploy_lp.request.prompt_options import PromptOptions
from fastdeploy_lp.request.sampling_params import SAMPLING_FIELDS, SamplingParams
from fastdeploy_lp.request.trace import TraceParams

Value = TypeVar("Value")


def _is_none(value: object) -> bool:
    return value is None


Omitted = Annotated[Value | None, Field(exclude_if=_is_none)]
"""A field that is omitted if None; declare it with the default None."""


def now() -> int:
    """Returns whole seconds since 1970."""
    return int(time.time())


Entry = TypeVar("Entry")
# Reports only the first invalid entry, since a list may have a million of them.
EachOf = Annotated[list[Entry], Field(fail_fast=True)]
# Fields of SamplingParams that a body passes on as they are; bodies have other forms of the rest.
OF_THE_SAME_NAME = frozenset(SAMPLING_FIELDS) - {"max_tokens", "logprobs", "logits_processors_trace", "prediction"}
# The argument of processors that `thinking_token_budget` is, and the field with arguments.
THINKING_BUDGET, ARGS = "thinking_budget", "logits_processors_args"
# Entries per validation step, during which no other thread runs.
STEP = 4096


def _in_steps(kind: type) -> WrapValidator:
    """Returns a validator for lists of texts or numbers: pydantic would validate a million entries in one step."""

    def validated(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if type(value) is not list or len(value) <= STEP:
            return validate(value)
        steps = (value[begin : begin + STEP] for begin in range(0, len(value), STEP))
        return value if all(set(map(type, step)) == {kind} for step in steps) else validate(value)

    return WrapValidator(validated)


TokenIds = Annotated[EachOf[int], _in_steps(int)]
Texts = Annotated[EachOf[str], _in_steps(str)]

# Seconds from the request's arrival to its whole answer.
Timeout = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Ids appear in logs and headers.
RequestId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")]


def shared_id(request_id: str) -> str:
    """Returns the id of an answer to several prompts, each of which is a separate request."""
    return request_id.rpartition("-")[0]


class RequestModel(BaseModel):
    """A strict body: no type coercion, and no ignored fields.

    Clients send fields that they do not use. A null field counts as absent, and so does a field of `without_effect`
    with one of its listed values; other values are refused with the reason in `unsupported`, as are inherited fields
    that are named there.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {}
    unsupported: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        require_few("fields", body, MAX_OBJECT_FIELDS)
        kept = {name: value for name, value in body.items() if not cls._asks_for_nothing(name, value)}
        for name in kept:
            if name in cls.unsupported:
                raise ValueError(f"{name}: {cls.unsupported[name]}")
        return kept

    @classmethod
    def _asks_for_nothing(cls, name: str, value: Any) -> bool:
        field = cls.model_fields.get(name)
        if value is None:
            return field is None or not field.is_required()
        # 1 == True, but 1 is not true in JSON.
        nothing = cls.without_effect.get(name, ()) if field is None or name in cls.unsupported else ()
        return any(type(value) is type(each) and value == each for each in nothing)


def require_few(what: str, value: Any, most: int) -> None:
    """Raises ValueError for a list or an object of more than `most` entries, before any entry is validated."""
    if isinstance(value, (list, dict)) and len(value) > most:
        raise ValueError(f"at most {most} {what} are allowed, not {len(value)}")


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    # Padding against traffic analysis is unsupported; false requests none.
    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool = False
    continuous_usage_stats: bool = False


class PromptRequest(RequestModel):
    """Fields that decide a prompt's tokens; `PromptOptions` documents them."""

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, json_schema_extra={"minimum": -1})
    truncation_side: Literal["left", "right"] | None = None

    @model_validator(mode="after")
    def _options_are_valid(self) -> Self:
        _ = self.prompt_options
        return self

    @property
    def tokens_to_sample(self) -> int | None:
        """Maximum number of output tokens; None for a prompt that is pooled, and for all that fit."""
        return None

    @property
    def prompt_options(self) -> PromptOptions:
        """The options; raises ValueError naming the field."""
        return PromptOptions(
            add_special_tokens=self.add_special_tokens,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            max_tokens=self.tokens_to_sample,
        )


class TraceOptions(RequestModel):
    """Options of `logits_processors_trace`; `TraceParams` defines the limits."""

    top_k: int | None = None
    max_tokens: int | None = None

    def params(self) -> TraceParams:
        """Returns the trace parameters; raises ValueError naming the field."""
        return TraceParams(**self.model_dump(exclude_none=True))


if TYPE_CHECKING:

    class SamplingRequest(RequestModel):
        """Numbers and flags of SamplingParams that a body has under the same name, all optional."""

        # Fields that other modules read.
        min_tokens: int | None
        skip_special_tokens: bool | None

else:
    SamplingRequest = create_model(
        "SamplingRequest",
        __base__=RequestModel,
        __module__=__name__,
        **{
            name: (field.kind | None, None)
            for name, field in SAMPLING_FIELDS.items()
            if name in OF_THE_SAME_NAME and field.kind in (int, float, bool)
        },
    )


def _describe_sampling(schema: dict[str, Any], body: type[RequestModel]) -> None:
    """Adds help, bounds and `x-control` (a place in the playground) of sampling fields to a body's JSON Schema.

    Removes inherited fields that the body refuses.
    """
    for name in body.unsupported:
        schema["properties"].pop(name, None)
    for name, described in schema["properties"].items():
        field = SAMPLING_FIELDS.get(name)
        # A chat's `logprobs` is a flag with another meaning.
        if field is None or (field.is_number and {"type": "boolean"} in described.get("anyOf", ())):
            continue
        declared = field.declared
        described.setdefault("description", declared.help)
        if declared.low is not None:
            described.setdefault("exclusiveMinimum" if declared.above else "minimum", declared.low)
            described.setdefault("maximum", declared.high)
        if declared.control:
            described["x-control"] = True


class GenerationRequest(SamplingRequest, PromptRequest):
    """Common fields of chat and text completions; `SamplingParams` declares the sampling fields."""

    model_config = ConfigDict(json_schema_extra=_describe_sampling)

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {
        "spaces_between_special_tokens": (True,),
    }
    unsupported: ClassVar[dict[str, str]] = {
        "spaces_between_special_tokens": "only true is allowed",
    }

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    bad_words: Texts | None = None
    bad_words_token_ids: EachOf[TokenIds] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    logit_bias: dict[str, float] | None = None
    logits_processors_args: dict[str, Any] | None = None
    logits_processors: dict[str, Any] | list[Any] | None = None
    logits_processors_shadow: list[str] | None = None
    logits_processors_trace: bool | TraceOptions | None = None
    vllm_xargs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: RequestId | None = None
    timeout: Timeout | None = None
    # OpenAI's packages send these; they mean nothing here.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in-memory", "in_memory", "24h"] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, value: Any) -> Any:
        require_few("tokens", value, MAX_LOGIT_BIAS)
        return value

    @field_validator("metadata", mode="before")
    @classmethod
    def _little_metadata(cls, value: Any) -> Any:
        require_few("entries", value, MAX_METADATA)
        for key, text in value.items() if isinstance(value, dict) else ():
            if len(key) > MAX_METADATA_KEY or (isinstance(text, str) and len(text) > MAX_METADATA_VALUE):
                raise ValueError(
                    f"keys may have {MAX_METADATA_KEY} characters and values {MAX_METADATA_VALUE}, which one exceeds"
                )
        return value

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
    def tokens_to_sample(self) -> int | None:
        """Maximum number of output tokens; None for all that fit."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Number of most likely tokens to report at each output token; None for no logprobs."""
        return None

    @property
    def is_traced(self) -> bool:
        """True if answers have a trace."""
        return bool(self.logits_processors_trace)

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True if every chunk of a stream has the token counts so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sent_name(self, field: str) -> str:
        """Returns the body's name for a field of SamplingParams, or for a path into one."""
        unsent = ARGS if self.logits_processors_args is None else f"{ARGS}.{THINKING_BUDGET}"
        if self.thinking_token_budget is not None and field.startswith(unsent):
            return "thinking_token_budget"
        first, dot, rest = field.partition(".")
        return f"{self.other_names.get(first, first)}{dot}{rest}"

    @property
    def other_names(self) -> dict[str, str]:
        """Fields whose name in the body differs."""
        return {"extra_args": "vllm_xargs"}

    def sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters; raises ValueError naming the field."""
        trace = self.logits_processors_trace
        names = OF_THE_SAME_NAME & type(self).model_fields.keys()
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.thinking_token_budget is not None:
            given[ARGS] = self._args_with_budget(self.thinking_token_budget)
        return SamplingParams(
            **given,
            max_tokens=self.tokens_to_sample,
            logprobs=self.num_logprobs,
            extra_args=self.vllm_xargs,
            logits_processors_trace=trace.params() if isinstance(trace, TraceOptions) else trace,
        )

    def _args_with_budget(self, budget: int) -> dict[str, Any]:
        args = self.logits_processors_args or {}
        if args.get(THINKING_BUDGET, budget) != budget:
            raise ValueError(f"thinking_token_budget: logits_processors_args.{THINKING_BUDGET} says otherwise")
        return {**args, THINKING_BUDGET: budget}
