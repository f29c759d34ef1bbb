"""The frequencies of rotary embedding, and the ways in which models stretch them to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.config_field import flag, positive_float, positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError

FloatArray = NDArray[np.float64]
DEFAULT_THETA = 10000.0


@dataclass(frozen=True)
class RopeSettings:
    """Settings of rotary embedding in `config.json`, in either spelling.

    parameters: of the scaling. prefix: precedes their names in errors. max_position_embeddings: in place of the
    original context where that is not said.
    """

    theta: float
    head_dim: int
    kind: str
    parameters: Mapping[str, Any]
    prefix: str
    max_position_embeddings: int

    @classmethod
    def of(cls, hf_config: Mapping[str, Any], head_dim: int) -> RopeSettings:
        """From `rope_parameters`, or from `rope_theta` with `rope_scaling`; raises CheckpointError naming a field."""
        name = "rope_parameters" if hf_config.get("rope_parameters") else "rope_scaling"
        parameters = hf_config.get(name) or {}
        if not isinstance(parameters, dict):
            raise CheckpointError(f"config.json: {name} is {parameters!r}; it must be an object")
        theta = positive_float(hf_config, "rope_theta", DEFAULT_THETA)
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        own = hf_config.get("original_max_position_embeddings")
        if own is not None and "original_max_position_embeddings" not in parameters:
            parameters = parameters | {"original_max_position_embeddings": own}
        return cls(
            theta=positive_float(parameters, "rope_theta", theta, prefix=f"{name}."),
            head_dim=head_dim,
            kind=str(kind),
            parameters=parameters,
            prefix=f"{name}.",
            max_position_embeddings=positive_int(hf_config, "max_position_embeddings", 2048),
        )

    def number(self, field: str, default: float | None = None) -> float:
        """A parameter of the scaling; raises CheckpointError unless it is a number above 0."""
        return positive_float(self.parameters, field, default, prefix=self.prefix)

    @property
    def original_context(self) -> float:
        """Positions that the model was trained on before it was stretched."""
        return self.number("original_max_position_embeddings", self.max_position_embeddings)

    @property
    def frequencies(self) -> FloatArray:
        """Radians a position [head_dim / 2], not stretched."""
        exponents: FloatArray = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        return self.theta**-exponents


@dataclass(frozen=True)
class RopeFrequencies:
    """Radians a position [head_dim / 2], and what cosine and sine are multiplied by."""

    frequencies: FloatArray
    attention_factor: float = 1.0


def rope_frequencies(hf_config: Mapping[str, Any], head_dim: int) -> RopeFrequencies:
    """Returns the frequencies for `config.json`. Raises CheckpointError for an unknown kind, listing the known ones."""
    settings = RopeSettings.of(hf_config, head_dim)
    if settings.kind not in KINDS:
        raise CheckpointError(
            f"config.json: {settings.prefix}rope_type {settings.kind!r} is not supported; supported are "
            f"{', '.join(sorted(KINDS))}"
        )
    return KINDS[settings.kind](settings)


def _default(settings: RopeSettings) -> RopeFrequencies:
    return RopeFrequencies(settings.frequencies)


def _linear(settings: RopeSettings) -> RopeFrequencies:
    return RopeFrequencies(settings.frequencies / settings.number("factor"))


def _llama3(settings: RopeSettings) -> RopeFrequencies:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (settings.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise CheckpointError(
            f"config.json: {settings.prefix}low_freq_factor {low} is not below high_freq_factor {high}"
        )
    rotations = settings.original_context * settings.frequencies / (2 * np.pi)
    kept = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return RopeFrequencies(settings.frequencies * (kept + (1 - kept) / factor))


def _yarn(settings: RopeSettings) -> RopeFrequencies:
    """YaRN (Peng et al., 2023): a ramp over the dimensions between two numbers of rotations; scores are sharpened."""
    factor = settings.number("factor")
    # Many rotations within the original context: kept. Few: stretched.
    kept_until = _dimension_with(settings, settings.number("beta_fast", 32.0))
    stretched_from = _dimension_with(settings, settings.number("beta_slow", 1.0))
    if flag(settings.parameters, "truncate", default=True):
        kept_until, stretched_from = math.floor(kept_until), math.ceil(stretched_from)
    kept_until, stretched_from = max(kept_until, 0), min(stretched_from, settings.head_dim - 1)
    width = stretched_from - kept_until or 0.001
    stretched = np.clip((np.arange(settings.head_dim // 2) - kept_until) / width, 0.0, 1.0)
    frequencies = settings.frequencies * (1 - stretched + stretched / factor)
    return RopeFrequencies(frequencies, _yarn_attention_factor(settings, factor))


def _dimension_with(settings: RopeSettings, rotations: float) -> float:
    """Returns the dimension, of head_dim / 2, with this number of rotations within the original context."""
    wavelength = settings.original_context / rotations
    return settings.head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(settings.theta))


def _yarn_attention_factor(settings: RopeSettings, factor: float) -> float:
    def sharpening(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.parameters.get("attention_factor") is not None:
        return settings.number("attention_factor")
    if settings.parameters.get("mscale") and settings.parameters.get("mscale_all_dim"):
        return sharpening(settings.number("mscale")) / sharpening(settings.number("mscale_all_dim"))
    return sharpening(1.0)


KINDS: dict[str, Callable[[RopeSettings], RopeFrequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
