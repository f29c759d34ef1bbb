"""Pooling parameters of a request; the same class over HTTP and offline."""

from __future__ import annotations

import msgspec

POOLING_TYPES = ("mean", "last")
EMBED, TOKEN_EMBED = "embed", "token_embed"
POOLING_TASKS = (EMBED, TOKEN_EMBED)
# The kind of pooling of TOKEN_EMBED; not a value of `pooling`, since its result is not one vector.
TOKEN_POOLING = "all"


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Parameters for turning the hidden states of a prompt into one vector, or one per token.

    task: "embed" returns one vector, "token_embed" one for each token of the prompt.
    pooling: "mean" over all tokens or "last" token; None for the operator's choice, `--pooling-type`. Not with
        "token_embed".
    dimensions: number of leading values to keep, at least 1; None keeps all `hidden_size`.
    normalize: divide each vector by its Euclidean length, after `dimensions`.

    Raises ValueError naming the field and the allowed values.
    """

    pooling: str | None = None
    dimensions: int | None = None
    normalize: bool = True
    task: str = EMBED

    @property
    def kind(self) -> str | None:
        """The kind of pooling in the worker: `pooling`, or "all" for one vector per token."""
        return TOKEN_POOLING if self.task == TOKEN_EMBED else self.pooling

    def __post_init__(self) -> None:
        if self.task not in POOLING_TASKS:
            raise ValueError(f"task: {self.task!r} is none of {', '.join(POOLING_TASKS)}")
        if self.pooling is not None and self.pooling not in POOLING_TYPES:
            raise ValueError(f"pooling: {self.pooling!r} is none of {', '.join(POOLING_TYPES)}")
        if self.pooling is not None and self.task == TOKEN_EMBED:
            raise ValueError(f"pooling: the task {TOKEN_EMBED} gives the vector of each token, none is made of them")
        is_integer = isinstance(self.dimensions, int) and not isinstance(self.dimensions, bool)
        if self.dimensions is not None and not (is_integer and self.dimensions >= 1):
            raise ValueError(f"dimensions: must be an integer of at least 1, not {self.dimensions!r}")
        if not isinstance(self.normalize, bool):
            raise ValueError(f"normalize: must be true or false, not {self.normalize!r}")
