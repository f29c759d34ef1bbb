"""A module of processors right and wrong, and what loading one by its SPEC comes to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fastdeploy_lp.logits_processor import LogitsProcessorSpecError, load_processors

MODULE = '''
from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class Good(LogitsProcessor):
    def __init__(self, fd_config): ...
    def update_state(self, share_inputs): ...
    def apply(self, logits):
        return logits


class Outer:
    class Nested(Good): ...


class Optional(Good):
    def __init__(self, fd_config, extra=1): ...


class LacksApply(LogitsProcessor):
    def __init__(self, fd_config): ...
    def update_state(self, share_inputs): ...


class LacksBoth(LogitsProcessor):
    def __init__(self, fd_config): ...


class Called(LacksApply):
    def __call__(self, logits):
        return logits


class TakesNothing(Good):
    def __init__(self): ...


class TakesTwo(Good):
    def __init__(self, fd_config, tokenizer): ...


class KeywordOnly(Good):
    def __init__(self, *, fd_config): ...


class LogitBiasLogitsProcessor(Good):
    """Has the name of a builtin."""


class NotOne:
    def apply(self, logits):
        return logits


def function(fd_config):
    return Good(fd_config)
'''


def names(*specs: str) -> list[str]:
    return [declared.name for declared in load_processors(specs)]


def refusal(*specs: str, objects: Mapping[str, object] | None = None) -> str:
    with pytest.raises(LogitsProcessorSpecError) as caught:
        load_processors(specs, objects)
    message = str(caught.value)
    assert message.startswith("logits_processors: ")
    assert "\n" not in message
    return message
