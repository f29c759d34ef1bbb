"""A request's parameters for processors in vLLM's style: the caller's, with the engine's additions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdeploy_lp.sampling_params import SamplingParams


class ServedParams(SamplingParams, kw_only=True):
    """A copy for one processor; it never leaves the worker.

    extra_args: the arguments that this processor sees of the request, None for none.
    logit_bias: the argument of that name, if it has OpenAI's form.
    model_eos_token_ids: the model's end-of-sequence tokens, the primary one first.
    """

    model_eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, params: SamplingParams, args: Mapping[str, Any], model_eos_token_ids: tuple[int, ...] = ()
    ) -> ServedParams:
        """Returns a copy of a slot's parameters with the arguments that a processor sees of it."""
        fields = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
        seen: dict[str, Any] = {"extra_args": dict(args) or None, "logit_bias": _bias(args.get("logit_bias"))}
        return cls(**(fields | seen), model_eos_token_ids=model_eos_token_ids)

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends the output by itself; None with `ignore_eos`, as in vLLM."""
        return None if self.ignore_eos else next(iter(self.model_eos_token_ids), None)

    @property
    def all_stop_token_ids(self) -> set[int]:
        """`stop_token_ids` and the model's end-of-sequence tokens, with `ignore_eos` too, as in vLLM."""
        return {*(self.stop_token_ids or ()), *self.model_eos_token_ids}


def _bias(given: object) -> dict[int, float] | None:
    if not isinstance(given, Mapping):
        return None
    try:
        return {int(token): float(value) for token, value in given.items()} or None
    except (TypeError, ValueError):
        return None
