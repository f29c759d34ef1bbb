"""Torch callables without a base class: classes and functions recognized by the names of their parameters.

`(input_ids, scores)` as for transformers, `(prompt_ids, output_ids, logits)` and `(output_ids, logits)` as for the
first version of vLLM.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from typing import Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import ACTIONS
from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
from fastdeploy_lp.logits_processor.dialects.hugging_face import LIBRARY, TorchRowDialect, require_giveable
from fastdeploy_lp.logits_processor.dialects.parameters import request_parameters
from fastdeploy_lp.logits_processor.dialects.torch_rows import (
    CallStyle,
    TorchRow,
    call_style,
    on_row,
    positional_names,
)
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError


class CallableDialect(TorchRowDialect):
    """Classes with callable instances, and functions, whose further parameters are the request's arguments."""

    name = "callable"

    def recognizes(self, found: Any) -> bool:
        """Returns True if a call's parameters have the names of a known call style."""
        return _style(found) is not None

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError without torch, or for a class or function that cannot run."""
        if importlib.util.find_spec("torch") is None:
            raise LogitsProcessorSpecError(spec, "is called with torch tensors, and torch is not installed")
        if inspect.isabstract(found):
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise LogitsProcessorSpecError(spec, f"is abstract: it has no {missing}")
        style = self.style(found)
        call, skip = (found.__call__, 1) if isinstance(found, type) else (found, 0)
        extra = [
            parameter.name
            for parameter in list(inspect.signature(call).parameters.values())[skip + style.arguments :]
            if parameter.default is parameter.empty and parameter.kind not in _VARIADIC and parameter.name != ACTIONS
        ]
        if isinstance(found, type) and extra:
            raise LogitsProcessorSpecError(spec, f"is called {style.value}; its __call__ also needs {', '.join(extra)}")
        require_giveable(found, spec, _skip(found))

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the model of the constructor's parameters, or of the function's further ones."""
        return request_parameters(found, _skip(found)).model

    def process(self, found: Any, args: dict[str, Any], facts: ModelFacts) -> TorchRow:
        """Returns a new instance, or the function with its further parameters filled in, as a function of a row."""
        arguments = request_parameters(found, _skip(found)).arguments(args, facts)
        call = found(**arguments) if isinstance(found, type) else functools.partial(found, **arguments)
        return on_row(self.style(found), call)

    def style(self, found: Any) -> CallStyle:
        """Returns the call style that the parameter names indicate."""
        style = _style(found)
        if style is None:
            raise TypeError(f"{found!r} is no processor")
        return style

    def class_of(self, found: Any) -> Any:
        """Returns the class, or the function itself."""
        return found


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _style(found: Any) -> CallStyle | None:
    if inspect.isfunction(found):
        return call_style(positional_names(found))
    if not isinstance(found, type):
        return None
    # Excludes the library's base class and its list of processors: neither does anything by itself.
    if found.__module__.partition(".")[0] == LIBRARY:
        return None
    call = next((vars(base)["__call__"] for base in found.__mro__ if "__call__" in vars(base)), None)
    return call_style(positional_names(call, skip=1)) if inspect.isfunction(call) else None


def _skip(found: Any) -> int:
    """Returns the number of leading parameters of `found` that a call fills in; 0 for a class."""
    style = _style(found)
    return style.arguments if style is not None and not isinstance(found, type) else 0
