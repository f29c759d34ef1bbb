"""PaddleFormers' class of a family, and a model of it without weights."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import paddle
from paddle.nn import Layer

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.model_executor.models.paddleformers.rope import rotate_windows_apart, with_older_names

_TASK = "ForCausalLM"
_TRANSFORMERS = "paddleformers.transformers"
# Frequencies that depend on the longest sequence of a pass, which a sequence must not notice.
_CHANGING_ROPES = ("dynamic", "longrope")
# Their evaluation gives tokens the experts' weights of other tokens; in training they compute the right ones.
_EVALUATES_WRONG = ("GptOssExperts",)


def find_family(architectures: Sequence[str]) -> type[Layer]:
    """Returns PaddleFormers' class for `architectures` of `config.json`.

    Raises CheckpointError naming the families that PaddleFormers has, for one that it runs only with PaddleFleet, and
    if it cannot be imported.
    """
    modules: dict[str, str] = _imported("auto").MAPPING_NAMES
    for architecture in architectures:
        name = architecture.removesuffix(_TASK)
        if name == architecture or name not in modules:
            continue
        module = _imported(modules[name])
        if (found := getattr(module, architecture, None)) is not None:
            return _plain(found, module)
    known = ", ".join(f"{name}{_TASK}" for name in modules)
    raise CheckpointError(
        f"config.json: architectures {list(architectures)} are not supported by PaddleFormers, which has {known}"
    )


def _imported(family: str) -> Any:
    with _quietly(), _without_fleet():
        try:
            return importlib.import_module(f"{_TRANSFORMERS}.{family}.modeling")
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"PaddleFormers' {family} cannot be imported: {reason}") from error


def _plain(found: Any, module: Any) -> type[Layer]:
    """Returns the class that runs on Paddle alone; PaddleFormers keeps it beside the one for PaddleFleet."""
    plain: Any = getattr(module, f"{found.__name__}Deprecated", None) if getattr(found, "is_fleet", False) else found
    if plain is None:
        raise CheckpointError(f"config.json: {found.__name__} is not supported; PaddleFormers runs it with PaddleFleet")
    return plain  # type: ignore[no-any-return]


def build(family: Any, hf_config: dict[str, Any], attention: str, num_tensors: int) -> Any:
    """Returns a model whose parameters have shapes but no memory.

    attention: the name of its attention function. num_tensors: number of tensors in the checkpoint.
    Raises CheckpointError for a configuration that cannot be served or built.
    """
    _require_supported(hf_config, num_tensors)
    with _quietly():
        try:
            config = family.config_class.from_dict(with_older_names(hf_config))
            config.dtype = "float32"
            config._attn_implementation = attention
            # Its fused norm has no kernel for CPUs.
            config.fuse_rms_norm = False
            config.use_cache = False
            # Paddle embeds a padding token as zeros, also where a prompt has it for another purpose.
            config.pad_token_id = None
            # Layers that draft further tokens.
            config.num_nextn_predict_layers = 0
            with paddle.LazyGuard():
                model = family(config)
            rotate_windows_apart(model, hf_config)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"config.json: PaddleFormers cannot build {family.__name__}: {reason}") from error
    model.eval()
    for layer in model.sublayers():
        if type(layer).__name__ in _EVALUATES_WRONG:
            layer.train()
    return model


def _require_supported(hf_config: dict[str, Any], num_tensors: int) -> None:
    if hf_config.get("quantization_config"):
        raise CheckpointError("config.json: quantization_config is not supported; give weights that are not quantized")
    layers = positive_int(hf_config, "num_hidden_layers")
    if layers > num_tensors:
        raise CheckpointError(f"config.json: num_hidden_layers is {layers}; the weights are only {num_tensors} tensors")
    for field in ("rope_parameters", "rope_scaling"):
        rope = hf_config.get(field)
        kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, dict) else None
        if kind in _CHANGING_ROPES:
            raise CheckpointError(f"config.json: {field} of type {kind!r} is not supported through PaddleFormers")


@contextmanager
def _without_fleet() -> Iterator[None]:
    """Puts placeholders where PaddleFormers imports PaddleFleet, which the plain classes do not use."""
    missing = {} if importlib.util.find_spec("paddlefleet") else _placeholders()
    sys.modules.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def _placeholders() -> dict[str, ModuleType]:
    operators, provider = ModuleType("paddlefleet_ops"), ModuleType(f"{_TRANSFORMERS}.gpt_provider")
    vars(operators)["is_deep_ep_available"] = lambda: False
    vars(provider)["GPTModelProvider"] = type("GPTModelProvider", (), {"transform_rules": {}})
    return {module.__name__: module for module in (operators, provider)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppresses advice that PaddleFormers and transformers give while they are imported and build a model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
