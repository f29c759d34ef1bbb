"""Modules of other servers' names, as --vllm-compat and --fastdeploy-compat install them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fastdeploy_lp.logits_processor import fastdeploy_compat, vllm_compat


@contextmanager
def vllm_stand_ins() -> Iterator[None]:
    """vLLM's module names lead to stand-ins, as with --vllm-compat."""
    assert "vllm" not in sys.modules
    vllm_compat.install()
    try:
        yield
    finally:
        _forget("vllm")


@contextmanager
def fastdeploy_stand_ins() -> Iterator[None]:
    """FastDeploy's module names lead to stand-ins, as with --fastdeploy-compat."""
    fastdeploy_compat.install()
    try:
        yield
    finally:
        _forget("fastdeploy", "paddleformers")


def _forget(*packages: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
