"""Stand-ins for the FastDeploy modules that its logits processors import, for `--fastdeploy-compat`."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from fastdeploy_lp import config
from fastdeploy_lp.logits_processor import base
from fastdeploy_lp.request.sampling_params import SamplingParams


@dataclass(frozen=True)
class Lazily:
    """An attribute "module:name", imported at its first use."""

    path: str

    def load(self) -> Any:
        """Imports and returns the attribute."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


def is_absent(package: str) -> bool:
    """Returns True if neither the package nor a stand-in for it is present."""
    return package not in sys.modules and importlib.util.find_spec(package) is None


def install_modules(contents: Mapping[str, Mapping[str, object]]) -> None:
    """Makes `import name` work for each name; packages must precede their modules."""
    for name, attributes in contents.items():
        module = _module(name, attributes)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def _module(name: str, attributes: Mapping[str, object]) -> ModuleType:
    module = ModuleType(name, "A stand-in by fastdeploy_lp.")
    # Each is a package, so that `from parent import child` looks for the child.
    module.__path__ = []
    later = {key: value for key, value in attributes.items() if isinstance(value, Lazily)}
    vars(module).update({key: value for key, value in attributes.items() if key not in later})

    def load(key: str) -> Any:
        if key not in later:
            raise AttributeError(f"module {name!r}, a stand-in by fastdeploy_lp, has no attribute {key!r}")
        return later[key].load()

    vars(module)["__getattr__"] = load
    return module


LOGGERS = ("llm_logger", "console_logger", "api_server_logger", "data_processor_logger", "scheduler_logger")
BUILTINS = {
    "LogitBiasLogitsProcessor": "logit_bias",
    "ThinkingBudgetLogitsProcessor": "forcing",
}


class LogitsProcessor(base.LogitsProcessor):
    """The base class under FastDeploy's names: its subclasses expect Paddle tensors in `share_inputs`."""


def install() -> None:
    """Makes the imports of FastDeploy's processors work; does nothing if FastDeploy is installed, or on a second call.

    Does the same for the import of their logger, from the package paddleformers.
    """
    if is_absent("fastdeploy"):
        install_modules(_fastdeploy())
    if is_absent("paddleformers"):
        logger = logging.getLogger("fastdeploy_lp.fastdeploy")
        install_modules({"paddleformers": {}, "paddleformers.utils": {}, "paddleformers.utils.log": {"logger": logger}})


def get_logger(name: str, *_: Any, **__: Any) -> logging.Logger:
    """Returns a logger of the server, without a separate file."""
    return logging.getLogger(f"fastdeploy_lp.{name}")


def validate_thinking_token_sequences(sequences: Any, vocab_size: int) -> dict[str, Any] | None:
    """Returns markers of several tokens, `{"start": [[…]], "end": [[…]], "forced_end": […]}`, or None for None.

    Raises ValueError for another form and for tokens outside the vocabulary.
    """
    if sequences is None:
        return None
    if not isinstance(sequences, dict) or not sequences.keys() >= {"start", "end", "forced_end"}:
        raise ValueError("think_token_sequences: must be a dict with start, end and forced_end")
    for sequence in (*sequences["start"], *sequences["end"], sequences["forced_end"]):
        if not sequence or not all(isinstance(token, int) and 0 <= token < vocab_size for token in sequence):
            raise ValueError(f"think_token_sequences: {sequence!r} is no list of tokens below {vocab_size}")
    return sequences


def _fastdeploy() -> dict[str, dict[str, object]]:
    builtin: dict[str, object] = {
        name: Lazily(f"fastdeploy_lp.logits_processor.builtin.{module}:{name}") for name, module in BUILTINS.items()
    }
    interface = {
        **builtin,
        "LogitsProcessor": LogitsProcessor,
        "load_class": _load_class,
        "build_logits_processors": _build_logits_processors,
    }
    loggers: dict[str, object] = {"get_logger": get_logger, **{name: get_logger(name) for name in LOGGERS}}
    package = "fastdeploy.model_executor.logits_processor"
    return {
        "fastdeploy": {name: Lazily(f"fastdeploy_lp:{name}") for name in ("LLM", "SamplingParams")},
        "fastdeploy.config": {
            **{name: value for name, value in vars(config).items() if name.endswith("Config")},
            "validate_thinking_token_sequences": validate_thinking_token_sequences,
        },
        "fastdeploy.engine": {},
        "fastdeploy.engine.sampling_params": {"SamplingParams": SamplingParams},
        "fastdeploy.logger": loggers,
        "fastdeploy.utils": loggers,
        "fastdeploy.model_executor": {},
        package: interface,
        f"{package}.base": {"LogitsProcessor": LogitsProcessor},
        f"{package}.builtin": builtin,
        f"{package}.thinking_budget": {name: builtin[name] for name in ("ThinkingBudgetLogitsProcessor",)},
        "fastdeploy.openai": {},
        "fastdeploy.openai.logits_processor": {"LogitsProcessor": LogitsProcessor},
    }


def _load_class(spec: str) -> Any:
    """Returns the class of a SPEC, as the server finds it; raises LogitsProcessorSpecError, a ValueError."""
    from fastdeploy_lp.logits_processor.registry import load_processor

    return load_processor(spec).found


def _build_logits_processors(fd_config: Any) -> list[Any]:
    """Returns an instance of every declared processor."""
    specs = fd_config.structured_outputs_config.logits_processors
    return [_load_class(spec)(fd_config) for spec in specs]
