"""Messages between the API process and those that check requests: msgpack on their standard input and output."""

from __future__ import annotations

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.sampling_params import SamplingParams

# Raised by the encoder for values that no message can hold.
UNSENDABLE = (TypeError, OverflowError, UnicodeEncodeError)


class TrialStart(msgspec.Struct):
    """The chain to load.

    specs: in their order. mandatory: names. pickled_processors: by SPEC, of those given as objects.
    """

    fd_config: FDConfig
    specs: list[str]
    mandatory: list[str] = []
    pickled_processors: dict[str, bytes] = {}


class Trial(msgspec.Struct):
    """Check this request."""

    params: SamplingParams


class Ready(msgspec.Struct, tag=True):
    """The chain is loaded."""


class Entering(msgspec.Struct, tag=True):
    """The code of this processor runs from now on; `path`: of what it checks in the request."""

    processor: str
    path: str | None


class Accepted(msgspec.Struct, tag=True):
    """The request's choice."""

    selection: Selection


class Refused(msgspec.Struct, tag=True):
    """The reason and the JSON path of what the request cannot have."""

    path: str | None
    reason: str


Reply = Ready | Entering | Accepted | Refused
