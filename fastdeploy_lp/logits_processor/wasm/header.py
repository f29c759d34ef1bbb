"""The C header that describes the interface to authors."""

from __future__ import annotations

from importlib.resources import files

HEADER = "logits_processor.h"


def header_text() -> str:
    """Returns the header."""
    return files("fastdeploy_lp.logits_processor.wasm").joinpath("include", HEADER).read_text()
