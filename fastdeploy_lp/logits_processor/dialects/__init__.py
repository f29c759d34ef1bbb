"""Dialects: the ways to write a logits processor that this server runs, one file each; a chain may mix them."""

from fastdeploy_lp.logits_processor.dialects.base import Dialect
from fastdeploy_lp.logits_processor.dialects.callables import CallableDialect
from fastdeploy_lp.logits_processor.dialects.fastdeploy import FastDeployDialect
from fastdeploy_lp.logits_processor.dialects.hugging_face import HuggingFaceDialect
from fastdeploy_lp.logits_processor.dialects.native import NativeDialect
from fastdeploy_lp.logits_processor.dialects.plugin_dict import PluginDictDialect
from fastdeploy_lp.logits_processor.dialects.request_level import RequestLevelDialect
from fastdeploy_lp.logits_processor.dialects.torch_vllm import TorchVllmDialect
from fastdeploy_lp.logits_processor.dialects.vllm import VllmV1Dialect
from fastdeploy_lp.logits_processor.dialects.vllm_mrv2 import TorchVllmMrv2Dialect, VllmMrv2Dialect
from fastdeploy_lp.logits_processor.dialects.wasm import WasmDialect

# The first dialect that recognizes an object runs it, so special dialects precede general ones. A class that has both
# of vLLM's interfaces runs by the current one, as in vLLM.
DIALECTS: tuple[Dialect, ...] = (
    FastDeployDialect(),
    NativeDialect(),
    TorchVllmMrv2Dialect(),
    VllmMrv2Dialect(),
    TorchVllmDialect(),
    RequestLevelDialect(),
    VllmV1Dialect(),
    PluginDictDialect(),
    WasmDialect(),
    HuggingFaceDialect(),
    CallableDialect(),
)

__all__ = ["DIALECTS", "Dialect"]
