"""Which dialect a thing is written in, and what is wrong with one that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.declared import refusal

from fastdeploy_lp.logits_processor import load_processors

DIALECTS_MODULE = """
from pydantic import BaseModel

from fastdeploy_lp.logits_processor import vllm_mrv2
from fastdeploy_lp.logits_processor.vllm_v1 import AdapterLogitsProcessor, LogitsProcessor


class Vllm(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory): ...
    def is_argmax_invariant(self):
        return False
    def update_state(self, batch_update): ...
    def apply(self, logits):
        return logits


class SlotKeyed(vllm_mrv2.LogitsProcessor):
    def apply(self, logits, ctx):
        return logits


class SlotKeyedTakesThree(SlotKeyed):
    def __init__(self, vllm_config, device, is_pin_memory): ...


class SlotKeyedWithoutApply(vllm_mrv2.LogitsProcessor): ...


class Request(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False
    def new_req_logits_processor(self, params):
        return None


class NotInherited:
    def __init__(self, vllm_config, device, is_pin_memory): ...
    def is_argmax_invariant(self):
        return False
    def update_state(self, batch_update): ...
    def apply(self, logits):
        return logits


class NoInvariant(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory): ...
    def update_state(self, batch_update): ...
    def apply(self, logits):
        return logits


class NoUpdate(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory): ...
    def is_argmax_invariant(self):
        return False
    def apply(self, logits):
        return logits


class Called(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory): ...
    def is_argmax_invariant(self):
        return False
    def update_state(self, batch_update): ...
    def __call__(self, logits):
        return logits


class TakesConfigAlone(Vllm):
    def __init__(self, vllm_config): ...


class TakesFour(Vllm):
    def __init__(self, vllm_config, device, is_pin_memory, temperature): ...


class TakesNothing(Vllm):
    def __init__(self): ...


class NoFactory(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False


class Parameters(BaseModel):
    token_id: int


class Plugin:
    def __init__(self, tokenizer, parameters): ...
    def __call__(self, token_ids, logits):
        return logits


class Uncallable:
    def __init__(self, tokenizer, parameters): ...


class PluginTakesOne(Plugin):
    def __init__(self, tokenizer): ...


GOOD = {"logits_processor_class": Plugin, "parameters_model": Parameters}
NO_CLASS = {"parameters_model": Parameters}
CLASS_IS_NONE = {"logits_processor_class": Plugin(1, 2), "parameters_model": Parameters}
UNCALLABLE = {"logits_processor_class": Uncallable, "parameters_model": Parameters}
NO_MODEL = {"logits_processor_class": Plugin}
MODEL_IS_NONE = {"logits_processor_class": Plugin, "parameters_model": dict}
TAKES_ONE = {"logits_processor_class": PluginTakesOne, "parameters_model": Parameters}
MISSPELT = {"logit_processor_class": Plugin, "parameters_model": Parameters}
"""


@pytest.fixture
def dialects(folder: Path) -> None:
    (folder / "dialects.py").write_text(DIALECTS_MODULE)


def test_every_dialect_is_recognized(dialects: None) -> None:
    expected = {
        "dialects:SlotKeyed": ("SlotKeyed", "vllm-mrv2"),
        "dialects:Vllm": ("Vllm", "vllm-v1"),
        "dialects:Request": ("Request", "request"),
        "dialects:GOOD": ("Plugin", "plugin-dict"),
        "mine:Good": ("Good", "native"),
        "transformers:TemperatureLogitsWarper": ("TemperatureLogitsWarper", "torch"),
    }
    assert [(each.name, each.dialect.name) for each in load_processors(list(expected))] == list(expected.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NotInherited", "must be a subclass of LogitsProcessor"),
        ("NotInherited", "fastdeploy_lp.logits_processor.vllm_mrv2 or .vllm_v1"),
        ("NoInvariant", "has no is_argmax_invariant, which every vLLM V1 LogitsProcessor needs"),
        ("NoUpdate", "has no update_state, which every vLLM V1 LogitsProcessor needs"),
        ("Called", "has no apply"),
        ("Called", "rename __call__ to apply"),
        ("TakesConfigAlone", "write its constructor as def __init__(self, vllm_config, device, is_pin_memory)"),
        ("TakesFour", "missing a required argument: 'temperature'"),
        ("TakesFour", "write its constructor as def __init__(self, vllm_config, device, is_pin_memory)"),
        ("TakesNothing", "write its constructor as def __init__(self, vllm_config, device, is_pin_memory)"),
        ("NoFactory", "has no new_req_logits_processor"),
        ("SlotKeyedTakesThree", "write its constructor as def __init__(self, vllm_config, req_states)"),
        ("SlotKeyedWithoutApply", "has no apply, which every slot-keyed vLLM LogitsProcessor needs"),
    ],
)
def test_mistakes_of_classes_in_vllms_style_say_what_to_write(dialects: None, name: str, expected: str) -> None:
    message = refusal(f"dialects:{name}")
    assert f"'dialects:{name}'" in message
    assert expected in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NO_CLASS", "logits_processor_class"),
        ("MISSPELT", "logits_processor_class"),
        ("CLASS_IS_NONE", "['logits_processor_class'] must be a class with __call__(self, token_ids, logits)"),
        ("UNCALLABLE", "['logits_processor_class'] must be a class with __call__(self, token_ids, logits)"),
        ("NO_MODEL", "['parameters_model'] must be a pydantic model, class Parameters(BaseModel)"),
        ("MODEL_IS_NONE", "['parameters_model'] must be a pydantic model, class Parameters(BaseModel)"),
        ("TAKES_ONE", "write def __init__(self, tokenizer, parameters)"),
    ],
)
def test_mistakes_of_plugin_dicts_say_what_to_write(dialects: None, name: str, expected: str) -> None:
    message = refusal(f"dialects:{name}")
    assert f"'dialects:{name}'" in message
    assert expected in message


def test_a_missing_name_lists_the_processors_of_every_dialect(dialects: None) -> None:
    message = refusal("dialects:Missing")
    for name in ("Vllm", "SlotKeyed", "Request", "GOOD"):
        assert name in message
    assert "NotInherited" not in message


@pytest.mark.parametrize("base", ["LogitsProcessor", "AdapterLogitsProcessor"])
def test_an_imported_base_class_is_not_listed_as_a_processor(dialects: None, base: str) -> None:
    listed = refusal("dialects:Missing").partition("it has ")[2].split(", ")
    assert base not in listed
