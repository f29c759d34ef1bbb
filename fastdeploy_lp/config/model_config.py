"""The model that is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.config.option_values import json_object, option, require_model_impl
from fastdeploy_lp.request.pooling_params import POOLING_TYPES
from fastdeploy_lp.request.sampling_params import SamplingParams

DEFAULT_POOLING_TYPE = "last"
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
QUANTIZATIONS = ("w8a8", "w8a16")
MODEL_IMPLS = ("auto", "native", "paddleformers")
# Of `override_generation_config`.
SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def default_sampling(text: str) -> dict[str, float]:
    """Returns the fields of a JSON object; raises ValueError for other text, fields and values."""
    given = json_object(text, '{"temperature": 0.2}')
    for name in given:
        if name not in SAMPLING_FIELDS:
            raise ValueError(f"{name} is not allowed; allowed are {', '.join(SAMPLING_FIELDS)}")
    SamplingParams(**given)
    return given


def require_default_sampling(name: str, value: str) -> None:
    """Raise ValueError naming the option unless `default_sampling` accepts its value."""
    try:
        default_sampling(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True)
class ModelConfig:
    """The model that is served.

    `dtype` is the element type of weights and activations (logits are float32); on the CPU, bfloat16 is what products
    round both to. `quantization` is what they are rounded to instead (None, "w8a8" or "w8a16"); `hf_config` is the
    parsed `config.json`; `logprobs_mode` says which numbers requests for logprobs get, `pooling_type` how embeddings
    are pooled unless a request says otherwise ("mean" or "last"). With `skip_tokenizer_init` requests and answers are
    token ids. `model_sampling` has the sampling that the model's authors recommend. Answers report
    `served_model_name`; requests may also use `other_served_names`. `model_impl` is one of MODEL_IMPLS.
    """

    model: str
    directory: str
    served_model_name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str = "float32"
    quantization: str | None = option(
        None,
        group="Model",
        help="8-bit weights with activations of 8 bits (w8a8) or 16 (w8a16, on a GPU the only one) (default: float32)",
        choices=QUANTIZATIONS,
    )
    hf_config: dict[str, Any] = field(default_factory=dict)
    logprobs_mode: str = option(
        "raw_logprobs",
        group="Logits processors",
        help="logprobs of the model's own logits, or of those after processors, penalties and filters",
        choices=LOGPROBS_MODES,
    )
    pooling_type: str = option(
        DEFAULT_POOLING_TYPE,
        group="Model",
        help="pooling of embeddings: the mean of all hidden states of the prompt, or the last one",
        choices=POOLING_TYPES,
    )
    skip_tokenizer_init: bool = option(
        False,
        group="Model",
        help="serve token ids alone: read no tokenizer, take prompts as token ids and answer with them",
    )
    override_generation_config: str | None = option(
        None,
        group="Model",
        help='sampling of requests that do not set it, a JSON object: {"temperature": 0.2} (default: the model\'s)',
        check=require_default_sampling,
    )
    model_impl: str = option(
        "auto",
        group="Model",
        help="who computes the model: this server's own families, PaddleFormers, or auto: the first that has it",
        choices=MODEL_IMPLS,
        check=require_model_impl,
    )
    model_sampling: dict[str, float] = field(default_factory=dict)
    other_served_names: tuple[str, ...] = ()

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names that requests may use; `served_model_name` is the first."""
        return (self.served_model_name, *self.other_served_names)

    @property
    def default_sampling(self) -> dict[str, float]:
        """Values of sampling fields for requests over HTTP, and of `fastdeploy-lp chat`, that do not set them."""
        given = self.override_generation_config
        return self.model_sampling if given is None else default_sampling(given)
