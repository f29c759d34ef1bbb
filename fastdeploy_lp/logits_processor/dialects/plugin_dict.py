"""Plugin dicts: `{"logits_processor_class": …, "parameters_model": …}` with `cls(tokenizer, parameters)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import RequestActions, takes_actions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, ModelFacts
from fastdeploy_lp.logits_processor.dialects.parameters import TOKENIZER
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor, RowProcessor
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.vllm_v1 import require_same_kind
from fastdeploy_lp.platforms.imports import quiet_paddle

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.request.sampling_params import SamplingParams

CLASS, MODEL = "logits_processor_class", "parameters_model"


class PluginDictDialect(Dialect):
    """One instance per request that names the plugin, called `(token_ids, row) -> row` with the output tokens."""

    name = "plugin-dict"
    by_name_only = True
    tries_instances = True

    def recognizes(self, found: Any) -> bool:
        """Returns True for dicts."""
        return isinstance(found, dict)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError unless the dict has a callable class and a pydantic model."""
        if CLASS not in found:
            raise LogitsProcessorSpecError(spec, f"is a dict without {CLASS!r}; it needs {CLASS!r} and {MODEL!r}")
        cls, model = found[CLASS], found.get(MODEL)
        if not isinstance(cls, type) or "__call__" not in dir(cls):
            raise LogitsProcessorSpecError(spec, f"[{CLASS!r}] must be a class with __call__(self, token_ids, logits)")
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise LogitsProcessorSpecError(spec, f"[{MODEL!r}] must be a pydantic model, class Parameters(BaseModel)")
        try:
            _bound(cls, "tokenizer", "parameters")
        except TypeError as error:
            raise LogitsProcessorSpecError(
                spec, f"cannot be built ({error}): write def __init__(self, tokenizer, parameters)"
            ) from None

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the dict's `parameters_model`."""
        model: type[BaseModel] = found[MODEL]
        return model

    def ready_validation(self) -> None:
        """Imports Paddle, which makes the rows of dry calls."""
        with quiet_paddle():
            importlib.import_module("paddle")

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Builds an instance and calls it on rows of zeros, to find mistakes that its parameters model does not."""
        import paddle

        process = _process(found, sampling_params.extra_args or {}, facts)
        with paddle.no_grad():
            for output_ids in ([], [0]):
                row = paddle.zeros([facts.vocab_size])
                with RequestActions() as dropped:
                    require_same_kind(process([], output_ids, row, dropped), row)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns a processor that makes instances as requests arrive."""
        return PluginDictProcessor(found, ModelFacts.of(fd_config))

    def class_of(self, found: Any) -> type:
        """Returns the processor class."""
        cls: type = found[CLASS]
        return cls


class PluginDictProcessor(PerRequestProcessor):
    """Native wrapper of a plugin dict."""

    def __init__(self, plugin: dict[str, Any], facts: ModelFacts) -> None:
        super().__init__()
        self._plugin, self._facts = plugin, facts

    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """Returns `cls(tokenizer, parameters)`, as a function of a row."""
        return _process(self._plugin, args, self._facts)


def _process(plugin: dict[str, Any], args: Mapping[str, Any], facts: ModelFacts) -> RowProcessor:
    """Returns a new instance for a request with these arguments, called with its output tokens and its row."""
    parameters = plugin[MODEL].model_validate(dict(args))
    bound = _bound(plugin[CLASS], facts.tokenizer, parameters)
    instance = plugin[CLASS](*bound.args, **bound.kwargs)
    if takes_actions(instance):
        return lambda _, output_ids, row, actions: instance(output_ids, row, actions=actions)
    return lambda _, output_ids, row, _actions: instance(output_ids, row)


def _bound(cls: type, tokenizer: Any, parameters: Any) -> inspect.BoundArguments:
    """Binds both by position, tokenizer first unless the constructor's second parameter is called `tokenizer`.

    Raises TypeError for a constructor that does not take two arguments.
    """
    signature = inspect.signature(cls)
    swapped = list(signature.parameters)[1:2] == [TOKENIZER]
    return signature.bind(parameters, tokenizer) if swapped else signature.bind(tokenizer, parameters)
