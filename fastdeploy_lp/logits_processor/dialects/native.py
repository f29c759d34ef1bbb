"""The native dialect, FastDeploy's: `LogitsProcessor(fd_config)`, `update_state(share_inputs)`, `apply(logits)`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.late_values import LateValue, late_value_of
from fastdeploy_lp.logits_processor.stages import DRAW

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig


class NativeDialect(Dialect):
    """Runs native processors without a wrapper."""

    name = "native"
    may_draw = True

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of `LogitsProcessor`."""
        return isinstance(found, type) and issubclass(found, LogitsProcessor)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for missing methods or another constructor."""
        require_methods(found, spec, "LogitsProcessor", ("fd_config",))
        if found.stage == DRAW and found.draw is LogitsProcessor.draw:
            problem = 'has the stage "draw" and no method draw: write def draw(self, logits, uniforms)'
            raise LogitsProcessorSpecError(spec, problem)
        self._late_value(found, spec)

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the class's `Params`."""
        model: type[BaseModel] | None = found.Params
        return model

    def late_value(self, found: Any) -> LateValue | None:
        """See `Dialect.late_value`."""
        return self._late_value(found, found.__name__)

    @staticmethod
    def _late_value(found: Any, spec: str) -> LateValue | None:
        own = inspect.getattr_static(found, "prepare") is not inspect.getattr_static(LogitsProcessor, "prepare")
        return late_value_of(found, spec) if own else None

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance."""
        processor: LogitsProcessor = found(fd_config)
        return processor
