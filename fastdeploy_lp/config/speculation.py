"""The option `speculative_config`: draft tokens that a step verifies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fastdeploy_lp.config.model_config import QUANTIZATIONS
from fastdeploy_lp.config.option_values import json_object

NGRAM, GRAMMAR, AUTO = "ngram", "grammar", "auto"
LAYOUT, FORCED, SUFFIX, DRAFT_MODEL = "layout", "forced", "suffix", "draft_model"
METHODS = (AUTO, NGRAM, GRAMMAR, LAYOUT, FORCED, SUFFIX, DRAFT_MODEL)
# The sources that AUTO combines; of drafts that are expected to be equally good, the first source's counts.
IN_AUTO = (FORCED, GRAMMAR, LAYOUT, NGRAM)
MAX_DRAFT = 64
# Bounds of the answers that SUFFIX keeps; a token takes up to 48 bytes.
MIN_SUFFIX_TOKENS, MAX_SUFFIX_TOKENS = 10_000, 100_000_000


@dataclass(frozen=True)
class Speculation:
    """Sources of draft tokens, and the number that a step verifies for one sequence.

    method: one source, or a list of them, of which the most promising draft counts. "ngram" repeats the text that
    followed the last tokens before, in the prompt, the output or the request's prediction; "grammar" takes the tokens
    that a request's grammar forces; "layout" takes marks and white space of earlier guided answers to the same client;
    "forced" takes the phrases that its logits processors write; "suffix" repeats answers to other requests of the same
    client; "draft_model" asks a second, smaller model; "auto" is the sources of `IN_AUTO`; "module:Class" names a
    package's drafter, which is built with the configuration.
    num_speculative_tokens: at most this many for a sequence and step.
    prompt_lookup_min, prompt_lookup_max: tokens that must match, and tokens beyond which a longer match says no more.
    suffix_max_tokens: tokens of answers that "suffix" keeps, of all clients together; new ones replace the oldest.
    adaptive: draft only what is likely to pay off on this machine; False for all that is found.
    model: the second model of "draft_model": a directory, a GGUF file or a name. quantization: that model's.
    """

    method: str | tuple[str, ...] = AUTO
    num_speculative_tokens: int = 8
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 8
    suffix_max_tokens: int = 1_000_000
    adaptive: bool = True
    model: str | None = None
    quantization: str | None = None

    def __post_init__(self) -> None:
        for name in self.method if isinstance(self.method, tuple) and self.method else (self.method,):
            if name not in METHODS and not (isinstance(name, str) and ":" in name):
                allowed = f"it must be one of {', '.join(METHODS)}, or module:Class, or a list of them"
                raise ValueError(f"method: {name!r} is not allowed; {allowed}")
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            self._require_integer(name, 1, MAX_DRAFT)
        self._require_integer("suffix_max_tokens", MIN_SUFFIX_TOKENS, MAX_SUFFIX_TOKENS)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(f"prompt_lookup_min: must be at most prompt_lookup_max, which is {self.prompt_lookup_max}")
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive: {self.adaptive!r} is not allowed; it must be true or false")
        self._require_what_goes_together()

    def _require_what_goes_together(self) -> None:
        if DRAFT_MODEL not in self.sources:
            for name in ("model", "quantization"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: is allowed with the method {DRAFT_MODEL} only")
            return
        if not isinstance(self.model, str) or not self.model.strip():
            allowed = "it must be a model directory, a GGUF file or a name"
            raise ValueError(f"model: {self.model!r} is not allowed with the method {DRAFT_MODEL}; {allowed}")
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            allowed = f"it must be null or one of {', '.join(QUANTIZATIONS)}"
            raise ValueError(f"quantization: {self.quantization!r} is not allowed; {allowed}")

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of drafts, without repetition: names of `METHODS` except "auto", and module:Class."""
        return tuple(dict.fromkeys(each for name in self._named for each in (IN_AUTO if name == AUTO else (name,))))

    def _require_integer(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name}: {value!r} is not allowed; it must be an integer from {least} to {most}")

    @property
    def _named(self) -> tuple[str, ...]:
        return (self.method,) if isinstance(self.method, str) else self.method


NAMES = tuple(field.name for field in fields(Speculation))


def speculation_of(given: str | dict[str, Any] | None) -> Speculation | None:
    """Returns the settings of a JSON object, or of its text; raises ValueError naming what is wrong in it."""
    if given is None:
        return None
    found = json_object(given, '{"method": "ngram"}')
    for name in found:
        if name not in NAMES:
            raise ValueError(f"{name} is not allowed; allowed are {', '.join(NAMES)}")
    several = {"method": tuple(found["method"])} if isinstance(found.get("method"), list) else {}
    return Speculation(**found | several)


def require_speculation(name: str, value: str | dict[str, Any]) -> None:
    """Raises ValueError naming the option unless `speculation_of` accepts its value."""
    try:
        speculation_of(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
