"""What one embedding request asks for; the same class over HTTP and offline."""

from __future__ import annotations

import msgspec

POOLING_TYPES = ("mean", "last")


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the hidden states of a prompt become one vector.

    pooling: "mean" over all tokens or "last" token; None for what the operator chose with `--pooling-type`.
    dimensions: keep so many of the first numbers, at least 1; None keeps all `hidden_size`.
    normalize: divide by the Euclidean length, after `dimensions`.

    Raises ValueError naming the field and what is allowed.
    """

    pooling: str | None = None
    dimensions: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in POOLING_TYPES:
            raise ValueError(f"pooling: {self.pooling!r} is none of {', '.join(POOLING_TYPES)}")
        is_integer = isinstance(self.dimensions, int) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and not (is_integer and self.dimensions >= 1):
            raise ValueError(f"dimensions: must be an integer of at least 1, not {self.dimensions!r}")
        if not isinstance(self.normalize, bool):
            raise ValueError(f"normalize: must be true or false, not {self.normalize!r}")
