"""vLLM's slot-keyed processors: the base class, and the functions that load and validate them, for packages' tests.

The engine does not use the functions. This module imports neither torch nor Paddle, as vLLM's does not.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from fastdeploy_lp.logits_processor import vllm_mrv2
from fastdeploy_lp.logits_processor.vllm_compat.requests import VLLMValidationError
from fastdeploy_lp.plugins import PluginGroup

LOGITSPROCS_GROUP = PluginGroup.VLLM_LOGITS_PROCESSOR.value
LOADER_MODULE = "vllm.v1.worker.gpu.sample.logits_processor.loader"
_BASE = "vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor"

entry_points = importlib.metadata.entry_points


class LogitsProcessor(vllm_mrv2.LogitsProcessor):
    """The slot-keyed interface."""


def build_custom_logits_processors(
    vllm_config: Any, req_states: Any, is_pooling_model: bool, custom_logitsprocs: Sequence[str | type] = ()
) -> list[LogitsProcessor]:
    """Returns the installed entry points and `custom_logitsprocs`, classes or "module:Class", in this order.

    `req_states` has the attributes of `LogitsProcRequestState`. Raises ValueError for custom processors of a pooling
    model and for a class without the interface, RuntimeError for a module or an entry point that cannot be loaded.
    """
    if is_pooling_model:
        if custom_logitsprocs:
            raise ValueError("Pooling models do not support logits processors: declare none")
        return []
    classes = _load(tuple(custom_logitsprocs))
    state = vllm_mrv2.LogitsProcRequestState.from_request_state(req_states)
    return [cls(vllm_config, state) for cls in classes]


def build_custom_logits_processors_params_validator(
    custom_logitsprocs: Sequence[str | type] | None,
) -> Callable[[Any], None]:
    """Loads the classes and returns a function that raises VLLMValidationError for parameters that one refuses."""
    classes = load_once(tuple(custom_logitsprocs or ()))

    def validate(sampling_params: Any) -> None:
        for cls in classes:
            try:
                cls.validate_params(sampling_params)
            except ValueError as error:
                raise VLLMValidationError(str(error)) from error

    return validate


def _load(custom: tuple[str | type, ...]) -> list[type[LogitsProcessor]]:
    return [*_installed(), *(_class_of(given) for given in custom)]


load_once = lru_cache(_load)


def _installed() -> list[type[LogitsProcessor]]:
    # Packages' tests replace this name in vLLM's module.
    find = getattr(sys.modules.get(LOADER_MODULE), "entry_points", entry_points)
    found = []
    for each in find(group=LOGITSPROCS_GROUP):
        try:
            cls = each.load()
        except Exception as error:
            raise RuntimeError(f"the entry point {each.name} ({each.value}) cannot be loaded: {error}") from error
        if not _has_interface(cls):
            raise ValueError(
                f"the entry point {each.name} is not a subclass of {_BASE}; "
                "V1-interface plugins are not supported by this function"
            )
        found.append(cls)
    return found


def _class_of(given: str | type) -> type[LogitsProcessor]:
    found: Any = given
    if isinstance(given, str):
        found = _named(given)
        if not isinstance(found, type):
            raise ValueError(f"{given!r} names a {type(found).__name__}; it must be a type")
    if not _has_interface(found):
        raise ValueError(f"{given!r} is not a subclass of {_BASE}")
    cls: type[LogitsProcessor] = found
    return cls


def _named(spec: str) -> Any:
    module, *names = spec.split(":")
    if len(names) != 1:
        raise ValueError(f"{spec!r} names no class. Expected format: '<module>:<class>'")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise RuntimeError(f"{spec!r} cannot be imported: {error}") from error
    for name in names[0].split("."):
        found = getattr(found, name)
    return found


def _has_interface(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, LogitsProcessor)
