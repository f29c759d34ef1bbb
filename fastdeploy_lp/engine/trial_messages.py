"""Messages between the API process and the processes that try arguments: msgpack on their standard input and output."""

from __future__ import annotations

from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig


class TrialStart(msgspec.Struct):
    """The processors to load: `specs` by declared name, `pickled_processors` by SPEC for those given as objects."""

    fd_config: FDConfig
    specs: dict[str, str]
    pickled_processors: dict[str, bytes] = {}


class Trial(msgspec.Struct):
    """Try these arguments on the processor of that name."""

    name: str
    args: dict[str, Any]


class TrialResult(msgspec.Struct):
    """`refusal`: why the arguments cannot be used, None if they can. The first one says that the process is ready."""

    refusal: str | None = None
