"""The stand-in modules: every name leads somewhere, and what has none fails where it is imported."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
from support.declared import refusal
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.logits_processor import vllm_compat
from fastdeploy_lp.logits_processor.vllm_compat.installation import CONTENTS


@pytest.fixture
def stand_ins() -> Iterator[None]:
    with vllm_stand_ins():
        yield


@pytest.mark.parametrize("name", CONTENTS)
def test_every_name_of_a_module_leads_to_an_object(stand_ins: None, name: str) -> None:
    module = importlib.import_module(name)
    assert isinstance(module, ModuleType)
    for each in CONTENTS[name]:
        assert getattr(module, each) is not None
        assert each in dir(module)
        # Asked for again it is the same object: packages compare classes.
        assert getattr(module, each) is getattr(module, each)
    assert importlib.util.find_spec(name) is not None


# What issue trackers and public packages show that processors import today.
IMPORTS = """
import vllm
from vllm import LLM, AsyncEngineArgs, EngineArgs, RequestOutput, SamplingParams, __version__
from vllm.config import ModelConfig, SchedulerConfig, VllmConfig, get_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.logits_process import LogitsProcessor as RequestLevel
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.tokenizers import TokenizerLike, cached_tokenizer_from_config, get_tokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer, get_tokenizer
from vllm.utils import is_pin_memory_available
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.sample.logits_processor import (AdapterLogitsProcessor, BatchUpdate, BatchUpdateBuilder,
    LOGITSPROCS_GROUP, LogitBiasLogitsProcessor, LogitsProcessor, LogitsProcessors, MinPLogitsProcessor,
    MinTokensLogitsProcessor, MoveDirectionality, RequestLogitsProcessor, build_logitsprocs, process_dict_updates)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import (AddedRequest, BatchUpdate, LogitsProcessor, MovedRequest,
    MoveDirectionality, RemovedRequest)
from vllm.v1.sample.logits_processor.state import BatchUpdateBuilder, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor
from vllm.v1.worker.gpu.sample.logits_processor import (LogitsContext, LogitsProcRequestState,
    LogitsProcessor as SlotKeyed, build_custom_logits_processors,
    build_custom_logits_processors_params_validator)
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotKeyedInterface
"""


def test_todays_imports_work(stand_ins: None) -> None:
    names: dict[str, object] = {}
    exec(IMPORTS, names)
    assert names["SlotKeyed"] is names["SlotKeyedInterface"] is not names["LogitsProcessor"]
    assert names["LogitsProcessor"] is sys.modules["vllm"].v1.sample.logits_processor.interface.LogitsProcessor
    assert tuple(map(int, str(names["__version__"]).partition("+")[0].split(".")))


def test_a_name_without_a_stand_in_says_so(stand_ins: None) -> None:
    with pytest.raises(AttributeError, match=r"vllm\.LLMEngine has no stand-in"):
        _ = importlib.import_module("vllm").LLMEngine
    with pytest.raises(ImportError, match="LLMEngine"):
        exec("from vllm import LLMEngine")
    with pytest.raises(ModuleNotFoundError, match=r"vllm\.lora"):
        importlib.import_module("vllm.lora")


@pytest.mark.parametrize("needs", ["import vllm.lora", "from vllm import LLMEngine", "from vllm.lora.request import X"])
def test_a_refusal_advises_the_option_only_while_it_is_off(folder: Path, needs: str) -> None:
    (folder / "needs_vllm.py").write_text(needs)
    assert "; for a package written for vLLM add --vllm-compat" in refusal("needs_vllm:Any")
    with vllm_stand_ins():
        message = refusal("needs_vllm:Any")
    assert "add --vllm-compat" not in message
    assert "--vllm-compat has no stand-in for it, so the package needs vLLM itself" in message


def test_a_folder_named_vllm_is_no_installation(folder: Path) -> None:
    (folder / "vllm").mkdir()
    importlib.invalidate_caches()
    assert importlib.util.find_spec("vllm") is not None
    with vllm_stand_ins():
        assert vllm_compat.stand_ins_are_installed()
    assert not vllm_compat.stand_ins_are_installed()


def test_an_installed_vllm_is_left_alone(folder: Path) -> None:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text("mine = True")
    importlib.invalidate_caches()
    vllm_compat.install()
    assert "vllm" not in sys.modules
    assert importlib.import_module("vllm").mine


def test_modules_and_classes_travel_to_the_worker(stand_ins: None) -> None:
    module = importlib.import_module("vllm.v1.sample.logits_processor")
    assert pickle.loads(cloudpickle.dumps(module)) is module
    assert pickle.loads(cloudpickle.dumps(module.AdapterLogitsProcessor)) is module.AdapterLogitsProcessor
