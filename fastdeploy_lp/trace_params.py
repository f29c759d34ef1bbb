"""Trace parameters of a request."""

from __future__ import annotations

import msgspec

MAX_TRACE_TOP_K = 20
DEFAULT_TRACE_TOP_K = 8


class TraceParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Extent of a request's trace, which shows how each token was chosen from the model's logits.

    top_k: number of most likely tokens reported at each stage, 1 to 20.
    max_tokens: number of traced tokens of each completion, from the first, 1 or more. None traces all tokens of the
        request, or the server's limit if the request has no length limit.

    Raises ValueError naming the field.
    """

    top_k: int = DEFAULT_TRACE_TOP_K
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _require("top_k", self.top_k, MAX_TRACE_TOP_K)
        if self.max_tokens is not None:
            _require("max_tokens", self.max_tokens, None)

    @classmethod
    def of(cls, given: object) -> TraceParams | None:
        """Converts a value of `logits_processors_trace`: True, False, None, a dict of the fields, or an instance."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, dict):
            for name in given:
                if name not in cls.__struct_fields__:
                    raise ValueError(f"logits_processors_trace.{name}: is unknown here; known are top_k and max_tokens")
            return cls(**given)
        if not isinstance(given, cls):
            raise ValueError(f"logits_processors_trace: must be true or an object, not {given!r}")
        return given


def _require(name: str, value: object, most: int | None) -> None:
    allowed = "an integer of at least 1" if most is None else f"an integer from 1 to {most}"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise ValueError(f"logits_processors_trace.{name}: must be {allowed}, not {value!r}")
