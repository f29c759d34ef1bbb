"""Messages between the API process and request-checking processes: msgpack on their standard input and output."""

from __future__ import annotations

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.sampling_params import SamplingParams

# Raised by the encoder for values that msgpack cannot represent.
UNSENDABLE = (TypeError, OverflowError, UnicodeEncodeError)


class TrialStart(msgspec.Struct):
    """The chain of processors to load.

    specs: in chain order. mandatory: names. pickled_processors: by SPEC, processors given as objects.
    """

    fd_config: FDConfig
    specs: list[str]
    mandatory: list[str] = []
    pickled_processors: dict[str, bytes] = {}


class Trial(msgspec.Struct):
    """A request to check."""

    params: SamplingParams


class Ready(msgspec.Struct, tag=True):
    """The chain is loaded."""


class Entering(msgspec.Struct, tag=True):
    """This processor's code is about to run; `path`: the request field that it checks."""

    processor: str
    path: str | None


class Accepted(msgspec.Struct, tag=True):
    """The request's validated selection."""

    selection: Selection


class Refused(msgspec.Struct, tag=True):
    """A refusal: the reason and the JSON path of the invalid field."""

    path: str | None
    reason: str


Reply = Ready | Entering | Accepted | Refused
