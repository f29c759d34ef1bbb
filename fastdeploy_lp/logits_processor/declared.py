"""One declared processor: what the operator's SPEC led to."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects import Dialect

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.selection import Selection
    from fastdeploy_lp.sampling_params import SamplingParams


@dataclass(frozen=True)
class DeclaredProcessor:
    """One entry of the chain.

    name: what requests, metrics and errors call it. spec: what led to it. source: "builtin", "module", "entry point" or
    "object". found: the class, or the plugin dict. mandatory: every request passes it, and none goes on without it.
    """

    name: str
    spec: str
    source: str
    found: Any
    dialect: Dialect
    mandatory: bool = False

    @property
    def given_as_object(self) -> bool:
        """Whether the caller of `LLM` handed the class over, so that its SPEC need not lead to it again."""
        return self.source == "object"

    @cached_property
    def params_model(self) -> type[BaseModel] | None:
        """The pydantic model of its arguments, None if the server does not know them."""
        return self.dialect.params_model(self.found)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """The arguments that `params_model` knows."""
        if self.params_model is None:
            return frozenset()
        return frozenset(field.alias or name for name, field in self.params_model.model_fields.items())

    @cached_property
    def checks_with_own_code(self) -> bool:
        """Whether the check of a request may run code that is not this server's: `Params`, or its own method."""
        if self.source == "builtin":
            return False
        asks = type(self.dialect).validate is not Dialect.validate
        return asks or self.params_model is not None or _overrides_check(self.dialect.class_of(self.found))

    @property
    def description(self) -> str:
        """The first paragraph of its docstring."""
        # Its own docstring: the one it inherits describes the interface.
        text = inspect.cleandoc(vars(self.dialect.class_of(self.found)).get("__doc__") or "")
        return " ".join(text.partition("\n\n")[0].split())

    def build(self, fd_config: FDConfig) -> LogitsProcessor:
        """A native processor that the chain runs; raises RuntimeError naming it if its constructor fails."""
        try:
            return self.dialect.build(self.found, fd_config)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"logits processor {self.name} cannot be built: {reason}") from error

    def validate(self, sampling_params: SamplingParams) -> None:
        """Raise ValueError if the processor refuses the request."""
        self.dialect.validate(self.found, sampling_params)

    def is_used_by(self, selection: Selection) -> bool:
        """Whether the request is meant for this processor: named, or with an argument that is its own.

        A processor whose arguments are unknown is taken to be meant by any flat argument; one in shadow by nothing.
        """
        if self.name in selection.shadow:
            return False
        if selection.named is not None:
            return self.name in selection.named
        if self.dialect.by_name_only:
            return False
        return bool(self.argument_names & selection.flat.keys() if self.params_model else selection.flat)

    def leaves_alone(self, selection: Selection) -> bool:
        """Whether the request must not be shown to the processor at all: it named others, or wants it in shadow."""
        return self.name in selection.shadow or (selection.named is not None and self.name not in selection.named)


def _overrides_check(cls: type) -> bool:
    """Whether the class has a `validate_params` other than those of this package's base classes."""
    owner = next((base for base in cls.__mro__ if "validate_params" in vars(base)), None)
    return owner is not None and owner not in (LogitsProcessor, vllm_v1.LogitsProcessor)
